/*
 * The formats whose libraries need so many others that they take tens of milliseconds to
 * load: FFmpeg, libcurl, HDF5. Each is a library of its own, libbags-NAME, which is opened
 * when a function of it is first called. MODULES in formats/packages.mk lists them; a
 * build without modules links them.
 */
#ifndef MODULES_H
#define MODULES_H

#include "../../formats/formats.h"

/* A symbol, or a function, of the library of a format, "mp4" or "import/zarr". Without
 * the library, whose name is in the message, module_find returns NULL and module_get
 * ends the program. Threads: any. */
typedef void (*module_function)(void);
void *module_find(const char *format, const char *symbol, bags_error *err);
module_function module_get(const char *format, const char *symbol);

/* A function that the command calls of a module needs a line here: without one the
 * program does not link. */
#define MODULE(format, symbol) (*(__typeof__(symbol) *)module_get(format, #symbol))

#ifdef BAGS_MODULE_HTTP
#define bags_http_open MODULE("http", bags_http_open)
#define bags_http_io MODULE("http", bags_http_io)
#define bags_http_counts MODULE("http", bags_http_counts)
#define bags_http_is_versioned MODULE("http", bags_http_is_versioned)
#define bags_http_same MODULE("http", bags_http_same)
#define bags_http_upload MODULE("http", bags_http_upload)
#endif

#ifdef BAGS_MODULE_MP4
#define bags_mp4_probe MODULE("mp4", bags_mp4_probe)
#define bags_mp4_reader_open MODULE("mp4", bags_mp4_reader_open)
#define bags_mp4_reader_close MODULE("mp4", bags_mp4_reader_close)
#define bags_mp4_reader_info MODULE("mp4", bags_mp4_reader_info)
#define bags_mp4_reader_get MODULE("mp4", bags_mp4_reader_get)
#define bags_mp4_reader_get_into MODULE("mp4", bags_mp4_reader_get_into)
#endif

#endif /* MODULES_H */
