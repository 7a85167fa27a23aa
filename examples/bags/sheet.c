/*
 * bags sheet: make a contact sheet, a single image that shows the first images or video
 * frames of a dataset.
 *
 * It is independent of image formats: the codec of the field's type decodes to an array
 * (H x W, H x W x C or, for video, T x H x W x C), bags_resample resizes it, and the
 * png or jpeg codec encodes the sheet.
 */
#include "command.h"

#include "formats.h"

#define TILE 128 /* length of the longer side, in pixels */
#define GAP 4
#define COLUMNS 8
#define MAX_ROWS 256
#define BACKGROUND 24
#define MAX_PROBES 100 /* datapoints to try: an array field may be empty in some */
#define MAX_SIDE ((uint64_t)1 << 23) /* the largest that bags_resample accepts */

static const char *field_name;
static option_number rows = {8, 1, MAX_ROWS, false};

static const option options[] = {
    {"field", OPTION_TEXT, &field_name, "NAME",
        "the field: jpeg, png, webp, mp4, webm, or arrays of uint8, uint16 or bool, "
        "height x width x channels. Without it, the first that contains "
        "images"},
    {"rows", OPTION_NUMBER, &rows, "R", "at most R rows (8)"},
    OPTION_MAX_PIXELS,
    OPTIONS_END,
};

static const bags_field *field;
static size_t field_index;
static unsigned char *pixels; /* RGB */
static size_t sheet_width, sheet_height;
static size_t used_columns, used_rows;

/* Why some tiles are empty. */
static char **faults;
static size_t faults_count, drawn;

/* ---- images ---- */

/* The number of frames of a decoded value; 0 if it is not an image or a video. */
static uint64_t count_frames(const bags_value *value) {
    const uint64_t *shape = value->shape;
    bool known = value->dtype == BAGS_DTYPE_UINT8 ||
                 value->dtype == BAGS_DTYPE_UINT16 || value->dtype == BAGS_DTYPE_BOOL;
    if (value->kind != BAGS_KIND_ARRAY || !known || value->dims < 2 || value->dims > 4)
        return 0;
    for (size_t i = 0; i < value->dims; i++)
        if (shape[i] == 0 || shape[i] > MAX_SIDE)
            return 0;
    if (value->dims > 2 && shape[value->dims - 1] > 4)
        return 0;
    return value->dims == 4 ? shape[0] : 1;
}

/* Convert elements to uint8: uint16 to its high byte, bool to 0 or 255. */
static const unsigned char *as_bytes(
    bags_dtype dtype, const unsigned char *from, size_t count) {
    static bags_buffer buffer;
    if (dtype == BAGS_DTYPE_UINT8)
        return from;
    must(bags_buffer_reserve(&buffer, count, &failure));
    for (size_t i = 0; i < count; i++) {
        uint16_t wide = from[dtype == BAGS_DTYPE_BOOL ? i : 0] ? 0xFFFF : 0;
        if (dtype == BAGS_DTYPE_UINT16)
            memcpy(&wide, from + 2 * i, 2);
        buffer.data[i] = (unsigned char)(wide >> 8);
    }
    return buffer.data;
}

static void use_tile(size_t row, size_t column) {
    if (column >= used_columns)
        used_columns = column + 1;
    if (row >= used_rows)
        used_rows = row + 1;
}

/* Draw frame i of a value that count_frames accepted into a tile, as large as it fits,
 * and centred. */
