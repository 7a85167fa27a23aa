/*
 * formats/mp4.c: videos in a dataset, of which only the frames that are wanted are read.
 * Every frame equals the one of the video in whole, in whatever order; hooks count what
 * was read for it; tables that lie are an error.
 */
// flavours: test: release; check: asan
#include "../../bags.h"
#include "../../formats/formats.h"
#include "../../formats/mp4_tables.h"

#include "check.h"

#include <errno.h>

#include <libavutil/log.h>

#define VIDEO "tests/data/video/"

/* ---- datasets of videos ---- */

static bags_view read_file(const char *path) {
    bags_view from = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    from.size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = (unsigned char *)malloc(from.size + 1);
    assert_int_equal(fread(data, 1, from.size, file), from.size);
    fclose(file);
    from.data = data;
    return from;
}

static void drop(bags_view from) { free((void *)(uintptr_t)from.data); }

static bool can_decode(bags_view blob) {
    bags_buffer scratch = {0};
    bags_value value;
    bags_error err;
    bags_mp4_reader *video = bags_mp4_reader_open(blob, NULL, &err);
    bags_code code =
        video ? bags_mp4_reader_get(video, 0, 1, 1, &scratch, &value, &err) : err.code;
    bags_mp4_reader_close(video);
    bags_buffer_free(&scratch);
    return code != BAGS_ERROR_TYPE;
}

/* A dataset whose only datapoint has this video. */
static void write_video(bags_view blob, bool checksum) {
    const bags_field field = {"video", "mp4"};
    bags_writer_options options = {0};
    bags_writer *writer;
    bags_value value = bags_blob(blob.data, blob.size);
    bags_entry entry = {"video", &value, 1};
    options.checksum = checksum;
    options.no_sync = options.any_type = true;
    if (exists(at("ds")))
        remove_tree(at("ds"));
    assert_opens(writer, bags_writer_open(at("ds"), &field, 1, &options, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
}

/* Reads of blobs: tables of Bags are kept in memory. */
static bags_io counted;
static uint64_t bytes_read;
static unsigned ranges_read;
static int read_fault;

static int count_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    if (read_fault)
        return read_fault;
    int error = bags_io_local()->read_at(user, file, offset, data, size, done);
    if (size > 16) {
        bytes_read += size;
        ranges_read++;
    }
    return error;
}

typedef enum way { MAPPED, FAR, VERIFIED, WAYS } way;

static bags_reader *open_videos(way how) {
    bags_reader_options options = {0};
    bags_reader *reader;
    counted = *bags_io_local();
    counted.map = NULL;
    counted.read_at = count_read;
    options.env.io = how == FAR ? &counted : NULL;
    options.cache_index = true;
    options.verify_checksums = how == VERIFIED;
    assert_opens(reader, bags_reader_open(at("ds"), &options, &said));
    return reader;
}

/* ---- all frames ---- */

static uint64_t steps(uint64_t i, uint64_t count) { return i * 7919 % count; }

/* Compare frames of the video with `all`. */
static void check_frames(
    bags_mp4_reader *video, const bags_value *all, uint64_t start, uint64_t stop) {
    static bags_buffer scratch;
    bags_value some;
    size_t frame = (size_t)(all->shape[1] * all->shape[2] * 3);
    assert_ok(bags_mp4_reader_get(video, start, stop, 1, &scratch, &some, &said));
    stop = stop < all->shape[0] ? stop : all->shape[0];
    assert_int_equal(some.shape[0], stop - start);
    assert_memory_equal(some.data, (const char *)all->data + start * frame, some.size);
}

static void check_video(const char *name, bags_view blob, way how) {
    bags_buffer scratch = {0};
    bags_mp4_reader *whole, *video;
    bags_value all;
    assert_opens(whole, bags_mp4_reader_open(blob, NULL, &said));
    assert_ok(bags_mp4_reader_get(whole, 0, UINT64_MAX, 1, &scratch, &all, &said));
    bags_reader *reader = open_videos(how);
    video = bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &said);
    if (!video)
        fail_msg("%s: %s", name, said.message);
    const bags_mp4_info *info = bags_mp4_reader_info(video);
    assert_memory_equal(info, bags_mp4_reader_info(whole), sizeof *info);
    uint64_t frames = info->frames;
    for (uint64_t i = 0; i < frames; i++)
        check_frames(video, &all, i, i + 1); /* a decoder that continues */
    for (uint64_t i = 0; i < frames; i++) {
        uint64_t at = steps(i, frames);
        check_frames(video, &all, at, at + 1);
        if (i % 8 == 0)
            check_frames(video, &all, at, at + 4);
        if (i % 16 == 0)
            bags_mp4_reader_idle(video);
    }
    check_frames(video, &all, 0, UINT64_MAX);
    bags_mp4_reader_close(video);
    bags_mp4_reader_close(whole);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
}

