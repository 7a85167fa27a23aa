/* Bouncing balls in a box with gravity and wind, and how to draw them. */
#ifndef WORLD_H
#define WORLD_H

#include <stdint.h>

enum { BALLS = 6, WIDTH = 160, HEIGHT = 120, CHANNELS = 3 };
enum { FRAME_SIZE = WIDTH * HEIGHT * CHANNELS };

/* The unit of length is the height of the box, and of time the second; y points
 * down. */
typedef struct world {
    float state[BALLS][4]; /* x, y and their speeds */
    float wind[2];         /* acceleration, as chosen by an agent */
    float radius[BALLS];
    float travelled[BALLS];
    uint64_t random;
} world;

extern const float world_gravity;
extern const char *const world_colors[BALLS];

void world_start(world *w, uint64_t seed);

/* A random number from 0 to 1. */
float world_random(world *w);

/* Advance by a time that is short compared to the balls' movement. */
void world_step(world *w, float seconds);

/* Draw into HEIGHT x WIDTH x 3 bytes. */
void world_draw(const world *w, unsigned char *pixels);

#endif
