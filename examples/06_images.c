/*
 * Images: photographs are stored as JPEG files without changes, together with small
 * copies encoded as PNG. Both are decoded when they are read, the photographs at a
 * quarter of their size.
 *
 *     cc -I.. 06_images.c ../formats/jpeg.c ../formats/png.c -ljpeg -lpng \
 *         -o 06_images && ./06_images album photo1.jpg photo2.jpg
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include "../formats/codecs.h"
#include <stdio.h>

enum { PHOTO_MAX = 1 << 24, SMALL_MAX = 1 << 20 };
static unsigned char photo[PHOTO_MAX], small[SMALL_MAX];

/* Append a photograph, and a small copy decoded at an eighth of its size. */
static bags_code add_photo(bags_writer *writer, const char *path, bags_error *err) {
    bags_jpeg_options eighth = {0};
    bags_image size;
    eighth.scale = 8;
    FILE *file = fopen(path, "rb");
    if (!file)
        return bags_fail(err, BAGS_ERROR_MISSING, "%s: cannot open", path);
    bags_view blob = {photo, fread(photo, 1, PHOTO_MAX, file)};
    fclose(file);

    if (bags_jpeg_probe(blob, &eighth, &size, err) ||
        bags_jpeg_decode(blob, &eighth, small, SMALL_MAX, 0, err))
        return err->code;
    uint64_t shape[] = {size.height, size.width, size.channels};
    bags_value image = bags_blob(blob.data, blob.size); /* already encoded */
    bags_value thumb =
        bags_array(BAGS_DTYPE_UINT8, size.channels > 1 ? 3 : 2, shape, small);
    bags_entry datapoint[] = {{"image", &image, 1}, {"thumb", &thumb, 1}};
    return bags_writer_append(writer, datapoint, 2, err);
}

static bags_code write_album(const char *album, int count, char **paths,
    const bags_registry *codecs, bags_error *err) {
    const bags_field fields[] = {{"image", "jpeg"}, {"thumb", "png"}};
    bags_code code = BAGS_OK;
    bags_writer_options options = {0};
    options.registry = codecs;
    bags_writer *writer = bags_writer_open(album, fields, 2, &options, err);
    if (!writer)
        return err->code;
    for (int i = 0; i < count && !code; i++)
        code = add_photo(writer, paths[i], err);
    if (!code)
        return bags_writer_close(writer, err);
    bags_writer_abort(writer);
    return code;
}

static bags_code read_album(
    const char *album, const bags_registry *codecs, bags_error *err) {
    bags_row row = {0};
    bags_value image, thumb;
    bags_code code = BAGS_OK;
    bags_reader_options options = {0};
    options.registry = codecs;
    bags_reader *reader = bags_reader_open(album, &options, err);
    if (!reader)
        return err->code;
    for (uint64_t i = 0; !code && i < bags_reader_length(reader); i++) {
        code = bags_reader_get(reader, i, NULL, 0, &row, err);
        if (!code)
            code = bags_row_value(&row, 0, 0, NULL, &image, err);
        if (!code)
            code = bags_row_value(&row, 1, 0, NULL, &thumb, err);
        if (!code)
            printf("photograph %d x %d, small copy %d x %d\n", (int)image.shape[1],
                (int)image.shape[0], (int)thumb.shape[1], (int)thumb.shape[0]);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

int main(int argc, char **argv) {
    bags_error err;
    bags_jpeg_options quarter = {0};
    quarter.scale = 4; /* decoding at 1/4 costs a fraction of decoding at full size */
    bags_codec jpeg = bags_codec_jpeg;
    jpeg.user = &quarter;
    if (argc < 3) {
        fprintf(stderr, "usage: 06_images ALBUM PHOTO.jpg...\n");
        return 2;
    }
    bags_registry *codecs = bags_registry_create(NULL, &err);
    int failed = !codecs || bags_registry_add(codecs, &jpeg, &err) ||
                 bags_registry_add(codecs, &bags_codec_png, &err) ||
                 write_album(argv[1], argc - 2, argv + 2, codecs, &err) ||
                 read_album(argv[1], codecs, &err);
    if (failed)
        fprintf(stderr, "%s\n", err.message);
    bags_registry_free(codecs);
    return failed;
}

/* Output:
photograph 160 x 107, small copy 80 x 54
photograph 160 x 107, small copy 80 x 54
*/
