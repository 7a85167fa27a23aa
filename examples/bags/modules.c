/*
 * Open libraries of formats when they are needed. The program's rpath names the
 * directories that contain them; the current directory is not searched.
 */
#include "command.h"

#include "import.h"
#include "modules.h"

#include <pthread.h>

/* Held while a library is being opened, and by a program that is exiting. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void stop_opening(void) { pthread_mutex_lock(&opening); }

void modules_prepare(void) { (void)atexit(stop_opening); }

/* For example, opens libbags-import-zarr.so.0.9 for import/zarr. */
void *module_find(const char *format, const char *symbol, bags_error *err) {
    const char *version = BAGS_VERSION;
    char *name = string_format(
        "libbags-%s.so.%.*s", format, (int)(strrchr(version, '.') - version), version);
    const char *const names[] = {name, NULL};
    for (char *slash = name; (slash = strchr(slash, '/'));)
        *slash = '-';
    pthread_mutex_lock(&opening);
    void *found = bags_import_symbol(names, symbol, err);
    pthread_mutex_unlock(&opening);
    if (!found)
        bags_suffix(err,
            "; format %s: install %s in ../lib of the command's directory or on the "
            "path of the loader",
            format, name);
    free(name);
    return found;
}

module_function module_get(const char *format, const char *symbol) {
    void *found = module_find(format, symbol, &failure);
    module_function function;
    if (!found)
        die();
    memcpy(&function, &found, sizeof function);
    return function;
}
