/*
 * The help of all commands, and the man page. `bags help man` prints it in mdoc(7)
 * format, and `make install` installs it. Both are generated from the tables of the
 * commands.
 */
#include "command.h"

#define DATE "November 22, 2026"
#define WIDTH 76

static const char help_about[] =
    "A Bag is a file NAME.bag. A dataset is a directory with spec.json and a "
    "NAME.bag for each field, or a directory of such directories, its shards. "
    "Commands that read accept one in X.zip or X.tar, too.\n";
static const char help_codes[] =
    "Exit code: 0 success, 1 an error, 2 an invalid command line.\n";

/* One line for each command. */
void commands_help(text *out, const command *const *commands) {
    text_puts(out,
        "bags " BAGS_VERSION " - pack, show and unpack machine-learning datasets\n"
        "\n"
        "usage: bags COMMAND ...\n"
        "\n");
    for (size_t i = 0; commands[i]; i++)
        text_format(out, "  %-10s%s\n", commands[i]->name, commands[i]->summary);
    text_puts(out, "  help      this text; bags help COMMAND: about a command;\n"
                   "            bags help types: the types of fields;\n"
                   "            bags help man: the man page;\n"
                   "            bags help bash, bags help zsh: what they complete\n"
                   "  --version the version, and the formats and importers built in\n"
                   "\n");
    text_wrapped(out, help_about, 0, 0);
    text_puts(out, "\n"
                   "example:\n"
                   "  bags pack pets.jsonl pets --spec 'photo=jpeg,label=int(4)'\n"
                   "  bags info pets\n"
                   "  bags get pets 0:3 label\n"
                   "\n");
    text_puts(out, help_codes);
}

/* ---- the man page ---- */

/* Append part of a text line. */
static void put_text(text *out, const char *from, size_t size) {
    if (size && *from == '.')
        text_puts(out, "\\&");
    for (size_t i = 0; i < size; i++) {
        const char *escape = from[i] == '\\'   ? "\\e"
                             : from[i] == '-'  ? "\\-"
                             : from[i] == '\'' ? "\\(aq"
                                               : NULL;
        text_put(out, escape ? escape : from + i, escape ? strlen(escape) : 1);
    }
}

/* Append sentences, each starting on a new line. */
static void put_sentences(text *out, const char *words) {
    size_t used = 0; /* columns used in the current line */
    for (const char *before = words; *words;) {
        size_t size = strcspn(words, " \n");
        bool ended = words - before > 2 && words[-2] == '.' && words[-3] != '.';
        bool starts = *words == '`' || (*words >= 'A' && *words <= 'Z');
        if (used && ((ended && starts) || used + 1 + size > WIDTH)) {
            text_puts(out, "\n");
            used = 0;
        }
        text_puts(out, used ? " " : "");
        put_text(out, words, size);
        used += size + 1;
        words += size + (words[size] != 0);
    }
    text_puts(out, "\n");
}

static void put_lines(text *out, const char *lines) {
    while (*lines) {
        size_t size = strcspn(lines, "\n");
        put_text(out, lines, size);
        text_puts(out, "\n");
        lines += size + (lines[size] != 0);
    }
}

/* Append an .It for each option, with its value as an argument. */
static void put_options(text *out, const command *of) {
    const option *at;
    for (size_t i = 0; (at = options_get(of, i)); i++) {
        text_puts(out, i ? "" : ".Bl -tag -width Ds\n");
        text_format(out, ".It Fl Fl %s%s%s\n", at->name, at->value ? " Ar " : "",
            at->value ? at->value : "");
        put_sentences(out, at->help);
    }
    text_puts(out, options_get(of, 0) ? ".El\n" : "");
}

void manual_help(text *out, const command *const *commands) {
    static text types;
    text_puts(out,
        ".Dd " DATE "\n.Dt BAGS 1\n.Os\n.Sh NAME\n.Nm bags\n"
        ".Nd pack, show and unpack machine-learning datasets\n.Sh SYNOPSIS\n");
    for (size_t i = 0; commands[i]; i++) {
        text_format(out, ".Nm\n.Cm %s\n.Li ", commands[i]->name);
        put_text(out, commands[i]->operands, strlen(commands[i]->operands));
        text_puts(out, options_get(commands[i], 0) ? " [OPTION...]\n" : "\n");
    }
    text_puts(out,
        ".Nm\n.Cm help\n.Op Ar command | Cm types | Cm man | Cm bash | Cm zsh\n"
        ".Nm\n.Fl Fl version\n.Sh DESCRIPTION\n");
    put_sentences(out, help_about);
    text_puts(out, ".Pp\nThe commands are:\n.Bl -tag -width Ds\n");
    for (size_t i = 0; commands[i]; i++) {
        const command *one = commands[i];
        text_format(out, ".It Cm %s\n", one->name);
        put_sentences(out, one->about);
        put_options(out, one);
    }
    text_puts(out,
        ".It Cm help\nPrint the help of one command, of all, or of the types, "
        "or this page,\nor what bash or zsh complete.\n.El\n.Sh TYPES\n.Bd "
        "-literal\n");
    types_help(&types);
    put_lines(out, text_string(&types));
    text_puts(out, ".Ed\n.Sh EXIT STATUS\n");
    put_sentences(out, help_codes);
    text_puts(out, ".Sh EXAMPLES\n.Bd -literal -offset indent\n");
    for (size_t i = 0; commands[i]; i++)
        put_lines(out, commands[i]->examples);
    text_puts(out, ".Ed\n");
}
