/* formats/jpeg.c beside the same calls of libjpeg made by hand, and what scaled
 * and cropped decoding save. One photograph, 640 x 427, and a thumbnail. */
#define PICTURES_WITHOUT_CMOCKA
#include "pictures.h"
#include "ratio.h"

#include <jpeglib.h>

typedef struct job {
    void *state;
    bags_view blob;
    bags_value value;
    uint64_t shape[3];
    bags_buffer scratch;
    bags_jpeg_options options;
    bags_image image;
    unsigned char *pixels;
    size_t size;
} job;

/* The library's default handler ends the program, which suits a benchmark. */
static void decode_theirs(void *argument) {
    job *j = (job *)argument;
    struct jpeg_decompress_struct library;
    struct jpeg_error_mgr errors;
    library.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&library);
    jpeg_mem_src(&library, j->blob.data, (unsigned long)j->blob.size);
    jpeg_read_header(&library, TRUE);
    library.scale_num = 1;
    library.scale_denom = j->options.scale ? j->options.scale : 1;
    if (j->options.channels == 1)
        library.out_color_space = JCS_GRAYSCALE;
    jpeg_start_decompress(&library);
    size_t row = library.output_width * (size_t)library.output_components;
    while (library.output_scanline < library.output_height) {
        JSAMPROW rows[16];
        for (size_t i = 0; i < 16; i++)
            rows[i] = j->pixels + (library.output_scanline + i) * row;
        JDIMENSION left = library.output_height - library.output_scanline;
        jpeg_read_scanlines(&library, rows, left < 16 ? left : 16);
    }
    jpeg_finish_decompress(&library);
    jpeg_destroy_decompress(&library);
}

static void decode_ours(void *argument) {
    job *j = (job *)argument;
    bags_error err;
    if (bags_jpeg_decode(j->blob, &j->options, j->pixels, j->size, 0, &err))
        fail_msg("%s\n", err.message);
}

static void decode_codec(void *argument) {
    job *j = (job *)argument;
    bags_error err;
    bags_value value;
    if (bags_codec_jpeg.decode(j->state, j->blob, &j->scratch, &value, &err))
        fail_msg("%s\n", err.message);
}

static void encode_theirs(void *argument) {
    job *j = (job *)argument;
    static unsigned char room[1 << 20];
    unsigned char *out = room;
    unsigned long size = sizeof room;
    struct jpeg_compress_struct library;
    struct jpeg_error_mgr errors;
    library.err = jpeg_std_error(&errors);
    jpeg_create_compress(&library);
    jpeg_mem_dest(&library, &out, &size);
    library.image_width = j->image.width;
    library.image_height = j->image.height;
    library.input_components = (int)j->image.channels;
    library.in_color_space = j->image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&library);
    jpeg_set_quality(&library, 75, TRUE);
    jpeg_start_compress(&library, TRUE);
    size_t row = row_size(&j->image);
    while (library.next_scanline < library.image_height) {
        JSAMPROW at = j->pixels + library.next_scanline * row;
        jpeg_write_scanlines(&library, &at, 1);
    }
    jpeg_finish_compress(&library);
    jpeg_destroy_compress(&library);
}

static void encode_ours(void *argument) {
    job *j = (job *)argument;
    bags_error err;
    bags_view blob;
    if (bags_codec_jpeg.encode(j->state, &j->value, &j->scratch, &blob, &err))
        fail_msg("%s\n", err.message);
}

static void whole(void *argument) {
    job *j = (job *)argument;
    bags_jpeg_options none = {0};
    if (bags_jpeg_decode(j->blob, &none, j->pixels, j->size, 0, NULL))
        fail_msg("%s\n", "the whole picture");
}

static void probe(void *argument) {
    job *j = (job *)argument;
    bags_image image;
    if (bags_jpeg_probe(j->blob, NULL, &image, NULL))
        fail_msg("%s\n", "the header");
}

static void of_file(const char *directory, const char *name) {
    job j;
    memset(&j, 0, sizeof j);
    j.state = opened(&bags_codec_jpeg, "jpeg");
    j.blob = load_part(directory, name, ".jpg");
    bags_jpeg_probe(j.blob, NULL, &j.image, NULL);
    j.size = picture_size(&j.image);
    j.pixels = (unsigned char *)malloc(j.size + 16 * row_size(&j.image));
    decode_ours(&j);
    j.value = value_of(&j.image, j.pixels, j.shape);
    printf("\n%s, %u x %u\n%-36s %13s %13s   ratio\n", name, j.image.width,
        j.image.height, "", "ours", "libjpeg");
    compare("encode", encode_ours, encode_theirs, &j);
    compare("decode, into the caller's memory", decode_ours, decode_theirs, &j);
    compare("decode, as a codec", decode_codec, decode_theirs, &j);
    j.options.channels = 1;
    compare("decode to gray", decode_ours, decode_theirs, &j);
    j.options.channels = 0;
    for (j.options.scale = 2; j.options.scale <= 8; j.options.scale *= 2) {
        char text[64];
        snprintf(text, sizeof text, "decode to 1/%u", j.options.scale);
        compare(text, decode_ours, decode_theirs, &j);
    }
    j.options.scale = 0;
    printf("%-36s %13s %13s   ratio\n", "", "a part", "all of it");
    compare("probe", probe, whole, &j);
    for (j.options.scale = 2; j.options.scale <= 8; j.options.scale *= 2) {
        char text[64];
        snprintf(text, sizeof text, "decode to 1/%u", j.options.scale);
        compare(text, decode_ours, whole, &j);
    }
    j.options.scale = 0;
    if (j.image.width > 300 && j.image.height > 300) {
        j.options.width = j.options.height = 224;
        compare("224 x 224, upper left", decode_ours, whole, &j);
        j.options.left = (j.image.width - 224) / 2;
        j.options.top = (j.image.height - 224) / 2;
        compare("224 x 224, middle", decode_ours, whole, &j);
        j.options.left = j.image.width - 224;
        j.options.top = j.image.height - 224;
        compare("224 x 224, lower right", decode_ours, whole, &j);
    }
    bags_codec_jpeg.close(j.state);
    bags_buffer_free(&j.scratch);
    unload(j.blob);
    free(j.pixels);
}

int main(void) {
    of_file(PHOTOS, "china");
    of_file(IMAGES, "420");
    of_file(IMAGES, "gray");
    return 0;
}
