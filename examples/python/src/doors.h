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
    bags_code (*export_to)(const bags_reader *reader, const bags_exporter *exporter,
        const char *path, const bags_export_options *options,
        bags_export_report *report, bags_error *err);
} Doors;

#endif
