/*
 * Fuzzes formats/mp4.c: an untrusted blob is probed and read, completely and in
 * part, with limits that keep a run short. FFmpeg must not print about it.
 */
// flavours: test: asan
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
    bags_buffer_free(&scratch);
    return 0;
}
