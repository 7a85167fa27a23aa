/* What a test includes: cmocka, support.h, and short assertions. */
#ifndef BAGS_TESTS_CHECK_H
#define BAGS_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support.h"

#define CHECK(holds) ((holds) ? (void)0 : _fail(__FILE__, __LINE__))

/* The call succeeds, or fails with this code; `said` is written only if it
 * fails. */
#define assert_ok(call) (poison(), CHECK(is_code(BAGS_OK, (int)(call), #call)))
#define assert_fails(code, call)                                                       \
    (poison(), CHECK(is_code((int)(code), (int)(call), #call)))
#define assert_opens(object, call)                                                     \
    (poison(), (object) = (call), CHECK(is_open((object) != NULL, #call)))
#define assert_refused(code, call)                                                     \
    (poison(), CHECK(is_refused((int)(code), (call), #call)))

/* The message of the last error contains these facts; see contains(). */
#define assert_says(pattern) CHECK(is_said(pattern))
#define assert_bytes(view, bytes, size) CHECK(is_bytes((view), (bytes), (size)))
#define assert_text(view, text) assert_bytes((view), (text), strlen(text))

#define assert_file(path, bytes, size) CHECK(is_file((path), (bytes), (size)))
/* The names in a directory, sorted and separated by spaces. */
#define assert_names(path, names) CHECK(is_names((path), (names)))
/* The same files with the same bytes in both directories. */
#define assert_same_tree(a, b) CHECK(is_same_tree((a), (b)))

/* A test that needs a POSIX system calls this first. */
#define skip_on_windows(why)                                                           \
    do {                                                                               \
        if (ON_WINDOWS) {                                                              \
            print_message("skipped %s: %s\n", __func__, why);                          \
            skip();                                                                    \
        }                                                                              \
    } while (0)

/* Steps of a function that has `w->where`, the step that failed, and `code`, and
 * ends at `done`. `said` is poisoned before each, so that the one that fails must
 * write it. */
#define STEP(call)                                                                     \
    do {                                                                               \
        poison();                                                                      \
        w->where = #call;                                                              \
        code = (call);                                                                 \
        if (code)                                                                      \
            goto done;                                                                 \
    } while (0)
#define OPEN_STEP(object, call, why)                                                   \
    do {                                                                               \
        poison();                                                                      \
        w->where = #call;                                                              \
        (object) = (call);                                                             \
        code = (object) ? BAGS_OK : (why).code;                                        \
        if (code)                                                                      \
            goto done;                                                                 \
    } while (0)

#define TEST(function)                                                                 \
    cmocka_unit_test_setup_teardown(function, support_setup, support_teardown)

#endif /* BAGS_TESTS_CHECK_H */