static void draw(const bags_value *value, uint64_t i, size_t row, size_t column) {
    static bags_buffer scratch;
    static unsigned char tile[TILE * TILE * 4];
    const uint64_t *shape = value->shape + (value->dims == 4);
    uint64_t longer = shape[0] > shape[1] ? shape[0] : shape[1];
    uint32_t height = (uint32_t)(shape[0] * TILE / longer);
    uint32_t width = (uint32_t)(shape[1] * TILE / longer);
    bags_image image = {(uint32_t)shape[1], (uint32_t)shape[0],
        value->dims > 2 ? (uint32_t)shape[2] : 1, 8, BAGS_DTYPE_UINT8};
    size_t count = (size_t)(shape[0] * shape[1]) * image.channels;
    const unsigned char *frame = (const unsigned char *)value->data +
                                 (size_t)i * count * bags_dtype_size(value->dtype);
    height = height ? height : 1;
    width = width ? width : 1;
    must(bags_resample(&image, as_bytes(value->dtype, frame, count), 0, NULL,
        BAGS_FILTER_BILINEAR, width, height, &scratch, tile, 0, &failure));
    size_t top = GAP + row * (TILE + GAP) + (TILE - height) / 2;
    size_t left = GAP + column * (TILE + GAP) + (TILE - width) / 2;
    const unsigned char *from = tile;
    for (size_t y = 0; y < height; y++) {
        unsigned char *at = pixels + ((top + y) * sheet_width + left) * 3;
        for (size_t x = 0; x < width; x++, from += image.channels)
            for (size_t c = 0; c < 3; c++)
                *at++ = from[image.channels > 2 ? c : 0];
    }
    use_tile(row, column);
    drawn++;
}

/* ---- choosing images ---- */

/* The i-th of at most a row of images, chosen from `count`: all of them, or evenly
 * spaced. */
static uint64_t spaced(uint64_t i, uint64_t count) {
    return count <= COLUMNS ? i : i * (count - 1) / (COLUMNS - 1);
}

static uint64_t at_most_a_row(uint64_t count) {
    return count < COLUMNS ? count : COLUMNS;
}

/* Read an image or a video. False if the value is neither; its tile then stays
 * empty. */
static bool read_value(uint64_t index, bags_select select, bags_value *out) {
    source_get(index, &select, 1);
    codec_check(field->type);
    if (source_value(0, 0, field->type, out)) {
        if (count_frames(out))
            return true;
        bags_fail(&failure, BAGS_ERROR_TYPE,
            "%s: field \"%s\": datapoint %ju: type %s is not an image (uint8, "
            "uint16 or bool, height x width x 1 to 4 channels)",
            source_path(), field->name, (uintmax_t)index, field->type);
    }
    faults = (char **)grow(faults, faults_count, sizeof *faults);
    faults[faults_count++] =
        string_format("%s", message_of_command(failure.message, failure.remedy));
    return false;
}

/* Draw a row for a sequence: the first frame of each item. */
static void draw_sequence(uint64_t index, size_t row) {
    uint64_t count = source_count(index, field_index);
    for (uint64_t i = 0; i < at_most_a_row(count); i++) {
        uint64_t item = spaced(i, count);
        bags_value value;
        if (read_value(
                index, bags_select_slice(field_index, item, item + 1, 1), &value))
            draw(&value, 0, row, (size_t)i);
        else
            use_tile(row, (size_t)i);
    }
}

/* Draw the datapoints one after another; each video gets a row of its own. */
static void draw_all(void) {
    uint64_t length = source_length(), place = 0, most = rows.value * COLUMNS;
    bool sequence = source_is_sequence(field_index);
    for (uint64_t i = 0; i < length && place < most; i++) {
        bool own_row = sequence || type_kind(field->type) == TYPE_VIDEO;
        bags_value value;
        if (sequence) {
            draw_sequence(i, (size_t)i);
        } else if (read_value(i, bags_select_all(field_index), &value)) {
            uint64_t frames = count_frames(&value);
            for (uint64_t j = 0; j < at_most_a_row(frames); j++) {
                uint64_t now = place + j;
                draw(&value, spaced(j, frames), (size_t)(now / COLUMNS),
                    (size_t)(now % COLUMNS));
            }
            own_row = value.dims == 4;
        } else {
            use_tile((size_t)(place / COLUMNS), (size_t)(place % COLUMNS));
        }
        uint64_t each = own_row ? COLUMNS : 1;
        place += each;
        progress_show("sheet", "images", place,
            length < most / each ? length * each : most, drawn);
    }
    progress_end();
}

/* Name the images that were not drawn. Fails with the first fault if none was drawn. */
static void report_faults(void) {
    if (faults_count && !drawn)
        fail(BAGS_ERROR_VALUE, "%s", faults[0]);
    for (size_t i = 0; i < faults_count; i++)
        note("%s: tile left empty", faults[i]);
}

/* ---- choosing the field ---- */