static const char *const clips[] = {"video.mp4", "av1.mp4", "h264.mkv",
    "h264_cut_open_gop.mkv", "h264_cut_open_gop.mp4", "h264_422.mp4", "h264_bt709.mp4",
    "h264_edit_list.mp4", "h264_fragments.mp4", "h264_full_range.mp4",
    "h264_no_key_at_start.mp4", "h264_open_gop.mp4", "h264_variable_rate.mp4",
    "hevc_cut_open_gop.mp4", "hevc_10_bit.mp4", "hevc_no_key_at_start.mp4",
    "hevc_open_gop.mp4", "mpeg4_b_frames.mp4", "mpeg4_no_key_at_start.mp4",
    "mpeg4_odd.mp4", "vp8_hidden.webm", "vp9_hidden.mp4", "vp9_odd.webm"};
#define CLIPS (sizeof clips / sizeof *clips)

static bags_view read_clip(const char *name) {
    char path[256];
    snprintf(path, sizeof path, VIDEO "%s", name);
    return read_file(path);
}

static void frames_equal_those_of_the_video_in_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIPS; i++) {
        bags_view blob = read_clip(clips[i]);
        if (can_decode(blob)) {
            write_video(blob, true);
            for (int how = 0; how < WAYS; how++)
                check_video(clips[i], blob, (way)how);
        } else {
            print_message("skipped: %s: no decoder\n", clips[i]);
        }
        drop(blob);
    }
}

/* ---- what is read ---- */

/* Smooth images that move, with noise, so that a GOP is not small. */
static bags_view encode(
    const char *type, uint64_t frames, uint32_t interval, bags_buffer *buffer) {
    static const uint64_t height = 96, width = 160;
    bags_mp4_options options = {0};
    bags_codec codec = bags_codec_mp4;
    bags_view blob = {NULL, 0};
    uint64_t shape[4] = {frames, height, width, 3};
    size_t size = (size_t)(frames * height * width * 3);
    unsigned char *data = (unsigned char *)malloc(size);
    bags_registry *registry;
    fill(data, size, frames);
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)((data[i] & 31) + i / 977 % 200);
    options.key_interval = interval;
    codec.user = &options;
    assert_opens(registry, bags_registry_create(NULL, &said));
    assert_ok(bags_registry_add(registry, &codec, &said));
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    bags_code code = bags_encode(registry, type, &value, buffer, &blob, &said);
    bags_registry_free(registry);
    free(data);
    if (code)
        print_message("skipped: %s: %s\n", type, said.message);
    return blob;
}

/* GOPs without leading pictures: of each its first frame, and its bytes. */
typedef struct gops {
    uint32_t frames, count, first[64];
    uint64_t size[64];
} gops;

static gops measure(bags_view blob) {
    gops found = {0};
    mp4_track track;
    mp4_sample sample;
    assert_true(mp4_track_open(&track, mp4_find(blob, "moov")));
    found.frames = (uint32_t)track.places.sizes.count;
    for (uint32_t i = 0; i < found.frames; i++) {
        assert_true(mp4_track_next(&track, &sample));
        if (sample.is_key)
            found.first[found.count++] = i;
        found.size[found.count - 1] += sample.size;
    }
    found.first[found.count] = found.frames;
    return found;
}

