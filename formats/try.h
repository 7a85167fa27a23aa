/*
 * try.h - run a step of a function, and return early if it fails. Programs do not
 * include it.
 */
#ifndef BAGS_FORMATS_TRY_H
#define BAGS_FORMATS_TRY_H

/* Run a step in a function with nothing to clean up: if it fails, return its code. */
#define FORMAT_TRY(step)                                                               \
    do {                                                                               \
        bags_code format_failed = (step);                                              \
        if (format_failed)                                                             \
            return format_failed;                                                      \
    } while (0)

#endif /* BAGS_FORMATS_TRY_H */
