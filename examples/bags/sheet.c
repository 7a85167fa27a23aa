/*
 * bags sheet: a contact sheet, a picture of the first images or video frames of
 * a dataset.
 *
 * It knows no image format: the codec of the field's type decodes to an array,
 * H x W, H x W x C or, for video, T x H x W x C, and the codec png encodes.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

#define TILE 128 /* pixels of the longer side */
#define GAP 4
#define COLUMNS 8
#define ROWS_MOST 256
#define BACKGROUND 24

typedef struct picture {
    const unsigned char *pixels;
    size_t height, width, channels;
    size_t sample; /* bytes of one: 1, or 2 of a 16-bit PNG */
    unsigned scale; /* a bool is 0 or 1, shown as 0 or 255 */
} picture;

typedef struct sheet {
    source from;
    const bags_field *field;
    size_t number; /* of the field */
    uint64_t rows;
    unsigned char *pixels; /* RGB */
    size_t width, height;
    size_t used_columns, used_rows;
} sheet;

/* ---- pictures ---- */

static bags_code fail_picture(const sheet *to, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: field \"%s\" of type %s holds no pictures: height x width, 1 to 4 "
        "channels, of uint8; --field NAME says which one does", to->from.path,
        to->field->name, to->field->type);
}

/* How many frames a decoded value has; 0 if it is no picture. */
static uint64_t count_frames(const bags_value *value) {
    const uint64_t *shape = value->shape;
    bool known = value->dtype == BAGS_DTYPE_UINT8 || value->dtype == BAGS_DTYPE_UINT16 ||
                 value->dtype == BAGS_DTYPE_BOOL;
    if (value->kind != BAGS_KIND_ARRAY || !known || value->dims < 2 ||
        value->dims > 4)
        return 0;
    for (size_t i = 0; i < value->dims; i++)
        if (shape[i] == 0)
            return 0;
    if (value->dims > 2 && shape[value->dims - 1] > 4)
        return 0;
    return value->dims == 4 ? shape[0] : 1;
}

/* Frame i of a value that count_frames accepts. */
static picture frame_of(const bags_value *value, uint64_t i) {
    picture out;
    size_t first = value->dims == 4 ? 1 : 0;
    out.height = (size_t)value->shape[first];
    out.width = (size_t)value->shape[first + 1];
    out.channels = value->dims > 2 ? (size_t)value->shape[value->dims - 1] : 1;
    out.sample = bags_dtype_size(value->dtype);
    out.scale = value->dtype == BAGS_DTYPE_BOOL ? 255 : 1;
    out.pixels = (const unsigned char *)value->data +
                 (size_t)i * out.height * out.width * out.channels * out.sample;
    return out;
}

static unsigned sample_at(const picture *from, size_t y, size_t x, size_t c) {
    const unsigned char *at = from->pixels +
        ((y * from->width + x) * from->channels + c) * from->sample;
    uint16_t wide;
    if (from->sample == 1)
        return *at * from->scale;
    memcpy(&wide, at, 2);
    return wide >> 8;
}

/* The mean of a rectangle of pixels, of at least one. */
static unsigned char mean_of(const picture *from, const size_t y[2],
    const size_t x[2], size_t c) {
    uint64_t sum = 0;
    for (size_t i = y[0]; i < y[1]; i++)
        for (size_t j = x[0]; j < x[1]; j++)
            sum += sample_at(from, i, j, c);
    return (unsigned char)(sum / ((y[1] - y[0]) * (x[1] - x[0])));
}

/* Where pixel i of `to` begins and ends in `from` pixels. */
static void part_of(size_t i, size_t to, size_t from, size_t out[2]) {
    out[0] = (size_t)((uint64_t)i * from / to);
    out[1] = (size_t)((uint64_t)(i + 1) * from / to);
    if (out[1] <= out[0])
        out[1] = out[0] + 1;
}

