/*
 * try.h - a step of a function that returns early. Programs do not include it.
 */
#ifndef BAGS_FORMATS_TRY_H
#define BAGS_FORMATS_TRY_H

/* A step of a function that has nothing to clean up: return its failure. */
#define FORMAT_TRY(step)                                                               \
    do {                                                                               \
        bags_code format_failed = (step);                                              \
        if (format_failed)                                                             \
            return format_failed;                                                      \
    } while (0)

#endif /* BAGS_FORMATS_TRY_H */
