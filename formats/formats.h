/*
 * formats.h - codecs for bags.h on the libraries of their fields.
 *
 * Each format is one file, on one library, and stands alone: copy bags.h and
 * the directory formats/ beside it, and compile the files that you need with
 * your program. None needs another.
 *
 *     formats/jpeg.c     jpeg jpg          libjpeg-turbo    -ljpeg
 *     formats/png.c      png               libpng           -lpng
 *
 * A codec serves its types once it is in the registry that a reader or a writer
 * was opened with:
 *
 *     bags_codecs *codecs = bags_codecs_create(NULL, &err);
 *     bags_codecs_add(codecs, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.codecs = codecs;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 *
 * What bags.h says of errors, ownership, threads and untrusted files holds here
 * too. No function prints, ends the program or keeps anything between calls;
 * all may be called from several threads at once.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "../bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * What JPEG and PNG share.
 * ====================================================================== */

/* ========================================================================
 * >>jpeg
 * ====================================================================== */

extern const bags_codec bags_codec_jpeg;

/* ========================================================================
 * >>png
 * ====================================================================== */

extern const bags_codec bags_codec_png;

/* end of >>png */

/* ========================================================================
 * >>mp4
 * Video in memory, on FFmpeg's libavformat, libavcodec and libswscale:
 * formats/mp4.c. Frames are uint8, T x H x W x 3, RGB. No temporary files.
 * ====================================================================== */

/*
 * Types mp4, mp4(FPS), mp4(FPS,CODEC), webm, webm(FPS), webm(FPS,CODEC).
 *
 *   FPS    frames a second, as 15 or 12.5; 29.97 and its kin are the rates of
 *          television, 30000/1001. Default: mp4 15, webm 20.
 *   CODEC  h264, hevc, mpeg4, vp9 or av1, as the build of FFmpeg offers; webm:
 *          vp9, av1. Default: mp4 mpeg4, webm vp9.
 *
 * Values are BAGS_ARRAY of BAGS_UINT8, T x H x W x 3. No frames make a blob of
 * no bytes, and such a blob is 0 x 0 x 0 x 3. Reading takes whatever container
 * and codec the blob has, also vp8, whatever its type says. Sound is left out;
 * marks that ask a player to rotate the picture are left alone.
 *
 * For other options, or limits of your own, copy the codec and let its `user`
 * point to a bags_mp4_options that lives as long as the registry. Where a type
 * has arguments, they come before the options.
 */
extern const bags_codec bags_codec_mp4;

typedef struct bags_mp4_options {
    /* To write. */
    const char *codec;     /* as CODEC above; NULL: its default */
    uint32_t fps_num;      /* frames a second are fps_num / fps_den; */
    uint32_t fps_den;      /* both 0: the default; fps_den 0: 1 */
    bool webm;             /* a WebM file, not MP4 */
    uint64_t bit_rate;     /* bits a second; 0: 1,024,000, as Python's bags */
    uint32_t key_interval; /* frames from one keyframe to the next, at most;
                              0: the encoder's default */
    /* To read. */
    uint64_t max_pixels; /* H x W of what is read; 0: 2^26 */
    uint64_t max_size;   /* bytes of the frames of one call; 0: 2^32 */
    /* Both. */
    uint32_t threads; /* that one video uses; 0: 1 */
} bags_mp4_options;

typedef struct bags_mp4_info {
    uint64_t frames; /* counted, not what the header says */
    uint64_t height;
    uint64_t width;
    uint32_t fps_num; /* frames a second on average, fps_num / fps_den; */
    uint32_t fps_den; /* both 0 if it does not say */
    char codec[16];   /* "mpeg4" */
} bags_mp4_info;

/*
 * What a video is, without decoding a picture. A blob of no bytes has no
 * frames. options may be NULL.
 *
 * Frames are counted as they are shown: those that an edit list hides, and
 * those before the first keyframe, which nobody can decode, are none.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  no MP4 or WebM file, or one that contradicts itself
 *   BAGS_ERROR_TYPE     a codec that is not read, or no video in it
 *   BAGS_ERROR_LIMIT    more pixels than max_pixels
 *   BAGS_ERROR_MEMORY
 *
 * Cost: reads the blob once.
 */
bags_code bags_mp4_probe(bags_bytes blob,
    const bags_mp4_options *options, bags_mp4_info *info, bags_error *err);