/* Draw a picture into a tile, as large as fits and in its middle. */
static void draw(sheet *to, const picture *from, size_t row, size_t column) {
    uint64_t longer = from->height > from->width ? from->height : from->width;
    size_t height = (size_t)((uint64_t)from->height * TILE / longer);
    size_t width = (size_t)((uint64_t)from->width * TILE / longer);
    height = height ? height : 1;
    width = width ? width : 1;
    size_t top = GAP + row * (TILE + GAP) + (TILE - height) / 2;
    size_t left = GAP + column * (TILE + GAP) + (TILE - width) / 2;
    for (size_t i = 0; i < height; i++) {
        size_t y[2], x[2];
        part_of(i, height, from->height, y);
        unsigned char *at = to->pixels + ((top + i) * to->width + left) * 3;
        for (size_t j = 0; j < width; j++) {
            part_of(j, width, from->width, x);
            for (size_t c = 0; c < 3; c++)
                *at++ = mean_of(from, y, x, from->channels > 2 ? c : 0);
        }
    }
    if (column >= to->used_columns)
        to->used_columns = column + 1;
    if (row >= to->used_rows)
        to->used_rows = row + 1;
}

/* ---- which pictures ---- */

/* Of `count` things, the i-th of those shown in a row: all, or evenly spaced.
 */
static uint64_t spaced(uint64_t i, uint64_t count) {
    return count <= COLUMNS ? i : i * (count - 1) / (COLUMNS - 1);
}

static uint64_t at_most_a_row(uint64_t count) {
    return count < COLUMNS ? count : COLUMNS;
}

static bags_code read_value(sheet *to, uint64_t index, bags_select select,
    bags_value *out, uint64_t *frames, bags_error *err) {
    bags_code code = source_get(&to->from, index, &select, 1, err);
    if (!code)
        code = source_value(&to->from, 0, 0, out, err);
    if (code)
        return code;
    *frames = count_frames(out);
    return *frames ? BAGS_OK : fail_picture(to, err);
}

/* A row of the items of a sequence; of each its first frame. */
static bags_code draw_sequence(sheet *to, uint64_t index, size_t row,
    bags_error *err) {
    uint64_t count = 0;
    bags_code code = bags_reader_items(to->from.dataset, index, to->number,
        &to->from.row, &count, err);
    for (uint64_t i = 0; i < at_most_a_row(count) && !code; i++) {
        bags_value value;
        uint64_t item = spaced(i, count), frames;
        code = read_value(to, index,
            bags_slice(to->number, item, item + 1), &value, &frames, err);
        if (code)
            break;
        picture one = frame_of(&value, 0);
        draw(to, &one, row, (size_t)i);
    }
    return code;
}

/* Datapoints one behind the other; a video takes a row for itself. */
static bags_code draw_plain(sheet *to, bags_error *err) {
    bags_select select = {0};
    uint64_t length = source_length(&to->from), place = 0;
    select.field = to->number;
    for (uint64_t i = 0; i < length && place < to->rows * COLUMNS; i++) {
        bags_value value;
        uint64_t frames;
        bags_code code = read_value(to, i, select, &value, &frames, err);
        if (code)
            return code;
        bool video = value.dims == 4;
        for (uint64_t j = 0; j < at_most_a_row(frames); j++) {
            picture one = frame_of(&value, spaced(j, frames));
            uint64_t now = place + j;
            draw(to, &one, (size_t)(now / COLUMNS), (size_t)(now % COLUMNS));
        }
        place += video ? COLUMNS : 1;
    }
    return BAGS_OK;
}

static bags_code draw_all(sheet *to, bags_error *err) {
    if (!source_is_sequence(&to->from, to->number))
        return draw_plain(to, err);
    uint64_t length = source_length(&to->from);
    bags_code code = BAGS_OK;
    for (uint64_t i = 0; i < length && i < to->rows && !code; i++)
        code = draw_sequence(to, i, (size_t)i, err);
    return code;
}

/* ---- the command ---- */

/* The field that was asked for, else the first of images or video, else the
 * first of arrays. */
static bags_code find_field(sheet *to, const char *wanted, bags_error *err) {
    size_t count;
    const bags_field *fields = bags_reader_fields(to->from.dataset, &count);
    if (wanted) {
        bags_code code =
            bags_reader_field(to->from.dataset, wanted, &to->number, err);
        to->field = code ? NULL : &fields[to->number];
        return code;
    }
    for (int arrays = 0; arrays < 2; arrays++)
        for (size_t i = 0; i < count; i++)
            if (arrays ? type_shown_as(fields[i].type) == SHOWN_ARRAY
                       : type_is_picture(fields[i].type)) {
                to->number = i;
                to->field = &fields[i];
                return BAGS_OK;
            }
    return bags_fail(err, BAGS_ERROR_FIELD,
        "%s: no field of images, video or arrays", to->from.path);
}