/* True if the first array of a field is an image. */
static bool has_images(const char *type, size_t index) {
    uint64_t length = source_length();
    bags_select select = source_is_sequence(index) ? bags_select_slice(index, 0, 1, 1)
                                                   : bags_select_all(index);
    for (uint64_t i = 0; i < length && i < MAX_PROBES; i++) {
        bags_value value;
        source_get(i, &select, 1);
        if (source_items(0))
            return source_value(0, 0, type, &value) && count_frames(&value);
    }
    return false;
}

/* Find the requested field, or else the first field of images or videos, or else the
 * first field of arrays that are images. */
static void find_field(void) {
    size_t count, i = 0;
    const bags_field *fields = bags_reader_fields(source_dataset(), &count);
    while (i < count && type_kind(fields[i].type) != TYPE_IMAGE &&
           type_kind(fields[i].type) != TYPE_VIDEO)
        i++;
    if (field_name)
        i = field_require(source_path(), field_name, fields, count);
    for (size_t j = 0; i == count && j < count; j++)
        if (type_kind(fields[j].type) == TYPE_ARRAY && has_images(fields[j].type, j))
            i = j;
    if (i == count)
        fail(BAGS_ERROR_FIELD,
            "%s: no field contains images, video or arrays that are images",
            source_path());
    field_index = i;
    field = &fields[i];
}

/* ---- the command ---- */

/* Crop the sheet to the rows and columns that were used. */
static void crop(void) {
    size_t width = GAP + used_columns * (TILE + GAP);
    for (size_t i = 0; i < sheet_height; i++)
        memmove(pixels + i * width * 3, pixels + i * sheet_width * 3, width * 3);
    sheet_width = width;
    sheet_height = GAP + used_rows * (TILE + GAP);
}

static void write_sheet(const char *path, const char *format) {
    uint64_t shape[3] = {sheet_height, sheet_width, 3};
    bags_value array = bags_array(BAGS_DTYPE_UINT8, 3, shape, pixels);
    bags_buffer scratch = {0};
    bags_view blob;
    codec_check(format);
    must(bags_encode(registry_get(), format, &array, &scratch, &blob, &failure));
    file_write(path, blob.data, blob.size);
    bags_buffer_free(&scratch);
}

static int run(char **operands) {
    const char *path = operands[1];
    const char *format = has_ending(path, ".png") ? "png"
                         : has_ending(path, ".jpg") || has_ending(path, ".jpeg")
                             ? "jpeg"
                             : NULL;
    if (!format)
        usage("%s: the name must end in .png, .jpg or .jpeg", path);
    path_must_be_outside(path);
    interrupt_leaves("nothing is kept", "start again with", NULL);
    registry_expand_palettes(true);
    registry_orient();
    source_open(operands[0]);
    if (!source_dataset())
        fail(BAGS_ERROR_TYPE, "%s: a Bag has no types, so its images cannot be decoded",
            source_path());
    find_field();
    sheet_width = GAP + COLUMNS * (TILE + GAP);
    sheet_height = GAP + (size_t)rows.value * (TILE + GAP);
    pixels = (unsigned char *)allocate(sheet_width * sheet_height, 3);
    memset(pixels, BACKGROUND, sheet_width * sheet_height * 3);
    draw_all();
    report_faults();
    if (used_rows == 0)
        fail(BAGS_ERROR_MISSING, "%s: field \"%s\": contains no image", source_path(),
            field->name);
    crop();
    write_sheet(path, format);
    print("%s: %zu x %zu pixels, field %s\n", path, sheet_width, sheet_height,
        field->name);
    return 0;
}

const command command_sheet = {"sheet", "an image of the first images",
    "PATH OUT.png|OUT.jpg", {ARGUMENT_PATH, ARGUMENT_LOCAL}, 2, 2, options,
    reading_options,
    "Draws the first images of a dataset, 8 in a row, into a PNG or JPEG file. "
    "If the field is a sequence or a video, each datapoint has a row with up "
    "to 8 of its images, evenly spaced. Images are turned upright by their "
    "EXIF orientation. If an image cannot be decoded, its tile is left empty and a "
    "line names it.\n",
    "  bags sheet pets pets.png --field photo --rows 4\n", run};