static void a_frame_takes_two_ranges(void **state) {
    static const char *const types[] = {"mp4(15,h264)", "mp4"};
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (uint32_t interval = 2; interval <= 12; interval += 10) {
            bags_buffer buffer = {0}, scratch = {0};
            bags_value value;
            bags_view blob = encode(types[k], 36, interval, &buffer);
            if (!blob.data)
                continue;
            write_video(blob, false);
            gops all = measure(blob);
            assert_true(all.count >= 36 / interval);
            bags_view rest = blob, box; /* moov is before the frames */
            char type[4];
            assert_true(mp4_box(&rest, type, &box) && mp4_box(&rest, type, &box));
            assert_memory_equal(type, "moov", 4);
            bags_reader *reader = open_videos(FAR);
            for (uint64_t i = 0; i < 36; i++) {
                bags_mp4_reader *video;
                uint64_t frame = steps(i, 36);
                uint32_t gop = 0;
                while (all.first[gop + 1] <= frame)
                    gop++;
                ranges_read = 0;
                bytes_read = 0;
                assert_opens(
                    video, bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &said));
                assert_true(ranges_read <= 1 && bytes_read <= 16384);
                bytes_read = 0;
                assert_ok(bags_mp4_reader_get(
                    video, frame, frame + 1, 1, &scratch, &value, &said));
                assert_true(ranges_read <= 2 && bytes_read <= all.size[gop]);
                /* The others of the GOP are there. Only the first GOP is read again: its
                 * start came with moov. */
                bytes_read = 0;
                for (uint64_t t = all.first[gop]; t < all.first[gop + 1]; t++)
                    assert_ok(bags_mp4_reader_get(
                        video, t, t + 1, 1, &scratch, &value, &said));
                assert_true(bytes_read <= (gop ? 0 : all.size[0]));
                bags_mp4_reader_close(video);
            }
            bags_reader_close(reader);
            bags_buffer_free(&buffer);
            bags_buffer_free(&scratch);
        }
}

static void moov_may_be_at_the_end(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    bags_mp4_reader *video;
    (void)state;
    bags_view blob = read_clip("video.mp4"), moov = mp4_find(blob, "moov");
    bool is_last = moov.data + moov.size == blob.data + blob.size;
    assert_true(is_last);
    write_video(blob, false);
    bags_reader *reader = open_videos(FAR);
    ranges_read = 0;
    bytes_read = 0;
    assert_opens(video, bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &said));
    assert_int_equal(ranges_read, 2);
    assert_true(bytes_read < 16384 + moov.size + 16);
    assert_ok(bags_mp4_reader_get(video, 100, 101, 1, &scratch, &value, &said));
    assert_int_equal(ranges_read, 3);
    bags_mp4_reader_close(video);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
    drop(blob);
}

/* ---- what may be wrong ---- */

static void an_empty_blob_has_no_frames(void **state) {
    bags_view empty = {(const unsigned char *)"", 0};
    bags_mp4_reader *video;
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    write_video(empty, true);
    for (int how = 0; how < WAYS; how++) {
        bags_reader *reader = open_videos((way)how);
        assert_opens(video, bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &said));
        assert_int_equal(bags_mp4_reader_info(video)->frames, 0);
        assert_ok(bags_mp4_reader_get(video, 0, 9, 1, &scratch, &value, &said));
        assert_int_equal(value.size, 0);
        bags_mp4_reader_close(video);
        assert_refused(
            BAGS_ERROR_RANGE, bags_mp4_reader_open_blob(reader, 1, 0, 0, NULL, &said));
        assert_refused(
            BAGS_ERROR_FIELD, bags_mp4_reader_open_blob(reader, 0, 1, 0, NULL, &said));
        assert_refused(
            BAGS_ERROR_RANGE, bags_mp4_reader_open_blob(reader, 0, 0, 1, NULL, &said));
        bags_reader_close(reader);
    }
    bags_buffer_free(&scratch);
}

