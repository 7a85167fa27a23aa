/*
 * Completion for bash and zsh. `bags help bash` and `bags help zsh` print scripts, and
 * `make install` installs them. The scripts call `bags help complete WORD...` with the
 * words of a line up to the incomplete one. It prints FILES or a list of possible
 * words.
 */
#include "command.h"

static const char bash_script[] =
    "# Completion of bags for bash, made by `bags help bash`.\n"
    "_bags() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} found\n"
    "    found=$(command \"${COMP_WORDS[0]}\" help complete \\\n"
    "        \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
    "    COMPREPLY=()\n"
    "    [[ $found != FILES ]] || return # as files are completed by default\n"
    "    compopt +o default\n"
    "    COMPREPLY=($(compgen -W \"$found\" -- \"${cur#=}\"))\n"
    "}\n"
    "complete -o default -F _bags bags\n";

static const char zsh_script[] =
    "#compdef bags\n"
    "# Completion of bags for zsh, made by `bags help zsh`.\n"
    "local found=$(command $words[1] help complete \"${(@)words[2,CURRENT]}\" "
    "2>/dev/null)\n"
    "[[ $PREFIX != --*=* ]] || compset -P '*='\n"
    "if [[ $found == FILES ]]; then\n"
    "    _files\n"
    "else\n"
    "    compadd -- ${=found}\n"
    "fi\n";

void completion_bash(text *out, const command *const *ignored) {
    (void)ignored;
    text_puts(out, bash_script);
}

void completion_zsh(text *out, const command *const *ignored) {
    (void)ignored;
    text_puts(out, zsh_script);
}

static void put_commands(text *out, const command *const *commands, const char *more) {
    for (size_t i = 0; commands[i]; i++)
        text_format(out, "%s ", commands[i]->name);
    text_format(out, "%s\n", more);
}

static const option *find_option(const command *of, const char *word) {
    size_t size = strcspn(word, "=");
    const option *at;
    for (size_t i = 0; (at = options_get(of, i)); i++)
        if (size == strlen(at->name) + 2 && !strncmp(word, "--", 2) &&
            !strncmp(word + 2, at->name, size - 2))
            break;
    return at;
}

static void put_value(text *out, const option *one) {
    const option_choice *to = (const option_choice *)one->to;
    if (one->kind == OPTION_PATH)
        text_puts(out, "FILES\n");
    for (size_t i = 0; one->kind == OPTION_CHOICE && choice_name(to, i); i++)
        text_format(out, "%s\n", choice_name(to, i));
}

/* bash splits words at = and :, and treats those characters as words too. */
void completion_words(
    text *out, const command *const *commands, int count, char **words) {
    const char *last = count ? words[count - 1] : "";
    const command *of = NULL;
    const option *valued = NULL; /* the option whose value comes next */
    size_t operand = 0;
    if (count < 2) {
        put_commands(out, commands, "help --help --version");
        return;
    }
    for (size_t i = 0; commands[i] && !of; i++)
        of = strcmp(commands[i]->name, words[0]) ? NULL : commands[i];
    if (!of && !strcmp(words[0], "help"))
        put_commands(out, commands, "types man bash zsh");
    if (!of)
        return;
    for (int i = 1; i + 1 < count; i++) {
        const option *at = find_option(of, words[i]);
        bool separates = !strcmp(words[i], "=") || !strcmp(words[i], ":");
        if (separates)
            i += !valued;
        else if (!valued && words[i][0] != '-')
            operand++;
        if (!separates)
            valued = !valued && at && at->value && !strchr(words[i], '=') ? at : NULL;
    }
    if (!valued && strchr(last, '='))
        valued = find_option(of, last);
    if (valued) {
        put_value(out, valued);
    } else if (last[0] == '-') {
        text_puts(out, "--help\n");
        for (size_t i = 0; options_get(of, i); i++)
            text_format(out, "--%s\n", options_get(of, i)->name);
    } else if (of->kinds[operand < 2 ? operand : 2] != ARGUMENT_WORD) {
        text_puts(out, "FILES\n");
    }
}
