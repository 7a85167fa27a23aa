/*
 * Each format that depends on a library is built as a library of its own, libbags-NAME.
 * It is opened when one of its functions or its codec is first used, so the command
 * loads only what it needs; loading FFmpeg takes tens of milliseconds. MODULES in
 * formats/packages.mk lists the formats. A build without modules links them.
 */
#ifndef MODULES_H
#define MODULES_H

#include "formats.h"

/* Look up a symbol or a function in the library of a format such as "mp4" or
 * "import/zarr". If the library is missing, the message names it; module_find then
 * returns NULL, and module_get ends the program. Any thread may call these. */
typedef void (*module_function)(void);
void *module_find(const char *format, const char *symbol, bags_error *err);
module_function module_get(const char *format, const char *symbol);

/* Call this first. It prevents threads from opening a library while the program exits,
 * since that would initialize libraries that the dynamic loader has already
 * finalized. */
void modules_prepare(void);

/* Table members: the name of a format's symbol, and its address (NULL: in a module). */
#ifdef BAGS_MODULES
#define LINKED(symbol) #symbol, NULL
#else
#define LINKED(symbol) #symbol, &symbol
#endif

#ifdef BAGS_MODULES

/* Each function of a module that the command calls needs a line here, or the program
 * does not link. Each place in the code looks the function up on its first call. */
#define MODULE(format, symbol)                                                         \
    (*__extension__({                                                                  \
        static __typeof__(symbol) *found_in_module;                                    \
        if (!__atomic_load_n(&found_in_module, __ATOMIC_RELAXED))                      \
            __atomic_store_n(&found_in_module,                                         \
                (__typeof__(symbol) *)module_get(format, #symbol), __ATOMIC_RELAXED);  \
        __atomic_load_n(&found_in_module, __ATOMIC_RELAXED);                           \
    }))

#define bags_http_open MODULE("http", bags_http_open)
#define bags_http_io MODULE("http", bags_http_io)
#define bags_http_counts MODULE("http", bags_http_counts)
#define bags_http_is_versioned MODULE("http", bags_http_is_versioned)
#define bags_http_same MODULE("http", bags_http_same)
#define bags_http_upload MODULE("http", bags_http_upload)

#define bags_jpeg_probe MODULE("jpeg", bags_jpeg_probe)
#define bags_jpeg_decode MODULE("jpeg", bags_jpeg_decode)

#define bags_mp4_cache_open MODULE("mp4", bags_mp4_cache_open)
#define bags_mp4_cache_close MODULE("mp4", bags_mp4_cache_close)
#define bags_mp4_cache_get MODULE("mp4", bags_mp4_cache_get)
#define bags_mp4_probe MODULE("mp4", bags_mp4_probe)
#define bags_mp4_reader_open MODULE("mp4", bags_mp4_reader_open)
#define bags_mp4_reader_close MODULE("mp4", bags_mp4_reader_close)
#define bags_mp4_reader_part MODULE("mp4", bags_mp4_reader_part)
#define bags_mp4_reader_place MODULE("mp4", bags_mp4_reader_place)
#define bags_mp4_reader_packet MODULE("mp4", bags_mp4_reader_packet)
#define bags_mp4_reader_info MODULE("mp4", bags_mp4_reader_info)
#define bags_mp4_reader_get MODULE("mp4", bags_mp4_reader_get)
#define bags_mp4_reader_get_into MODULE("mp4", bags_mp4_reader_get_into)

#define bags_msgpack_print MODULE("msgpack", bags_msgpack_print)

#define bags_png_probe MODULE("png", bags_png_probe)
#define bags_png_decode MODULE("png", bags_png_decode)

#define bags_sql_check MODULE("sql", bags_sql_check)
#define bags_sql_open MODULE("sql", bags_sql_open)
#define bags_sql_rows MODULE("sql", bags_sql_rows)

/* SQLite is linked into that module. */
#define sqlite3_close MODULE("sql", sqlite3_close)
#define sqlite3_column_blob MODULE("sql", sqlite3_column_blob)
#define sqlite3_column_bytes MODULE("sql", sqlite3_column_bytes)
#define sqlite3_column_count MODULE("sql", sqlite3_column_count)
#define sqlite3_column_double MODULE("sql", sqlite3_column_double)
#define sqlite3_column_int64 MODULE("sql", sqlite3_column_int64)
#define sqlite3_column_name MODULE("sql", sqlite3_column_name)
#define sqlite3_column_text MODULE("sql", sqlite3_column_text)
#define sqlite3_column_type MODULE("sql", sqlite3_column_type)
#define sqlite3_errmsg MODULE("sql", sqlite3_errmsg)
#define sqlite3_finalize MODULE("sql", sqlite3_finalize)
#define sqlite3_prepare_v2 MODULE("sql", sqlite3_prepare_v2)
#define sqlite3_step MODULE("sql", sqlite3_step)

#define bags_webp_probe MODULE("webp", bags_webp_probe)

#endif /* BAGS_MODULES */

#endif /* MODULES_H */
