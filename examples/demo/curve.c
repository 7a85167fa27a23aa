/*
 * Plot the loss of 08_train as a PNG: for each batch, and the mean for each epoch.
 *
 *     curve PICTURE.png <LOG
 */
#include "../../bags.h"
#include "../../formats/formats.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 720, HIGH = 400, LEFT = 70, RIGHT = 20, TOP = 24, BOTTOM = 50 };
enum { PEN = 2 }; /* size of a letter's dot, in pixels */

static const unsigned char paper[3] = {255, 255, 255}, grid[3] = {225, 228, 232};
static const unsigned char ink[3] = {70, 76, 84}, pale[3] = {168, 200, 240};
static const unsigned char strong[3] = {31, 111, 235};
static unsigned char picture[HIGH][WIDE][3];

/* ---- drawing ---- */

/* Each letter has 5 rows of 3 dots, starting at the top left. */
static const char letters[] = "0123456789.losepch";
static const unsigned short dots[] = {075557, 026227, 071747, 071717, 055711, 074717,
    074757, 071111, 075757, 075717, 000002, 044446, 007557, 034216, 007747, 007574,
    007447, 044755};

static void mix(double x, double y, const unsigned char *color, double part) {
    if (x < 0 || x >= WIDE || y < 0 || y >= HIGH)
        return;
    unsigned char *at = picture[(int)y][(int)x];
    for (int c = 0; c < 3; c++)
        at[c] = (unsigned char)(at[c] + (color[c] - at[c]) * part);
}

static void fill(int x, int y, int width, int height, const unsigned char *color) {
    for (int i = 0; i < width * height; i++)
        mix(x + i % width, y + i / width, color, 1);
}

static int text_width(const char *text) { return 4 * PEN * (int)strlen(text); }

static void draw_text(int x, int y, const char *text) {
    for (; *text; text++, x += 4 * PEN) {
        const char *letter = strchr(letters, *text);
        for (int i = 0; letter && i < 15; i++)
            if (dots[letter - letters] >> (14 - i) & 1)
                fill(x + i % 3 * PEN, y + i / 3 * PEN, PEN, PEN, ink);
    }
}

/* Draw a line with soft edges. */
static void draw_line(double x, double y, double to_x, double to_y, double width,
    const unsigned char *color) {
    double dx = to_x - x, dy = to_y - y, length = dx * dx + dy * dy;
    for (int py = (int)(fmin(y, to_y) - width); py <= (int)(fmax(y, to_y) + width);
         py++)
        for (int px = (int)(x - width); px <= (int)(to_x + width); px++) {
            double t = length > 0 ? ((px - x) * dx + (py - y) * dy) / length : 0;
            t = fmin(fmax(t, 0), 1);
            double far = hypot(px - x - t * dx, py - y - t * dy);
            mix(px, py, color, fmin(fmax(width / 2 + 0.5 - far, 0), 1));
        }
}

/* ---- the curve ---- */

typedef struct point {
    double epoch; /* including the completed fraction of it */
    double loss;
} point;

typedef struct curve {
    point *points;
    size_t count;
} curve;

static void add_point(curve *c, double epoch, double loss) {
    /* After a kill, the last line may appear twice. */
    if (c->count && c->points[c->count - 1].epoch >= epoch)
        return;
    point *grown = (point *)realloc(c->points, (c->count + 1) * sizeof(point));
    if (!grown)
        exit(1);
    grown[c->count].epoch = epoch;
    grown[c->count++].loss = loss;
    c->points = grown;
}

/* The losses of the batches, and the mean of each epoch, placed at its end. */
static void read_log(curve *batches, curve *epochs) {
    unsigned epoch, batch, most = 0;
    double loss, sum;
    while (scanf("epoch %u batch %u loss %lf\n", &epoch, &batch, &loss) == 3) {
        add_point(batches, epoch + batch * 1e-9, loss);
        most = batch > most ? batch : most;
    }
    for (size_t i = 0, start = 0; i < batches->count; i++) {
        point *p = &batches->points[i];
        double whole = floor(p->epoch);
        p->epoch = whole + ((p->epoch - whole) * 1e9 + 1) / (most + 1);
        if (i + 1 < batches->count && batches->points[i + 1].epoch < whole + 1)
            continue;
        for (sum = 0; start <= i; start++)
            sum += batches->points[start].loss / (most + 1);
        add_point(epochs, whole + 1, sum);
    }
}

