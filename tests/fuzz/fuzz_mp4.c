/*
 * Fuzzes formats/mp4.c: an untrusted blob is probed and read, completely and in
 * part, with limits that keep a run short; once from memory, and once from a dataset,
 * mapped or not, by the tables in it. FFmpeg must not print about it.
 */
// flavours: test: asan
#include "support.h"

#include "../../formats/formats.h"

#include <libavutil/log.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What would be printed at the level that programs have by default. Some of
 * FFmpeg's helpers speak for no context, of absurd sizes and parameters: those
 * only av_log_set_level hushes. */
static void on_log(void *context, int level, const char *format, va_list list) {
    const AVClass *speaker = context ? *(const AVClass **)context : NULL;
    if (level > AV_LOG_INFO || !speaker || strcmp(speaker->class_name, "IMGUTILS") == 0)
        return;
    vfprintf(stderr, format, list);
    abort();
}

/* Where a call fails, it states why, in one line. */
static void check(bags_code code, const bags_error *err) {
    if (code && (err->code != code || !err->message[0] || strchr(err->message, '\n')))
        abort();
}

static void read_parts(bags_mp4_reader *reader, bags_buffer *scratch) {
    const bags_mp4_info *info = bags_mp4_reader_info(reader);
    uint64_t frames = info->frames;
    bags_error err;
    bags_value value;
    bags_code code;
    memset(&err, 0, sizeof err);
    code = bags_mp4_reader_get(
        reader, frames / 2, frames / 2 + 3, 1, scratch, &value, &err);
    check(code, &err);
    code = bags_mp4_reader_get(reader, 1, UINT64_MAX, 7, scratch, &value, &err);
    check(code, &err);
    code = bags_mp4_reader_get(reader, 0, UINT64_MAX, 0, scratch, &value, &err);
    check(code, &err);
    if (!code && (value.shape[0] != frames || value.shape[1] != info->height ||
                     value.shape[2] != info->width))
        abort();
}

static void read_from_dataset(
    bags_view blob, const bags_mp4_options *options, bags_buffer *scratch) {
    memory_disk m;
    hand_set set;
    bags_error err;
    bags_reader_options reading;
    memset(&err, 0, sizeof err);
    memset(&set, 0, sizeof set);
    memset(&reading, 0, sizeof reading);
    set_field(&set, "v", "mp4");
    set_begin(&set);
    put_uint(&set.row, 0);
    set_end(&set);
    hand_add(&set.bags[0], blob.data, blob.size);
    memory_disk_start(&m);
    memory_disk_save_set(&m, &set, V1, "x");
    reading.env.io = &m.io;
    reading.no_mmap = blob.size % 2;
    bags_reader *reader = bags_reader_open("x", &reading, &err);
    if (!reader)
        abort();
    bags_mp4_reader *video = bags_mp4_reader_open_blob(reader, 0, 0, 0, options, &err);
    if (video)
        read_parts(video, scratch);
    else
        check(err.code ? err.code : BAGS_ERROR_STATE, &err);
    bags_mp4_reader_close(video);
    bags_reader_close(reader);
    memory_disk_free(&m);
    set_free(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bags_view blob;
    bags_mp4_options options;
    bags_buffer scratch;
    bags_error err;
    bags_mp4_reader *reader;
    memset(&options, 0, sizeof options);
    memset(&scratch, 0, sizeof scratch);
    memset(&err, 0, sizeof err);
    options.max_pixels = 1 << 14;
    options.max_size = 1 << 21;
    blob.data = data;
    blob.size = size;
    av_log_set_callback(on_log);
    reader = bags_mp4_reader_open(blob, &options, &err);
    if (reader)
        read_parts(reader, &scratch);
    else
        check(err.code ? err.code : BAGS_ERROR_STATE, &err);
    bags_mp4_reader_close(reader);
    read_from_dataset(blob, &options, &scratch);
    bags_buffer_free(&scratch);
    return 0;
}
