/*
 * folder.c - imports folders with one file per datapoint: NumPy arrays (.npy) or videos
 * (.mp4, .m4v, .mov, .webm, .mkv, .avi). No library; formats/numpy.c checks arrays.
 *
 * Each file is a datapoint, ordered by name, with numbers in names compared by value.
 * Files are stored unchanged.
 *
 *     path    utf8: the name of the file
 *     array   npy
 *     video   mp4 or webm if all files are; otherwise, for example for .mkv and .avi,
 *             bytes
 *
 * Rejected: arrays that numpy.c does not read, such as arrays of Python objects; files
 * whose first bytes contradict their names; truncated MP4, WebM and Matroska files.
 */
#include "import.h"

#include "mp4_tables.h"
#include "try.h"

#include <inttypes.h>

typedef enum fo_kind { FO_NONE, FO_MP4, FO_WEBM, FO_MATROSKA, FO_AVI } fo_kind;

/* ---- containers ---- */

/* The kind of a file that begins with these bytes. */
static fo_kind fo_find_kind(const unsigned char *data, size_t size) {
    const char *magic = bags_import_magic(data, size);
    if (magic && !strcmp(magic, "mp4"))
        return FO_MP4;
    if (size >= 12 && !memcmp(data, "RIFF", 4) && !memcmp(data + 8, "AVI ", 4))
        return FO_AVI;
    if (!magic || strcmp(magic, "webm") != 0)
        return FO_NONE;
    for (size_t i = 0; i + 7 <= size; i++) /* DocType, 4 bytes */
        if (!memcmp(data + i, "\x42\x82\x84webm", 7))
            return FO_WEBM;
    return FO_MATROSKA;
}

/* True if an MP4 file has an index, and its boxes end where the file ends. */
static bool fo_is_mp4(bags_view file) {
    bool index = false;
    bags_view box;
    char type[4];
    while (mp4_box(&file, type, &box))
        index = index || !memcmp(type, "moov", 4);
    return index && file.size == 0;
}

/* Read and skip the ID and size of an EBML element. *size becomes UINT64_MAX if it is
 * unknown. */
static bool fo_element(bags_view *at, uint64_t *id, uint64_t *size) {
    uint64_t *out[2] = {id, size};
    for (size_t i = 0; i < 2; i++) {
        size_t length = 1;
        if (at->size == 0 || at->data[0] == 0)
            return false;
        while (!(at->data[0] >> (8 - length) & 1))
            length++;
        if (length > at->size)
            return false;
        *out[i] = bags_load_bytes(at->data, length, true);
        uint64_t mask = (UINT64_C(1) << 7 * length) - 1;
        if (i == 1)
            *size = (*size & mask) == mask ? UINT64_MAX : *size & mask;
        at->data += length;
        at->size -= length;
    }
    return true;
}

/* True if a WebM or Matroska file has a header and a complete segment. */
static bool fo_is_matroska(bags_view file) {
    uint64_t id, size;
    while (fo_element(&file, &id, &size)) {
        if (size == UINT64_MAX) /* as in files written to a pipe */
            return id == 0x18538067;
        if (size > file.size)
            return false;
        if (id == 0x18538067)
            return true;
        file.data += size;
        file.size -= (size_t)size;
    }
    return false;
}

/* ---- the source ---- */

static bool fo_is_array(const char *name) { return bags_import_ends(name, ".npy"); }

static bool fo_is_video(const char *name) {
    return bags_import_ends(name, ".mp4 .m4v .mov .webm .mkv .avi");
}

/* Determine the kind of the videos from their first bytes. */
static bags_code fo_learn(bags_source *s, fo_kind *all) {
    for (size_t i = 0; i < s->path_count; i++) {
        unsigned char head[64];
        size_t size = bags_import_peek(s->paths[i], head, sizeof head);
        fo_kind kind = fo_find_kind(head, size);
        if (kind == FO_NONE)
            return bags_fail(s->err, BAGS_ERROR_CORRUPT,
                "%s: not an MP4, WebM, Matroska or AVI file", s->paths[i]);
        *all = i == 0 || *all == kind ? kind : FO_NONE;
    }
    return BAGS_OK;
}

static bool fo_has_videos(const bags_source *s) {
    return s->importer == &bags_import_video;
}

static bags_code fo_open(bags_source *s) {
    fo_kind kind = FO_NONE;
    bool video = fo_has_videos(s);
    FORMAT_TRY(bags_source_files(s, video ? fo_is_video : fo_is_array));
    if (video)
        FORMAT_TRY(fo_learn(s, &kind));
    s->length = s->path_count;
    bags_source_field(s, "path", "utf8");
    bags_source_field(s, video ? "video" : "array",
        !video            ? "npy"
        : kind == FO_MP4  ? "mp4"
        : kind == FO_WEBM ? "webm"
                          : "bytes");
    return BAGS_OK;
}

/* Check that a file is complete. */
static bags_code fo_check(bags_source *s, bags_view file) {
    bags_buffer scratch = bags_buffer_of(&s->allocator);
    bags_value ignored;
    fo_kind kind = fo_find_kind(file.data, file.size < 64 ? file.size : 64);
    bool bad = (kind == FO_MP4 && !fo_is_mp4(file)) ||
               ((kind == FO_WEBM || kind == FO_MATROSKA) && !fo_is_matroska(file)) ||
               kind == FO_NONE;
    if (fo_has_videos(s))
        return bad ? bags_source_fail(s, BAGS_ERROR_CORRUPT,
                         "truncated or damaged: not a complete video")
                   : BAGS_OK;
    bags_code code = bags_codec_npy.decode(NULL, file, &scratch, &ignored, s->err);
    bags_buffer_free(&scratch);
    return code ? bags_prefix(s->err, code, "%s: ", s->where) : BAGS_OK;
}

static bags_code fo_read(bags_source *s, uint64_t index) {
    bags_view file = {NULL, 0};
    if (s->ended)
        return BAGS_OK;
    FORMAT_TRY(bags_source_open_file(s, s->paths[index]));
    FORMAT_TRY(bags_source_copy(s, 0, s->file.size, &file));
    FORMAT_TRY(fo_check(s, file));
    s->values[0] = bags_utf8(bags_import_base(s->paths[index]));
    s->values[1] = bags_blob(file.data, file.size);
    return BAGS_OK;
}

static bool fo_detect_arrays(const char *path) {
    return bags_import_has_files(path, fo_is_array);
}

static bool fo_detect_videos(const char *path) {
    return bags_import_has_files(path, fo_is_video);
}

const bags_importer bags_import_npy = {
    "npy", fo_detect_arrays, 0, fo_open, fo_read, NULL};
const bags_importer bags_import_video = {
    "video", fo_detect_videos, 0, fo_open, fo_read, NULL};
