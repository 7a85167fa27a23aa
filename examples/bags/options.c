/*
 * Parse the command line and print the help, both from tables of options. Options may
 * be anywhere, as --name VALUE or --name=VALUE; "--" precedes operands that begin with
 * a dash. A negative number is an operand.
 */
#include "command.h"

#include "text.h"

#include <ctype.h>
#include <errno.h>

#define HELP_WIDTH 72

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* ---- parsing ---- */

static const command *parsed; /* the command whose options are parsed */

static bool is_option(const char *word) {
    return word[0] == '-' && word[1] != 0 && !is_digit(word[1]);
}

/* 512, 10K, 512M, 10g, 2T, optionally followed by B or iB: powers of 1024. */
static bool parse_size(const char *word, uint64_t *out) {
    static const char units[] = "KMGT";
    bags_value value;
    const char *rest = word + strspn(word, "0123456789");
    if (!format_number(word, (size_t)(rest - word), &value))
        return false;
    const char *unit = *rest ? strchr(units, toupper((unsigned char)*rest)) : NULL;
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    rest += unit != NULL;
    *out = value.uint << shift;
    return value.uint <= UINT64_MAX >> shift &&
           (!*rest || !strcmp(rest, unit ? "iB" : "B"));
}

const char *choice_name(const option_choice *of, size_t i) {
    return *(const char *const *)(const void *)((const char *)of->names + i * of->step);
}

/* Set the value of an OPTION_CHOICE. The message about an unknown value lists all
 * possible values. */
static void choose(const option *given, const char *value) {
    option_choice *to = (option_choice *)given->to;
    guess from = {value, strlen(value), NULL, 0};
    static text names;
    const char *name;
    if (to->given)
        usage("duplicate option --%s", given->name);
    to->given = true;
    names.size = 0;
    for (to->value = 0; (name = choice_name(to, to->value)); to->value++) {
        if (!strcmp(name, value))
            return;
        guess_name(&from, name);
        text_format(&names, "%s%s", to->value ? ", " : "", name);
    }
    usage("--%s: \"%s\" is not one of %s%s", given->name, value,
        names.size ? text_string(&names) : "(none in this build)",
        guess_words(&from, "", ""));
}

/* Store a value according to the kind of its option. Repeating an option is an error,
 * since one of the two values would be ignored silently; only flags and lists may be
 * repeated. */
static void set_value(const option *given, const char *value) {
    option_list *list = (option_list *)given->to;
    option_number *to = (option_number *)given->to;
    const char **string = (const char **)given->to;
    if (given->kind == OPTION_FLAG) {
        *(bool *)given->to = true;
        return;
    }
    if (given->kind == OPTION_CHOICE) {
        choose(given, value);
        return;
    }
    if (given->kind == OPTION_LIST) {
        list->words =
            (const char **)grow(list->words, list->count, sizeof *list->words);
        list->words[list->count++] = value;
        return;
    }
    bool is_text = given->kind == OPTION_TEXT || given->kind == OPTION_PATH;
    if (is_text ? *string != NULL : to->given)
        usage("duplicate option --%s", given->name);
    if (given->kind == OPTION_PATH)
        path_must_be_local(temp_format("--%s", given->name), value);
    if (is_text) {
        *string = value;
        return;
    }
    to->given = true;
    if (given->kind == OPTION_SIZE && !parse_size(value, &to->value))
        usage("--%s: \"%s\" is not a size, such as 512M or 10G", given->name, value);
    bags_value number;
    if (given->kind == OPTION_NUMBER) {
        if (*value == '-' || !format_number(value, strlen(value), &number))
            usage("--%s: \"%s\" is not a number from 0 to 2^64-1", given->name, value);
        to->value = number.uint;
    }
    if (to->value < to->least)
        usage("--%s must be at least %ju", given->name, (uintmax_t)to->least);
    if (to->most && to->value > to->most)
        usage("--%s must be at most %ju", given->name, (uintmax_t)to->most);
}