typedef struct bags_mp4_reader bags_mp4_reader;

/*
 * Open a video, to read some of its frames or all. The blob is borrowed: it
 * must stay as it is until the reader is closed. options may be NULL and are
 * copied. NULL on failure, as bags_mp4_probe.
 *
 * Threads: one at a time for each reader; any number of readers, also of one
 * blob. Cost: that of bags_mp4_probe.
 */
bags_mp4_reader *bags_mp4_reader_open(bags_bytes blob,
    const bags_mp4_options *options, bags_error *err);

/* Release a reader. NULL is accepted. */
void bags_mp4_reader_close(bags_mp4_reader *reader);

/* What the video is. Borrowed: valid until the reader is closed. */
const bags_mp4_info *bags_mp4_reader_info(
    const bags_mp4_reader *reader);

/*
 * Read the frames start, start + step, ... below stop, in the order in which
 * they are shown. Ranges are as everywhere: see the top of bags.h. step 0: 1.
 *
 * *out borrows the scratch: valid until it is used again or freed.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    start > stop
 *   BAGS_ERROR_CORRUPT  a frame cannot be decoded, or has another size than
 *                       the video; err names it
 *   BAGS_ERROR_LIMIT    more bytes than max_size
 *   BAGS_ERROR_TYPE     no decoder for it in this build of FFmpeg
 *   BAGS_ERROR_MEMORY
 *
 * Cost: decodes from the keyframe before, or goes on where the last call
 * stopped, whichever is nearer.
 */
bags_code bags_mp4_reader_get(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, bags_buffer *scratch, bags_value *out,
    bags_error *err);

/*
 * The same into memory of the caller's, `size` bytes at `data`. *frames, which
 * may be NULL, receives how many were read. BAGS_ERROR_ARGUMENT if they do not
 * fit. After another failure the memory's content is undefined.
 */
bags_code bags_mp4_reader_get_into(bags_mp4_reader *reader,
    uint64_t start, uint64_t stop, uint64_t step, void *data, size_t size,
    uint64_t *frames, bags_error *err);

typedef struct bags_mp4_writer bags_mp4_writer;

/*
 * Begin a video that is made frame by frame. It grows in `buffer`, which is
 * borrowed and must not be touched until the writer is closed; more memory than
 * the encoded video and a few frames is not taken. options may be NULL.
 *
 * Returns the writer, to be ended by bags_mp4_writer_close or _abort, or NULL:
 *   BAGS_ERROR_TYPE   no such encoder in this build of FFmpeg; err names those
 *                     that it has
 *   BAGS_ERROR_VALUE  the encoder cannot do this size or rate (hevc by x265:
 *                     from 16 x 16)
 *   BAGS_ERROR_MEMORY
 *
 * Odd sizes are right: h264 and hevc, whose usual 4:2:0 pictures are even, then
 * store 4:4:4. Threads: one at a time.
 */
bags_mp4_writer *bags_mp4_writer_open(uint64_t height, uint64_t width,
    const bags_mp4_options *options, bags_buffer *buffer, bags_error *err);

/* Add a frame, height x width x 3 bytes of RGB, which are used up before the
 * call returns. BAGS_OK, BAGS_ERROR_VALUE or BAGS_ERROR_MEMORY; after a failure
 * the writer keeps it, and every later call repeats it. */
bags_code bags_mp4_writer_add(bags_mp4_writer *writer,
    const void *frame, bags_error *err);

/*
 * Finish the video and release the writer, also on failure. *blob views the
 * buffer; without a frame it has no bytes. Repeats the first failure. NULL is
 * accepted, and is BAGS_OK.
 */
bags_code bags_mp4_writer_close(bags_mp4_writer *writer,
    bags_bytes *blob, bags_error *err);

/* Release a writer without finishing. NULL is accepted. */
void bags_mp4_writer_abort(bags_mp4_writer *writer);

/*
 * Let FFmpeg print nothing more, in the whole program. Without it, what is
 * wrong with a video is only in the bags_error, but for a few complaints about
 * hostile files that some of FFmpeg's helpers print by themselves. For a
 * program that owns its standard error; a library leaves this to its users.
 */
void bags_mp4_silence(void);

/* end of >>mp4 */

#ifdef __cplusplus
}
#endif

#endif /* BAGS_FORMATS_H */