static void a_read_that_fails_is_its_own_error(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    bags_mp4_reader *video;
    (void)state;
    bags_view blob = read_clip("video.mp4");
    write_video(blob, false);
    bags_reader *reader = open_videos(FAR);
    assert_opens(video, bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &said));
    read_fault = EIO;
    assert_fails(
        BAGS_ERROR_IO, bags_mp4_reader_get(video, 70, 71, 1, &scratch, &value, &said));
    assert_refused(
        BAGS_ERROR_IO, bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &said));
    read_fault = 0;
    assert_ok(bags_mp4_reader_get(video, 70, 71, 1, &scratch, &value, &said));
    bags_mp4_reader_close(video);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
    drop(blob);
}

/* Each frame of a truncated blob is right or an error. */
static void a_blob_that_is_cut_is_an_error(void **state) {
    bags_buffer scratch = {0}, buffer = {0};
    bags_value all, value;
    bags_mp4_reader *whole;
    (void)state;
    bags_view blob = encode("mp4", 12, 4, &buffer);
    assert_non_null(blob.data);
    assert_opens(whole, bags_mp4_reader_open(blob, NULL, &said));
    assert_ok(bags_mp4_reader_get(whole, 0, 12, 1, &scratch, &all, &said));
    size_t frame = all.size / 12, step = blob.size / (getenv("BAGS_QUICK") ? 20 : 200);
    bags_buffer other = {0};
    for (size_t size = 1; size < blob.size; size += step) {
        bags_view cut = {blob.data, size};
        write_video(cut, false);
        for (int how = 0; how <= FAR; how++) {
            bags_error err;
            bags_reader *reader = open_videos((way)how);
            bags_mp4_reader *video =
                bags_mp4_reader_open_blob(reader, 0, 0, 0, NULL, &err);
            bool damaged = !video;
            for (uint64_t i = 0; video && i < 12; i++) {
                bags_code code =
                    bags_mp4_reader_get(video, i, i + 1, 1, &other, &value, &err);
                damaged = damaged || code;
                if (!code)
                    assert_memory_equal(
                        value.data, (const char *)all.data + i * frame, frame);
            }
            assert_true(damaged);
            assert_non_null(err.message);
            bags_mp4_reader_close(video);
            bags_reader_close(reader);
        }
    }
    bags_mp4_reader_close(whole);
    bags_buffer_free(&scratch);
    bags_buffer_free(&other);
    bags_buffer_free(&buffer);
}

/* Every byte of moov is set to several values: whatever the tables claim, nothing but an
 * error happens. */
static void tables_that_lie_do_no_harm(void **state) {
    static const unsigned char values[] = {0, 1, 127, 128, 255};
    bags_buffer scratch = {0};
    (void)state;
    bags_view blob = read_clip("h264_edit_list.mp4"), moov = mp4_find(blob, "moov");
    unsigned char *copy = (unsigned char *)(uintptr_t)blob.data;
    size_t start = (size_t)(moov.data - blob.data),
           step = getenv("BAGS_QUICK") ? 41 : 3;
    for (size_t i = start; i < start + moov.size; i += step)
        for (size_t k = 0; k < sizeof values; k++) {
            unsigned char was = copy[i];
            bags_error err;
            bags_value value;
            copy[i] = values[k];
            write_video(blob, false);
            bags_reader *reader = open_videos(k % 2 ? FAR : MAPPED);
            bags_mp4_options options = {0};
            options.max_size = 1 << 22;
            bags_mp4_reader *video =
                bags_mp4_reader_open_blob(reader, 0, 0, 0, &options, &err);
            uint64_t frames = video ? bags_mp4_reader_info(video)->frames : 0;
            for (uint64_t t = 0; t < frames && t < 48; t += 13)
                (void)bags_mp4_reader_get(video, t, t + 2, 1, &scratch, &value, &err);
            bags_mp4_reader_close(video);
            bags_reader_close(reader);
            copy[i] = was;
        }
    bags_buffer_free(&scratch);
    drop(blob);
}