const option *options_get(const command *about, size_t i) {
    bool reads = false;
    for (size_t k = 0; k < 3; k++)
        reads = reads || about->kinds[k] == ARGUMENT_PATH;
    const option *const tables[] = {
        about->options, about->shared, reads ? cache_options : NULL};
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        for (const option *at = tables[k]; at && at->name; at++)
            if (i-- == 0)
                return at;
    return NULL;
}

/* The message omits the value, since it may be a secret. */
ENDS static void fail_option(const command *about, const char *word, size_t size) {
    size_t dashes = strspn(word, "-");
    guess from = {word + dashes, size - dashes, NULL, 0};
    const option *at;
    for (size_t i = 0; (at = options_get(about, i)); i++)
        guess_name(&from, at->name);
    usage("there is no option %.*s%s", (int)size, word, guess_words(&from, "--", ""));
}

/* Parse the option at words[0]. Returns how many words it takes. */
static int parse_option(const command *about, char **words, int count) {
    const char *name = words[0] + 2;
    const char *equals = words[0][1] == '-' ? strchr(name, '=') : NULL;
    size_t size = equals               ? (size_t)(equals - name)
                  : words[0][1] == '-' ? strlen(name)
                                       : 0;
    const option *found;
    for (size_t i = 0; (found = options_get(about, i)); i++)
        if (strlen(found->name) == size && !memcmp(found->name, name, size))
            break;
    if (!found)
        fail_option(
            about, words[0], equals ? (size_t)(equals - words[0]) : strlen(words[0]));
    bool flag = found->kind == OPTION_FLAG;
    if (flag && equals)
        usage("--%s has no value", found->name);
    if (!flag && !equals && count < 2)
        usage("--%s needs a value", found->name);
    set_value(found, equals ? equals + 1 : words[1]);
    return flag || equals ? 1 : 2;
}

/* The name of operand `i`, from a text like "PATH INDEX [SELECT...]". */
static const char *operand_name(const command *about, int i) {
    const char *at = about->operands;
    for (; i > 0 && strchr(at, ' '); i--)
        at = strchr(at, ' ') + 1;
    return temp_format("%.*s", (int)strcspn(at, " ."), at);
}

/* Check the number and kinds of operands. An empty word usually comes from an unset
 * variable in a script. */
static void check_operands(const command *about, int count, char **words) {
    if (count < about->least || (about->most && count > about->most))
        usage("expected %s", about->operands);
    for (int i = 0; i < count; i++) {
        if (!*words[i] && i < 2)
            usage("expected %s, not an empty word", about->operands);
        if (about->kinds[i < 2 ? i : 2] == ARGUMENT_LOCAL)
            path_must_be_local(operand_name(about, i), words[i]);
    }
}

bool options_parse(const command *about, int count, char **words) {
    int kept = 0;
    parsed = about;
    for (int i = 0; i < count;) {
        if (!strcmp(words[i], "--help") || !strcmp(words[i], "-h")) {
            static text out;
            options_help(&out, about);
            text_output(&out);
            return false;
        }
        if (!strcmp(words[i], "--")) {
            while (++i < count)
                words[kept++] = words[i];
        } else if (is_option(words[i])) {
            i += parse_option(about, words + i, count - i);
        } else {
            words[kept++] = words[i++];
        }
    }
    words[kept] = NULL;
    check_operands(about, kept, words);
    const char *cache = getenv("BAGS_CACHE");
    if (!cache || !*cache)
        options_need("cache-size", "cache");
    return true;
}

static bool is_given(const option *one) {
    switch (one->kind) {
    case OPTION_FLAG:
        return *(const bool *)one->to;
    case OPTION_TEXT:
    case OPTION_PATH:
        return *(const char *const *)one->to != NULL;
    case OPTION_LIST:
        return ((const option_list *)one->to)->count > 0;
    case OPTION_CHOICE:
        return ((const option_choice *)one->to)->given;
    case OPTION_NUMBER:
    case OPTION_SIZE:
        break;
    }
    return ((const option_number *)one->to)->given;
}

