/* far.h - formats whose libraries take long to load. The module bags._far contains
 * them; bags._core imports it when needed. */
#ifndef BAGS_PYTHON_FAR_H
#define BAGS_PYTHON_FAR_H

#include "formats.h"

#define FAR_CAPSULE "bags._far.functions"

/* Each module has its own copy of bags.h. NULL: not built. */
typedef struct Far {
    const bags_codec *mp4; /* if set, so are the functions for video frames: */
    bags_mp4_cache *(*video_cache)(
        const bags_mp4_cache_options *options, bags_error *err);
    void (*video_cache_close)(bags_mp4_cache *cache);
    bags_mp4_reader *(*video)(bags_mp4_cache *cache, const bags_reader *dataset,
        uint64_t index, size_t field, uint64_t item, bags_error *err);
    const bags_mp4_info *(*video_info)(const bags_mp4_reader *video);
    bags_extent (*video_part)(const bags_mp4_reader *video, uint64_t frame);
    bags_mp4_place (*video_place)(const bags_mp4_reader *video, uint64_t frame);
    bags_code (*video_packet)(bags_mp4_reader *video, uint64_t number, uint64_t last,
        bags_mp4_packet *out, bags_error *err);
    bags_code (*video_frames)(bags_mp4_reader *video, uint64_t start, uint64_t stop,
        uint64_t step, void *data, size_t size, uint64_t *frames, bags_error *err);
    bags_http *(*http_open)(const bags_http_options *options, bags_error *err);
    void (*http_close)(bags_http *http);
    const bags_io *(*http_io)(const bags_http *http);
    bags_code (*http_upload)(bags_http *http, const char *url, const bags_io *io,
        const char *path, void (*progress)(void *user, uint64_t bytes), void *user,
        bags_error *err);
    bags_code (*http_same)(bags_http *http, const char *url, const bags_io *io,
        const char *path, bool *same, bags_error *err);
} Far;

#endif