static double axis_step(double most) {
    double step = pow(10, floor(log10(most)));
    return most / step < 2 ? step / 5 : most / step < 5 ? step / 2 : step;
}

static void draw_axes(double epochs, double loss) {
    char text[32];
    const int width = WIDE - LEFT - RIGHT, height = HIGH - TOP - BOTTOM;
    for (double at = 0; at < loss * 1.0001; at += axis_step(loss)) {
        int y = HIGH - BOTTOM - (int)(height * at / loss);
        snprintf(text, sizeof text, "%.4g", at);
        fill(LEFT, y, width, 1, grid);
        draw_text(LEFT - 8 - text_width(text), y - 5, text);
    }
    for (double at = 0; at < epochs * 1.0001; at += axis_step(epochs)) {
        int x = LEFT + (int)(width * at / epochs);
        snprintf(text, sizeof text, "%.4g", at);
        fill(x, HIGH - BOTTOM, 1, 5, ink);
        draw_text(x - text_width(text) / 2, HIGH - BOTTOM + 10, text);
    }
    fill(LEFT, HIGH - BOTTOM, width, 1, ink);
    draw_text(LEFT - 8 - text_width("loss"), 6, "loss");
    draw_text(LEFT + width / 2 - text_width("epochs") / 2, HIGH - 18, "epochs");
}

static void draw_curve(const curve *c, double epochs, double loss, double width,
    const unsigned char *color) {
    double before_x = 0, before_y = 0;
    for (size_t i = 0; i < c->count; i++) {
        double x = LEFT + (WIDE - LEFT - RIGHT) * c->points[i].epoch / epochs;
        double y = HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * c->points[i].loss / loss;
        if (i > 0)
            draw_line(before_x, before_y, x, y, width, color);
        before_x = x;
        before_y = y;
    }
}

/* ---- the file ---- */

static bags_code write_picture(const char *path, bags_error *err) {
    const uint64_t shape[] = {HIGH, WIDE, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 3, shape, picture);
    bags_buffer scratch = {0};
    bags_view png;
    bags_registry *codecs = bags_registry_create(NULL, err);
    bags_code code = codecs ? BAGS_OK : err->code;
#ifdef BAGS_WITH_PNG
    if (!code)
        code = bags_registry_add(codecs, &bags_codec_png, err);
#endif
    if (!code)
        code = bags_encode(codecs, "png", &value, &scratch, &png, err);
    FILE *file = code ? NULL : fopen(path, "wb");
    if (!code && (!file || fwrite(png.data, png.size, 1, file) != 1))
        code = bags_fail(err, BAGS_ERROR_IO, "%s: cannot write", path);
    if (file && fclose(file) && !code)
        code = bags_fail(err, BAGS_ERROR_IO, "%s: cannot write", path);
    bags_buffer_free(&scratch);
    bags_registry_free(codecs);
    return code;
}

int main(int argc, char **argv) {
    bags_error err;
    curve batches = {NULL, 0}, epochs = {NULL, 0};
    double highest = 0;
    read_log(&batches, &epochs);
    if (argc != 2 || batches.count == 0) {
        fprintf(stderr, "usage: curve PICTURE.png <LOG of 08_train\n");
        return 2;
    }
    for (size_t i = 0; i < batches.count; i++)
        highest = fmax(highest, batches.points[i].loss);
    double length = epochs.points[epochs.count - 1].epoch;
    fill(0, 0, WIDE, HIGH, paper);
    draw_axes(length, highest);
    draw_curve(&batches, length, highest, 1.2, pale);
    draw_curve(&epochs, length, highest, 2.4, strong);
    int failed = write_picture(argv[1], &err) != BAGS_OK;
    if (failed)
        fprintf(stderr, "curve: %s\n", err.message);
    free(batches.points);
    free(epochs.points);
    return failed;
}
