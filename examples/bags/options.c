/*
 * The words of a command line: options wherever they stand, as --name VALUE or
 * --name=VALUE, "--" before words that begin with a dash. A negative number is
 * a word, so that it gets an error that says what is wrong with it.
 */
#include "command.h"

#include <string.h>

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_option(const char *word) {
    return word[0] == '-' && word[1] != 0 && !is_digit(word[1]);
}

static const option *find_option(const char *name, size_t size,
    const option *options, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].name) == size &&
            !memcmp(options[i].name, name, size))
            return &options[i];
    return NULL;
}

/* Take one option; *next is the word behind it, or NULL. Returns how many words
 * it has, or 0 after a complaint. */
static int take_option(const command *about, const char *word, char *next,
    const option *options, size_t count) {
    const char *name = word + 2;
    const char *equals = word[1] == '-' ? strchr(name, '=') : NULL;
    size_t size = equals ? (size_t)(equals - name)
                         : word[1] == '-' ? strlen(name) : 0;
    const option *found = find_option(name, size, options, count);
    if (!found || size == 0) {
        fail_usage(about, "there is no option %s", word);
        return 0;
    }
    if (found->flag) {
        if (equals) {
            fail_usage(about, "--%s takes no value", found->name);
            return 0;
        }
        *found->flag = true;
        return 1;
    }
    const char *value = equals ? equals + 1 : next;
    if (!value || *found->value) {
        fail_usage(about, value ? "--%s is given twice" : "--%s needs a value",
            found->name);
        return 0;
    }
    *found->value = value;
    return equals ? 1 : 2;
}

bool options_parse(const command *about, int *count, char **words,
    const option *options, size_t options_count, int *exit_code) {
    int kept = 0;
    for (int i = 0; i < *count;) {
        if (!strcmp(words[i], "--help") || !strcmp(words[i], "-h")) {
            fputs(about->help, stdout);
            *exit_code = 0;
            return false;
        }
        if (!strcmp(words[i], "--")) {
            while (++i < *count)
                words[kept++] = words[i];
            break;
        }
        if (!is_option(words[i])) {
            words[kept++] = words[i++];
            continue;
        }
        int taken = take_option(about, words[i],
            i + 1 < *count ? words[i + 1] : NULL, options, options_count);
        if (taken == 0) {
            *exit_code = 2;
            return false;
        }
        i += taken;
    }
    *count = kept;
    return true;
}

number_kind number_parse(const char *string, size_t size, uint64_t *out) {
    bool negative = size > 1 && string[0] == '-';
    uint64_t number = 0;
    if (size == 0)
        return NUMBER_NONE;
    for (size_t i = negative ? 1 : 0; i < size; i++) {
        if (!is_digit(string[i]))
            return NUMBER_NONE;
        uint64_t digit = (uint64_t)(string[i] - '0');
        number = number > (UINT64_MAX - digit) / 10 ? UINT64_MAX
                                                    : number * 10 + digit;
    }
    if (negative)
        return NUMBER_NEGATIVE;
    *out = number;
    return NUMBER_GOOD;
}

/* Like number_parse, but a number that is too large is none. */
static bool number_exact(const char *string, size_t size, uint64_t *out) {
    static const char most[] = "18446744073709551615";
    while (size > 1 && string[0] == '0') {
        string++;
        size--;
    }
    size_t digits = sizeof most - 1;
    if (size > digits || (size == digits && memcmp(string, most, digits) > 0))
        return false;
    return number_parse(string, size, out) == NUMBER_GOOD;
}

bool number_option(const char *string, uint64_t *out) {
    return number_exact(string, strlen(string), out);
}

bool size_option(const char *string, uint64_t *out) {
    static const char units[] = "KMGT";
    size_t digits = 0;
    while (is_digit(string[digits]))
        digits++;
    uint64_t number = 0;
    if (!number_exact(string, digits, &number))
        return false;
    const char *rest = string + digits;
    unsigned shift = 0;
    const char *unit = *rest ? strchr(units, *rest) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        rest++;
    }
    if (*rest && strcmp(rest, unit ? "iB" : "B"))
        return false;
    if (number > UINT64_MAX >> shift)
        return false;
    *out = number << shift;
    return true;
}
