/*
 * growing.h - text that grows. The command and the Python package use it.
 */
#ifndef BAGS_GROWING_H
#define BAGS_GROWING_H

#include "../../bags.h"

#include <stdarg.h>

typedef struct text {
    bags_buffer buffer;
    size_t size;
    bool failed; /* memory is missing; functions that append then do nothing */
} text;

void text_put(text *out, const void *data, size_t size);
void text_puts(text *out, const char *string);
void text_format(text *out, const char *format, ...) BAGI_PRINTF(2, 3);
void text_list(text *out, const char *format, va_list arguments) BAGI_PRINTF(2, 0);
/* The text as a NUL-terminated string, valid until the text grows. */
const char *text_string(text *out);
/* A JSON string; invalid UTF-8 becomes U+FFFD. */
void text_json(text *out, const void *data, size_t size);
void text_json_string(text *out, const char *string);
/* Append JSON made elsewhere, escaping the same characters as text_json. */
void text_json_clean(text *out, bags_view json);
/* Separate list elements or object members: appends ", ", except before the first. */
void text_next(text *out);
/* Start an object member, or write an entire one, where NULL becomes null. */
void text_member(text *out, const char *name);
void text_member_string(text *out, const char *name, const char *value);
void text_member_number(text *out, const char *name, uint64_t value);

/* Called when memory is missing. NULL: the text only notes it. */
extern void (*text_fails)(const bags_error *err);

/* If the valid UTF-8 at this position begins with a character that controls a terminal
 * or changes the display order of others, returns its size and stores its code.
 * Otherwise returns 0. */
size_t control_size(const unsigned char *at, size_t size, unsigned *code);
bool has_ending(const char *word, const char *ending); /* ignores case */

#endif /* BAGS_GROWING_H */