static void the_index_is_moved_to_the_front(void **state) {
    (void)state;
    static const char *const names[] = {"video.mp4", "h264_edit_list.mp4",
        "mpeg4_odd.mp4", "hevc_open_gop.mp4", "av1.mp4", "vp9_hidden.mp4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bags_view blob = read_clip(names[i]);
        if (can_decode(blob)) {
            unsigned char *moved = (unsigned char *)malloc(blob.size);
            unsigned char *again = (unsigned char *)malloc(blob.size);
            bags_view out = {moved, blob.size};
            assert_true(mp4_index_first(blob, moved));
            assert_true(mp4_index_first(out, again)); /* it stays there */
            assert_memory_equal(moved, again, blob.size);
            bags_view box;
            char type[4];
            assert_true(mp4_box(&out, type, &box) && mp4_box(&out, type, &box));
            assert_memory_equal(type, "moov", 4);
            out.data = moved;
            out.size = blob.size;
            write_video(out, true);
            for (int how = 0; how < WAYS; how++)
                check_video(names[i], blob, (way)how); /* equal to the other's frames */
            free(moved);
            free(again);
        }
        drop(blob);
    }
}

/* ---- the cache ---- */

/* Videos of several lengths, as a sequence and as a plain field, and with as many numbers. */
static void write_several(bags_view *blobs, size_t count) {
    const bags_field fields[] = {{"a", "mp4"}, {"b", "mp4[]"}, {"s", "i64[]"}};
    bags_value numbers[100];
    bags_writer_options options = {0};
    bags_writer *writer;
    bags_value values[8];
    if (exists(at("ds")))
        remove_tree(at("ds"));
    options.no_sync = options.any_type = true;
    assert_opens(writer, bags_writer_open(at("ds"), fields, 3, &options, &said));
    for (size_t i = 0; i < 100; i++)
        numbers[i] = bags_int((int64_t)i);
    for (size_t i = 0; i < count; i++)
        values[i] = bags_blob(blobs[i].data, blobs[i].size);
    for (size_t i = 0; i < count; i++) {
        bags_mp4_info info;
        assert_ok(bags_mp4_probe(blobs[i], NULL, &info, &said));
        bags_entry entries[] = {{"a", &values[i], 1}, {"b", values, count},
            {"s", numbers, (size_t)info.frames}};
        assert_ok(bags_writer_append(writer, entries, 3, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static void a_cache_returns_the_video_of_the_blob(void **state) {
    enum { VIDEOS = 5 };
    bags_buffer buffers[VIDEOS], scratch = {0};
    bags_view blobs[VIDEOS];
    bags_value all[VIDEOS];
    bags_buffer decoded[VIDEOS];
    (void)state;
    for (size_t i = 0; i < VIDEOS; i++) {
        bags_mp4_reader *whole;
        memset(&buffers[i], 0, sizeof buffers[i]);
        memset(&decoded[i], 0, sizeof decoded[i]);
        blobs[i] = encode("mp4", 6 + 5 * i, 4, &buffers[i]);
        assert_non_null(blobs[i].data);
        assert_opens(whole, bags_mp4_reader_open(blobs[i], NULL, &said));
        assert_ok(
            bags_mp4_reader_get(whole, 0, UINT64_MAX, 1, &decoded[i], &all[i], &said));
        bags_mp4_reader_close(whole);
    }
    write_several(blobs, VIDEOS);
    for (int bounds = 0; bounds < 3; bounds++) {
        bags_mp4_cache_options options = {0};
        bags_mp4_cache *cache;
        bags_reader *reader = open_videos(FAR);
        options.max_size = bounds == 1 ? 1 : bounds == 2 ? 9000 : 0;
        options.decoders = bounds == 0 ? 0 : (size_t)bounds;
        assert_opens(cache, bags_mp4_cache_open(&options, &said));
        unsigned first = 0;
        ranges_read = 0;
        for (uint64_t i = 0; i < 600; i++) {
            uint64_t n = i * 31 % 97, k = n % VIDEOS, t = n % (6 + 5 * k);
            bool item = i % 3 == 0;
            bags_mp4_reader *video;
            assert_opens(video, bags_mp4_cache_get(cache, reader, item ? n % VIDEOS : k,
                                    item, item ? k : 0, &said));
            assert_int_equal(bags_mp4_reader_info(video)->frames, 6 + 5 * k);
            check_frames(video, &all[k], t, t + 1);
            if (i == 299)
                first = ranges_read;
        }
        /* All have been opened by then. Dropped videos are opened again. */
        if (bounds == 0)
            assert_true(ranges_read - first <= 300);
        assert_true(bounds != 1 || ranges_read >= 600);
        assert_refused(
            BAGS_ERROR_RANGE, bags_mp4_cache_get(cache, reader, VIDEOS, 0, 0, &said));
        bags_mp4_cache_close(cache);
        bags_reader_close(reader);
    }
    for (size_t i = 0; i < VIDEOS; i++) {
        bags_buffer_free(&buffers[i]);
        bags_buffer_free(&decoded[i]);
    }
    bags_buffer_free(&scratch);
}

/* ---- the loader ---- */

/* The frames of an episode's video are the items of its field. */
static void a_loader_reads_frames(void **state) {
    static const bags_loader_videos videos = {bags_mp4_cache_open, bags_mp4_cache_close,
        bags_mp4_cache_get, bags_mp4_reader_info, bags_mp4_reader_get_into,
        bags_mp4_reader_part};
    static const int64_t around[] = {-1, 0, 3};
    enum { VIDEOS = 3 };
    bags_buffer buffers[VIDEOS], decoded[VIDEOS];
    bags_view blobs[VIDEOS];
    bags_value all[VIDEOS];
    uint64_t total = 0;
    (void)state;
    for (size_t i = 0; i < VIDEOS; i++) {
        bags_mp4_reader *whole;
        memset(&buffers[i], 0, sizeof buffers[i]);
        memset(&decoded[i], 0, sizeof decoded[i]);
        blobs[i] = encode("mp4", 9 - 2 * i, 4, &buffers[i]);
        assert_opens(whole, bags_mp4_reader_open(blobs[i], NULL, &said));
        assert_ok(
            bags_mp4_reader_get(whole, 0, UINT64_MAX, 1, &decoded[i], &all[i], &said));
        bags_mp4_reader_close(whole);
        total += 9 - 2 * i;
    }
    write_several(blobs, VIDEOS);
    bags_reader *reader = open_videos(MAPPED);
    bags_loader_options options = {0};
    bags_frames_options frames = {0};
    bags_load_field field = {0};
    frames.clock = "s";
    field.name = "a";
    field.offsets = around;
    field.offset_count = 3;
    field.dtype = BAGS_DTYPE_UINT8;
    field.dims = 3;
    field.shape = all[0].shape + 1;
    options.fields = &field;
    options.field_count = 1;
    options.frames = &frames;
    options.videos = &videos;
    options.threads = 2;
    options.batch = 4;
    options.epochs = 1;
    const bags_reader *readers[] = {reader};
    bags_loader *loader;
    const bags_batch *batch = NULL;
    size_t size = (size_t)(all[0].shape[1] * all[0].shape[2] * 3);
    assert_opens(loader, bags_loader_open(readers, 1, &options, &said));
    for (;;) {
        assert_ok(bags_loader_next(loader, &batch, &said));
        if (!batch)
            break;
        const unsigned char *at = (const unsigned char *)batch->tensors[0].data;
        total -= batch->length;
        for (size_t i = 0; i < batch->length; i++)
            for (size_t k = 0; k < 3; k++, at += size) {
                const bags_value *video = &all[batch->picks[i].index];
                int64_t frame = (int64_t)batch->frames[i] + around[k];
                int64_t last = (int64_t)video->shape[0] - 1;
                frame = frame < 0 ? 0 : frame > last ? last : frame;
                assert_memory_equal(
                    at, (const char *)video->data + (size_t)frame * size, size);
            }
    }
    assert_true(total == 0);
    bags_loader_close(loader);
    /* Without the functions, a video is a plain field. */
    options.videos = NULL;
    assert_refused(BAGS_ERROR_ARGUMENT, bags_loader_open(readers, 1, &options, &said));
    bags_reader_close(reader);
    for (size_t i = 0; i < VIDEOS; i++) {
        bags_buffer_free(&buffers[i]);
        bags_buffer_free(&decoded[i]);
    }
}

/* ---- round trips ---- */

/* Hooks that read many ranges, and keep the last: a read of any other is a round trip. */
#define KEPT 256
static struct {
    void *file;
    uint64_t start, stop;
} kept[KEPT];
static size_t requests, trips;

static void trip_read_many(void *user, bags_io_read *reads, size_t count) {
    bool waits = false;
    for (size_t i = 0; i < count; i++) {
        uint64_t start = reads[i].offset, stop = start + reads[i].size;
        bool known = false;
        for (size_t k = 0; k < KEPT && !known; k++)
            known = kept[k].file == reads[i].file && kept[k].start <= start &&
                    stop <= kept[k].stop;
        waits = waits || !known;
        if (!known) {
            kept[requests % KEPT].file = reads[i].file;
            kept[requests % KEPT].start = start;
            kept[requests++ % KEPT].stop = stop;
        }
        if (reads[i].data)
            bags_io_local()->read_at(user, reads[i].file, start, reads[i].data,
                reads[i].size, &reads[i].done);
    }
    trips += waits;
}

static void a_batch_takes_three_round_trips(void **state) {
    static const bags_loader_videos videos = {bags_mp4_cache_open, bags_mp4_cache_close,
        bags_mp4_cache_get, bags_mp4_reader_info, bags_mp4_reader_get_into,
        bags_mp4_reader_part};
    static const int64_t around[] = {-1, 0};
    enum { VIDEOS = 8 };
    bags_buffer buffers[VIDEOS];
    bags_view blobs[VIDEOS];
    (void)state;
    for (size_t i = 0; i < VIDEOS; i++) {
        memset(&buffers[i], 0, sizeof buffers[i]);
        blobs[i] = encode("mp4", 60 + i, 4, &buffers[i]);
        assert_true(blobs[i].size > 2 * 16384);
    }
    write_several(blobs, VIDEOS);
    bags_io far = *bags_io_local();
    far.map = NULL;
    far.read_many = trip_read_many;
    bags_reader_options reading = {0};
    bags_reader *reader;
    reading.env.io = &far;
    reading.cache_index = true;
    assert_opens(reader, bags_reader_open(at("ds"), &reading, &said));
    bags_loader_options options = {0};
    bags_frames_options frames = {0};
    bags_load_field field = {0};
    frames.clock = "s";
    field.name = "a";
    field.offsets = around;
    field.offset_count = 2;
    options.fields = &field;
    options.field_count = 1;
    options.frames = &frames;
    options.videos = &videos;
    options.threads = 1;
    options.ahead = 1;
    options.batch = 32;
    options.prefetch = true;
    const bags_reader *readers[] = {reader};
    bags_loader *loader;
    const bags_batch *batch = NULL;
    assert_opens(loader, bags_loader_open(readers, 1, &options, &said));
    size_t before = 0;
    for (int i = 0; i < 40; i++) {
        if (i == 10) /* all videos have been opened */
            before = trips;
        assert_ok(bags_loader_next(loader, &batch, &said));
        assert_non_null(batch);
    }
    bags_loader_close(loader); /* a batch that was loaded in advance counts, too */
    print_message("%.2f round trips per batch\n", (double)(trips - before) / 30);
    assert_true(trips - before <= 3 * 30);
    bags_reader_close(reader);
    for (size_t i = 0; i < VIDEOS; i++)
        bags_buffer_free(&buffers[i]);
}

int main(void) {
    av_log_set_level(AV_LOG_QUIET);
    const struct CMUnitTest tests[] = {
        TEST(frames_equal_those_of_the_video_in_memory),
        TEST(a_frame_takes_two_ranges),
        TEST(moov_may_be_at_the_end),
        TEST(an_empty_blob_has_no_frames),
        TEST(a_read_that_fails_is_its_own_error),
        TEST(a_blob_that_is_cut_is_an_error),
        TEST(tables_that_lie_do_no_harm),
        TEST(the_index_is_moved_to_the_front),
        TEST(a_cache_returns_the_video_of_the_blob),
        TEST(a_loader_reads_frames),
        TEST(a_batch_takes_three_round_trips),
    };
    return cmocka_run_group_tests_name("mp4_parts", tests, NULL, NULL);
}
