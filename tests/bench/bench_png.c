/* formats/png.c beside the same calls of libpng made by hand: a photograph,
 * 640 x 427, which is a PNG for once, and small images. */
#define PICTURES_WITHOUT_CMOCKA
#include "pictures.h"
#include "ratio.h"

#include <png.h>

typedef struct job {
    void *state;
    bags_view blob;
    bags_value value;
    uint64_t shape[3];
    bags_buffer scratch;
    bags_image image;
    unsigned char *pixels;
    size_t size;
    size_t at; /* in what libpng reads or writes by hand */
    int level;
} job;

static unsigned char room[4 << 20];

static void take(png_structp library, png_bytep data, size_t size) {
    job *j = (job *)png_get_io_ptr(library);
    memcpy(data, j->blob.data + j->at, size);
    j->at += size;
}

static void give(png_structp library, png_bytep data, size_t size) {
    job *j = (job *)png_get_io_ptr(library);
    memcpy(room + j->at, data, size);
    j->at += size;
}

static void flush(png_structp library) { (void)library; }

/* Without a handler of ours an error ends the program, which suits here. */
static void decode_theirs(void *argument) {
    job *j = (job *)argument;
    png_structp library =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(library);
    j->at = 0;
    png_set_read_fn(library, j, take);
    png_read_info(library, info);
    png_set_expand(library);
    if (j->image.depth == 16)
        png_set_swap(library);
    png_read_update_info(library, info);
    size_t row = png_get_rowbytes(library, info);
    for (size_t i = 0; i < j->image.height; i++)
        png_read_row(library, j->pixels + i * row, NULL);
    png_read_end(library, NULL);
    png_destroy_read_struct(&library, &info, NULL);
}

static void decode_ours(void *argument) {
    job *j = (job *)argument;
    bags_error err;
    if (bags_png_decode(j->blob, NULL, j->pixels, j->size, 0, &err))
        fail_msg("%s\n", err.message);
}

static void decode_codec(void *argument) {
    job *j = (job *)argument;
    bags_error err;
    bags_value value;
    if (bags_codec_png.decode(j->state, j->blob, &j->scratch, &value, &err))
        fail_msg("%s\n", err.message);
}

static void encode_theirs(void *argument) {
    job *j = (job *)argument;
    static const int colours[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA,
        PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
    png_structp library =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(library);
    j->at = 0;
    png_set_write_fn(library, j, give, flush);
    if (j->level >= 0)
        png_set_compression_level(library, j->level);
    png_set_IHDR(library, info, j->image.width, j->image.height, (int)j->image.depth,
        colours[j->image.channels - 1], PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE,
        PNG_FILTER_TYPE_BASE);
    png_write_info(library, info);
    if (j->image.depth == 16)
        png_set_swap(library);
    size_t row = row_size(&j->image);
    for (size_t i = 0; i < j->image.height; i++)
        png_write_row(library, j->pixels + i * row);
    png_write_end(library, NULL);
    png_destroy_write_struct(&library, &info);
}

static void encode_ours(void *argument) {
    job *j = (job *)argument;
    bags_error err;
    bags_view blob;
    if (bags_codec_png.encode(j->state, &j->value, &j->scratch, &blob, &err))
        fail_msg("%s\n", err.message);
}

static void probe(void *argument) {
    job *j = (job *)argument;
    bags_image image;
    if (bags_png_probe(j->blob, NULL, &image, NULL))
        fail_msg("%s\n", "the header");
}

static void of_picture(const char *name, const char *type, int level, bags_image image,
    const unsigned char *pixels) {
    job j;
    memset(&j, 0, sizeof j);
    j.level = level;
    j.state = opened(&bags_codec_png, type);
    j.image = image;
    j.size = picture_size(&image);
    j.pixels = (unsigned char *)malloc(j.size);
    memcpy(j.pixels, pixels, j.size);
    j.value = value_of(&j.image, j.pixels, j.shape);
    bags_buffer kept = {0};
    if (bags_codec_png.encode(j.state, &j.value, &kept, &j.blob, NULL))
        fail_msg("%s\n", "encode");
    printf("\n%s, %s, %u x %u x %u of %u bits\n%-36s %13s %13s   ratio\n", name, type,
        image.height, image.width, image.channels, image.depth, "", "ours", "libpng");
    compare("encode", encode_ours, encode_theirs, &j);
    compare("decode, into the caller's memory", decode_ours, decode_theirs, &j);
    compare("decode, as a codec", decode_codec, decode_theirs, &j);
    compare("probe, beside decode", probe, decode_theirs, &j);
    bags_codec_png.close(j.state);
    bags_buffer_free(&j.scratch);
    bags_buffer_free(&kept);
    free(j.pixels);
}

#ifdef BAGS_WITH_JPEG
static void of_photograph(void) {
    bags_view file = load_part(PHOTOS, "china", ".jpg");
    bags_image image;
    bags_jpeg_probe(file, NULL, &image, NULL);
    unsigned char *pixels = (unsigned char *)malloc(picture_size(&image));
    if (bags_jpeg_decode(file, NULL, pixels, picture_size(&image), 0, NULL))
        fail_msg("%s\n", "the photograph");
    of_picture("china", "png", -1, image, pixels);
    of_picture("china", "png(1)", 1, image, pixels);
    bags_image wide = {image.width / 2, image.height, 3, 16, BAGS_DTYPE_UINT16};
    of_picture("16 bits", "png(1)", 1, wide, pixels);
    free(pixels);
    unload(file);
}
#endif

int main(void) {
    picture input = load_ppm(IMAGES, "input", ".ppm");
    of_picture("small", "png", -1, input.image, input.samples);
    unload(input.file);
#ifdef BAGS_WITH_JPEG
    of_photograph();
#endif
    return 0;
}
