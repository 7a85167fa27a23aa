/*
 * bags - pack, show and unpack datasets in the Bag and Bags formats.
 *
 * Lists the subcommands, and runs one of them. No other file calls this one.
 */
#include "command.h"
#include "modules.h"
#include "system.h"

extern const command command_card, command_catalogue, command_checksum, command_copy,
    command_derive, command_diff, command_export, command_finalize, command_get,
    command_images, command_import, command_index, command_info, command_load,
    command_pack, command_recover, command_sheet, command_sql, command_stats,
    command_verify, command_view, command_zip;

/* To add a subcommand, add its name above and here. */
static const command *const commands[] = {
    &command_info,
    &command_get,
    &command_index,
    &command_export,
    &command_pack,
    &command_images,
    &command_import,
    &command_sheet,
    &command_view,
    &command_derive,
    &command_diff,
    &command_sql,
    &command_load,
    &command_stats,
    &command_finalize,
    &command_recover,
    &command_verify,
    &command_checksum,
    &command_catalogue,
    &command_card,
    &command_zip,
    &command_copy,
    NULL,
};

static void help_types(text *out, const command *const *ignored) {
    (void)ignored;
    types_help(out);
}

static const struct topic {
    const char *name;
    void (*print)(text *out, const command *const *commands);
} topics[] = {
    {"help", commands_help},
    {"types", help_types},
    {"man", manual_help},
    {"bash", completion_bash},
    {"zsh", completion_zsh},
};

#define TOPICS (sizeof topics / sizeof *topics)

/* Find a command by name. A misspelt name may also stand for a help topic or, at the
 * start of a line, for an option. */
static const command *find_command(const char *name, bool for_help) {
    guess from = {name, strlen(name), NULL, 0};
    for (size_t i = 0; commands[i]; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    for (size_t i = 0; commands[i]; i++)
        guess_name(&from, commands[i]->name);
    for (size_t i = 0; i < (for_help ? TOPICS : 1); i++)
        guess_name(&from, topics[i].name);
    if (!for_help)
        guess_name(&from, "--version");
    usage("there is no command %s%s (see `bags help`)", name,
        guess_words(&from, for_help ? "bags help " : "bags ", ""));
}

static void run_help(int count, char **words) {
    static text out;
    const char *about = count ? words[0] : "help";
    size_t i = 0;
    if (!strcmp(about, "complete")) {
        completion_words(&out, commands, count - 1, words + 1);
        text_output(&out);
        return;
    }
    if (count > 1)
        usage("help: expected one COMMAND (see `bags help`)");
    while (i < TOPICS && strcmp(topics[i].name, about))
        i++;
    if (i < TOPICS)
        topics[i].print(&out, commands);
    else
        options_help(&out, find_command(about, true));
    text_output(&out);
}

static int run(int count, char **words) {
    if (count == 0)
        usage("which command? (see `bags help`)");
    if (!strcmp(words[0], "--version")) {
        printf("bags %s\n", bags_version());
        formats_print();
        importers_print();
        return 0;
    }
    if (!strcmp(words[0], "help") || !strcmp(words[0], "--help") ||
        !strcmp(words[0], "-h")) {
        run_help(count - 1, words + 1);
        return 0;
    }
    const command *chosen = find_command(words[0], false);
    failed_command = chosen->name;
    if (!options_parse(chosen, count - 1, words + 1))
        return 0;
    progress_prepare();
    return chosen->run(words + 1);
}

static void die_of(const bags_error *err) {
    failure = *err;
    die();
}

int main(int argc, char **argv) {
    text_fails = die_of;
    /* Keep the words as an interruption shows them, since parsing reorders `argv`. */
    char **shown = (char **)allocate((size_t)argc, sizeof *shown);
    for (int i = 0; i < argc; i++)
        shown[i] = path_shown(argv[i]);
    modules_prepare();
    prepare_files();
    expect_truncation();
    interrupt_expect(shown);
    int code = run(argc - 1, argv + 1);
    return output_is_complete() ? code : failure_exit;
}
