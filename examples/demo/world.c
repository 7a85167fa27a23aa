#include "world.h"
#include <math.h>

static const float box_width = (float)WIDTH / (float)HEIGHT;
static const float bounce = 0.92f; /* fraction of speed left after a collision */
const float world_gravity = 1.6f;
const char *const world_colors[BALLS] = {
    "coral", "golden", "green", "blue", "violet", "white"};

/* ---- physics ---- */

float world_random(world *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (float)(w->random >> 40) / (float)(1 << 24);
}

void world_start(world *w, uint64_t seed) {
    const float cell = box_width / 3;
    *w = (world){.random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15)};
    for (int i = 0; i < BALLS; i++) {
        /* Place one ball in each of 3 x 2 cells, so that no two overlap. */
        float r = 0.06f + 0.08f * world_random(w);
        float x = r + (cell - 2 * r) * world_random(w);
        float y = r + (0.5f - 2 * r) * world_random(w);
        w->radius[i] = r;
        w->state[i][0] = x + cell * (float)(i % 3);
        w->state[i][1] = y + 0.5f * (float)(i / 3);
        w->state[i][2] = 2 * world_random(w) - 1;
        w->state[i][3] = 2 * world_random(w) - 1;
    }
}

/* Keep a coordinate between two walls; reverse its speed if it hits one. */
static void hit_walls(float *place, float *speed, float low, float high) {
    if (*place < low && *speed < 0)
        *speed *= -bounce;
    if (*place > high && *speed > 0)
        *speed *= -bounce;
    *place = fminf(fmaxf(*place, low), high);
}

static float mass(const world *w, int i) { return w->radius[i] * w->radius[i]; }

/* Push two overlapping balls apart and exchange momentum along their axis. */
static void collide(world *w, int i, int j) {
    float *a = w->state[i], *b = w->state[j];
    float dx = b[0] - a[0], dy = b[1] - a[1];
    float distance = hypotf(dx, dy);
    float overlap = w->radius[i] + w->radius[j] - distance;
    if (overlap <= 0 || distance <= 0)
        return;
    dx /= distance;
    dy /= distance;
    float share = mass(w, j) / (mass(w, i) + mass(w, j));
    a[0] -= dx * overlap * share;
    a[1] -= dy * overlap * share;
    b[0] += dx * overlap * (1 - share);
    b[1] += dy * overlap * (1 - share);

    float closing = (a[2] - b[2]) * dx + (a[3] - b[3]) * dy;
    if (closing <= 0)
        return;
    float impulse = (1 + bounce) * closing;
    a[2] -= dx * impulse * share;
    a[3] -= dy * impulse * share;
    b[2] += dx * impulse * (1 - share);
    b[3] += dy * impulse * (1 - share);
}

void world_step(world *w, float seconds) {
    for (int i = 0; i < BALLS; i++) {
        float *s = w->state[i], r = w->radius[i];
        s[2] += w->wind[0] * seconds;
        s[3] += (w->wind[1] + world_gravity) * seconds;
        s[0] += s[2] * seconds;
        s[1] += s[3] * seconds;
        w->travelled[i] += hypotf(s[2], s[3]) * seconds;
        hit_walls(&s[0], &s[2], r, box_width - r);
        hit_walls(&s[1], &s[3], r, 1 - r);
    }
    for (int i = 0; i < BALLS; i++)
        for (int j = i + 1; j < BALLS; j++)
            collide(w, i, j);
}

/* ---- picture: light comes from the upper left, out of the screen ---- */

typedef struct color {
    float r, g, b;
} color;

/* In linear light, like everything below. */
static const color palette[BALLS] = {{1.00f, 0.18f, 0.13f}, {1.00f, 0.52f, 0.06f},
    {0.12f, 0.62f, 0.22f}, {0.09f, 0.36f, 1.00f}, {0.48f, 0.20f, 1.00f},
    {0.86f, 0.88f, 0.94f}};

static float clamp01(float x) { return fminf(fmaxf(x, 0), 1); }

static color mix(color a, color b, float t) {
    return (color){a.r + (b.r - a.r) * t, a.g + (b.g - a.g) * t, a.b + (b.b - a.b) * t};
}

/* The wall: lighter towards the light, with a fine grid. */
static color wall(float x, float y) {
    const color lit = {0.07f, 0.09f, 0.18f}, dark = {0.01f, 0.012f, 0.03f};
    const color line = {0.16f, 0.20f, 0.34f};
    float pixel = 1.0f / (float)HEIGHT;
    float gx = fabsf(x * 6 - roundf(x * 6)), gy = fabsf(y * 6 - roundf(y * 6));
    float grid = fminf(gx, gy) / 6;
    color c = mix(lit, dark, clamp01(hypotf(x - 0.3f, y - 0.1f) * 0.8f));
    return mix(c, line, 0.35f * clamp01(1 - grid / pixel));
}

/* How much of a pixel at this distance is covered by a disc, for antialiasing. */
static float coverage(float distance, float radius, float softness) {
    return clamp01((radius - distance) / softness + 0.5f);
}

/* The color of a shaded ball at a point of its disc; coordinates are from -1 to 1. */
static color shade(color base, float x, float y) {
    const color white = {1, 1, 1}, black = {0.02f, 0.02f, 0.06f};
    float z = sqrtf(fmaxf(0, 1 - x * x - y * y));
    float light = clamp01(-0.45f * x - 0.6f * y + 0.66f * z);
    float gloss = clamp01(-0.36f * x - 0.48f * y + 0.8f * z);
    color c = mix(black, base, 0.25f + 0.75f * light);
    return mix(c, white, 0.85f * powf(gloss, 40));
}

static color pixel_at(const world *w, float x, float y) {
    const float pixel = 1.0f / (float)HEIGHT;
    const color black = {0, 0, 0};
    color c = wall(x, y);
    for (int i = 0; i < BALLS; i++) { /* shadows fall to the lower right */
        float dx = x - w->state[i][0] - 0.03f, dy = y - w->state[i][1] - 0.05f;
        float r = w->radius[i];
        c = mix(c, black, 0.45f * coverage(hypotf(dx, dy), r, 0.07f));
    }
    for (int i = 0; i < BALLS; i++) {
        float dx = x - w->state[i][0], dy = y - w->state[i][1];
        float r = w->radius[i], cover = coverage(hypotf(dx, dy), r, pixel);
        if (cover > 0)
            c = mix(c, shade(palette[i], dx / r, dy / r), cover);
    }
    return c;
}

/* Convert linear light to (approximately) the sRGB of screens, using a square root. */
static unsigned char to_byte(float light) {
    return (unsigned char)(sqrtf(clamp01(light)) * 255 + 0.5f);
}

void world_draw(const world *w, unsigned char *pixels) {
    for (int row = 0; row < HEIGHT; row++) {
        for (int column = 0; column < WIDTH; column++) {
            color c = pixel_at(w, ((float)column + 0.5f) / (float)HEIGHT,
                ((float)row + 0.5f) / (float)HEIGHT);
            *pixels++ = to_byte(c.r);
            *pixels++ = to_byte(c.g);
            *pixels++ = to_byte(c.b);
        }
    }
}