/* Keep the rows and columns that were used. */
static void crop(sheet *to) {
    size_t width = GAP + to->used_columns * (TILE + GAP);
    size_t height = GAP + to->used_rows * (TILE + GAP);
    for (size_t i = 0; i < height; i++)
        memmove(to->pixels + i * width * 3, to->pixels + i * to->width * 3,
            width * 3);
    to->width = width;
    to->height = height;
}

static bags_code write_sheet(sheet *to, const char *path, bags_error *err) {
    uint64_t shape[3] = {to->height, to->width, 3};
    bags_value array = bags_array(BAGS_DTYPE_UINT8, 3, shape, to->pixels);
    bags_buffer scratch = {0};
    bags_view blob;
    bags_code code =
        encode_as(to->from.codecs, "png", &array, &scratch, &blob, err);
    if (!code)
        code = file_write(path, blob.data, blob.size, err);
    bags_buffer_free(&scratch);
    return code;
}

static bags_code make_sheet(sheet *to, const char *field, const char *path,
    bags_error *err) {
    if (!to->from.dataset)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: a Bag has no types, so its pictures cannot be decoded",
            to->from.path);
    bags_code code = find_field(to, field, err);
    if (code)
        return code;
    to->width = GAP + COLUMNS * (TILE + GAP);
    to->height = GAP + (size_t)to->rows * (TILE + GAP);
    size_t size = to->width * to->height * 3;
    to->pixels = (unsigned char *)malloc(size);
    if (!to->pixels)
        return fail_memory(err);
    memset(to->pixels, BACKGROUND, size);
    code = draw_all(to, err);
    if (!code && to->used_rows == 0)
        code = bags_fail(err, BAGS_ERROR_MISSING, "%s: there is no picture",
            to->from.path);
    if (code)
        return code;
    crop(to);
    return write_sheet(to, path, err);
}

static int run(int count, char **words) {
    sheet to;
    memset(&to, 0, sizeof to);
    to.rows = 8;
    source_options reading = {0};
    const char *field = NULL, *rows = NULL;
    option options[SOURCE_OPTIONS + 2] = {{"field", NULL, &field},
        {"rows", NULL, &rows}};
    source_options_describe(&reading, options + 2);
    int exit_code;
    if (!options_parse(&command_sheet, &count, words, options,
            SOURCE_OPTIONS + 2, &exit_code))
        return exit_code;
    if (count != 2)
        return fail_usage(&command_sheet, "takes PATH and OUT.png");
    if (rows && (!number_option(rows, &to.rows) || to.rows == 0 ||
                    to.rows > ROWS_MOST))
        return fail_usage(&command_sheet, "--rows is a number from 1 to %d",
            ROWS_MOST);
    bags_error err;
    if (source_open(&to.from, words[0], &reading, &err))
        return fail(&err);
    bags_code code = make_sheet(&to, field, words[1], &err);
    if (!code)
        printf("%s: %zu x %zu pixels, field %s\n", words[1], to.width,
            to.height, to.field->name);
    free(to.pixels);
    source_close(&to.from);
    return code ? fail(&err) : 0;
}

const command command_sheet = {"sheet", "a picture of the first images",
    "usage: bags sheet PATH OUT.png [--field NAME] [--rows R]\n"
    "                  [--check] [--allow-gaps] [--skip-unfinished]\n"
    "                  [--live]\n"
    "\n"
    "Draws the first images of a dataset, 8 in a row, into a PNG file. Of a\n"
    "sequence or a video, each datapoint gets a row: up to 8 of its images,\n"
    "evenly spaced.\n"
    "\n"
    "  --field NAME  which field: jpeg, png, mp4, webm, or arrays of uint8,\n"
    "                height x width x channels. Else the first that fits\n"
    "  --rows R      at most R rows (8)\n"
    "  --check       compare every image with its checksum: bags help\n"
    "                checksum\n"
    "  --allow-gaps, --skip-unfinished, --live  as in bags help info\n"
    "\n"
    "example:\n"
    "  bags sheet pets pets.png --field photo --rows 4\n",
    run};
