/* doors.h - the formats of other programs. The module bags._doors contains them, with the
 * libraries that they need; bags._core imports it when needed. */
#ifndef BAGS_PYTHON_DOORS_H
#define BAGS_PYTHON_DOORS_H

#include "export.h"
#include "import.h"

#define DOORS_CAPSULE "bags._doors.functions"

/* The module has its own copy of bags.h, of the same version. */
typedef struct Doors {
    const bags_importer *const *importers; /* in the order in which they are tried */
    const bags_exporter *const *exporters; /* both end with NULL */
    bags_code (*recognize)(const bags_importer *const *importers, const char *path,
        size_t *found, bags_error *err);
    bags_source *(*open)(const bags_importer *importer, const char *path,
        const bags_source_options *options, bags_error *err);
    bags_code (*read)(bags_source *source, uint64_t index, const bags_entry **entries,
        bags_error *err);
    void (*close)(bags_source *source);
    void (*name)(const void *name, size_t size, char *out);
    bags_source_want (*want)(const char *type);
    bags_conversion *(*conversion)(const char *from, const char *to,
        const bags_conversion_options *options, bags_error *err);
    bags_code (*conversion_count)(const bags_conversion *conversion,
        const bags_entry *entry, size_t *count, bags_error *err);
    bags_code (*conversion_get)(bags_conversion *conversion, const bags_entry *entry,
        size_t item, bags_value *out, bags_error *err);
    void (*conversion_close)(bags_conversion *conversion);
    /* For bags_conversion_options. */
    bags_code (*pack)(
        bags_view json, bags_buffer *scratch, bags_view *msgpack, bags_error *err);
    bags_code (*export_to)(const bags_reader *reader, const bags_exporter *exporter,
        const char *path, const bags_export_options *options,
        bags_export_report *report, bags_error *err);
} Doors;

#endif
