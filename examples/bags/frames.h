/*
 * frames.h - the interface of frames.c for load.c: the options for windows of frames.
 */
#ifndef BAGS_COMMAND_FRAMES_H
#define BAGS_COMMAND_FRAMES_H

#include "command.h"

#include "load.h"

typedef struct framing_options {
    const char *clock, *offsets, *seconds, *times, *rate, *tolerance;
    option_choice pad;
    bool same_draw;
} framing_options;

extern framing_options framing;
#define FRAMES_OPTIONS                                                                 \
    {"frames", OPTION_TEXT, &framing.clock, "CLOCK",                                   \
        "load the items of this sequence"},                                            \
        {"offsets", OPTION_TEXT, &framing.offsets, "F=A:B,..",                         \
            "window of items: A to B - 1 after the frame"},                            \
        {"seconds", OPTION_TEXT, &framing.seconds, "F=A:B:S,..",                       \
            "or nearest to A, A + S, ... below B"},                                    \
        {"times", OPTION_TEXT, &framing.times, "F=TIMES,..",                           \
            "the field with the times of its items"},                                  \
        {"rate", OPTION_TEXT, &framing.rate, "F=HZ,..", "or their number per second"}, \
        {"tolerance", OPTION_TEXT, &framing.tolerance, "F=S,..",                       \
            "how far an item may be from its time"},                                   \
        {"pad", OPTION_CHOICE, &framing.pad, "HOW",                                    \
            "edge: repeat the first or last item, or drop"},                           \
    {                                                                                  \
        "same-draw", OPTION_FLAG, &framing.same_draw, NULL,                            \
            "crop the images of all fields alike"                                      \
    }

/* True if a field is loaded when --fields is not given: it is plain, is the clock, or
 * has a window. */
bool frames_names(size_t field, const char *of, const bags_field *all, size_t count);
/* Set the windows of the loaded fields. Returns the loader options. They last as long
 * as the program. */
const bags_frames_options *frames_apply(const char *of, const bags_field *all,
    size_t all_count, bags_load_field *fields, size_t count);

#endif /* BAGS_COMMAND_FRAMES_H */