/* The first of "a|b|c" that was given, or NULL. *rest is the rest of the list. */
static const char *find_given(const char *names, const char **rest) {
    for (*rest = names; names && **rest;) {
        const char *name = *rest;
        size_t size = strcspn(name, "|");
        const option *at;
        *rest += size + (name[size] != 0);
        for (size_t i = 0; (at = options_get(parsed, i)); i++)
            if (strlen(at->name) == size && !memcmp(at->name, name, size) &&
                is_given(at))
                return at->name;
    }
    return NULL;
}

const char *options_given(const char *names) {
    const char *rest;
    return find_given(names, &rest);
}

void options_exclude(const char *some, const char *others) {
    const char *rest, *one = find_given(some, &rest);
    const char *other = one ? find_given(others ? others : rest, &rest) : NULL;
    if (other)
        usage("--%s and --%s are mutually exclusive", one, other);
}

void options_need(const char *some, const char *others) {
    const char *rest, *one = find_given(some, &rest);
    if (!one || find_given(others, &rest))
        return;
    char needed[80] = "";
    for (size_t used = 0, size; *others && used < sizeof needed; others += size) {
        others += *others == '|';
        size = strcspn(others, "|");
        used += (size_t)snprintf(needed + used, sizeof needed - used, "%s--%.*s",
            used == 0           ? ""
            : others[size] == 0 ? " or "
                                : ", ",
            (int)size, others);
    }
    usage("--%s needs %s", one, needed);
}

/* Remove spaces at both ends. */
static char *trim(char *word) {
    word += strspn(word, " ");
    size_t size = strlen(word);
    while (size > 0 && word[size - 1] == ' ')
        word[--size] = 0;
    return word;
}

bool list_next(char **at, char **name, char **value) {
    char *end = *at, *equals;
    if (!end)
        return false;
    for (int depth = 0; *end && (*end != ',' || depth > 0); end++)
        depth += *end == '(' ? 1 : *end == ')' ? -1 : 0;
    *name = *at;
    *at = *end ? end + 1 : NULL;
    *end = 0;
    equals = strrchr(*name, '=');
    if (equals)
        *equals = 0;
    *value = equals ? trim(equals + 1) : NULL;
    *name = trim(*name);
    return true;
}

/* ---- help ---- */

void text_wrapped(text *out, const char *words, size_t at, size_t indent) {
    bool at_start = true; /* at the start of a line */
    while (*words) {
        size_t size = strcspn(words, " \n");
        if (!at_start && at + 1 + size > HELP_WIDTH) {
            text_format(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (!at_start) {
            text_puts(out, " ");
            at++;
        }
        text_put(out, words, size);
        at += size;
        words += size;
        at_start = *words == '\n' && words[1];
        if (at_start) {
            text_format(out, "\n%*s", (int)indent, "");
            at = indent;
        }
        words += *words != 0;
    }
    text_puts(out, "\n");
}

/* --name VALUE */
static const char *option_title(const option *one) {
    return temp_format(
        "--%s%s%s", one->name, one->value ? " " : "", one->value ? one->value : "");
}

void options_help(text *out, const command *about) {
    size_t column = 0; /* where the help of the options starts */
    const option *at;
    for (size_t i = 0; (at = options_get(about, i)); i++) {
        size_t size = strlen(option_title(at)) + 4;
        column = size > column ? size : column;
    }
    text_format(out, "usage: bags %s %s%s\n\n", about->name, about->operands,
        column ? " [OPTION...]" : "");
    text_wrapped(out, about->about, 0, 0);
    text_puts(out, "\n");
    for (size_t i = 0; (at = options_get(about, i)); i++) {
        text_format(out, "  %-*s", (int)column - 2, option_title(at));
        text_wrapped(out, at->help, column, column);
    }
    text_format(out, "%sexample:\n%s", column ? "\n" : "", about->examples);
}
