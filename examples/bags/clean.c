/*
 * Text from data, file names and servers is untrusted and must not control a terminal.
 */
#include "command.h"

bool is_clean(const char *string) {
    size_t size = strlen(string), control = 0;
    unsigned code;
    for (size_t i = 0; i < size && !control; i++)
        control = control_size((const unsigned char *)string + i, size - i, &code);
    return !control && bags_utf8_valid(string, size, NULL);
}

void clean_copy(char *out, size_t capacity, const char *string) {
    const unsigned char *at = (const unsigned char *)string;
    size_t left = strlen(string), valid = 0, used = 0;
    while (left > 0) {
        char escape[6] = "\\x";
        const void *from = at;
        size_t step = 1, size = 1;
        unsigned code = at[0];
        if (valid == 0) {
            valid = left;
            bags_utf8_valid(at, left, &valid);
        }
        size_t control = valid ? control_size(at, valid, &code) : 1;
        if (control) {
            step = control;
            from = escape;
            size = step > 1 ? 6 : 4;
            escape[1] = step > 1 ? 'u' : 'x';
            for (size_t i = size; i-- > 2; code >>= 4)
                escape[i] = "0123456789abcdef"[code & 15];
        }
        if (used + size >= capacity)
            break;
        memcpy(out + used, from, size);
        used += size;
        at += step;
        left -= step;
        valid -= valid ? step : 0;
    }
    out[used] = 0;
}
