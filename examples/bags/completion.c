/*
 * What bash and zsh complete, which `bags help bash` and `bags help zsh` print and
 * `make install` installs. It is made from the same tables as the help.
 */
#include "command.h"

static bool is_path(const option *one) { return one->kind == OPTION_PATH; }

static bool is_choice(const option *one) { return one->kind == OPTION_CHOICE; }

static void put_choices(text *out, const option *one) {
    const option_choice *to = (const option_choice *)one->to;
    for (size_t i = 0; to->name(i); i++)
        text_format(out, "%s%s", i ? " " : "", to->name(i));
}

/* ---- bash ---- */

static const char bash_start[] =
    "# Completion of bags for bash, made by `bags help bash`.\n"
    "_bags() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - "
    "1]}\n"
    "    local command=${COMP_WORDS[1]} option= options= valued= kinds=\n"
    "    local choices= operand=1 i=2\n"
    "    COMPREPLY=()\n"
    "    # bash splits --option=value into three words.\n"
    "    if [[ $cur == = ]]; then\n"
    "        option=$last cur=\n"
    "    elif [[ $last == = ]]; then\n"
    "        option=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    elif [[ $last == --?* ]]; then\n"
    "        option=$last\n"
    "    fi\n";

static const char bash_end[] =
    "    *)\n"
    "        compopt +o default\n"
    "        ;;\n"
    "    esac\n"
    "    if [[ -n $choices ]]; then\n"
    "        compopt +o default\n"
    "        COMPREPLY=($(compgen -W \"$choices\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    case \" $valued \" in\n"
    "    *\" $option=path \"*) return ;; # as files are completed by default\n"
    "    *\" $option= \"*)\n"
    "        compopt +o default\n"
    "        return\n"
    "        ;;\n"
    "    esac\n"
    "    if [[ $cur == -* ]]; then\n"
    "        compopt +o default\n"
    "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    # The number of this operand: those before it are neither options nor "
    "their\n"
    "    # values. Words are also split at colons.\n"
    "    while ((i < COMP_CWORD)); do\n"
    "        case ${COMP_WORDS[i]} in\n"
    "        = | :) ((i++)) ;;\n"
    "        --*)\n"
    "            if [[ \" $valued \" == *\" ${COMP_WORDS[i]}=\"* &&\n"
    "                ${COMP_WORDS[i + 1]} != = ]]; then\n"
    "                ((i++))\n"
    "            fi\n"
    "            ;;\n"
    "        *) ((operand++)) ;;\n"
    "        esac\n"
    "        ((i++))\n"
    "    done\n"
    "    ((operand <= ${#kinds})) || operand=${#kinds}\n"
    "    [[ ${kinds:operand-1:1} == f ]] || compopt +o default\n"
    "}\n"
    "complete -o default -F _bags bags\n";

/* A case of the command: its options, which of them have values, and of what kind. */
static void put_bash_command(text *out, const command *one) {
    const option *at;
    text_format(out, "    %s)\n        options='--help", one->name);
    for (size_t i = 0; (at = options_get(one, i)); i++)
        text_format(out, " --%s", at->name);
    text_puts(out, "'\n        kinds=");
    for (size_t i = 0; i < 3; i++) /* of a file, or of another word */
        text_puts(out, one->kinds[i] == ARGUMENT_WORD ? "w" : "f");
    text_puts(out, " valued='");
    for (size_t i = 0; (at = options_get(one, i)); i++)
        if (at->value)
            text_format(out, " --%s=%s", at->name, is_path(at) ? "path" : "");
    text_puts(out, "'\n");
    for (size_t i = 0; (at = options_get(one, i)); i++)
        if (is_choice(at)) {
            text_format(out, "        [[ $option != --%s ]] || choices='", at->name);
            put_choices(out, at);
            text_puts(out, "'\n");
        }
    text_puts(out, "        ;;\n");
}

void completion_bash(text *out, const command *const *commands) {
    static text names;
    for (size_t i = 0; commands[i]; i++)
        text_format(&names, "%s ", commands[i]->name);
    text_puts(out, bash_start);
    text_format(out,
        "    if ((COMP_CWORD == 1)); then\n"
        "        compopt +o default\n"
        "        COMPREPLY=($(compgen -W '%shelp --help --version' -- "
        "\"$cur\"))\n"
        "        return\n"
        "    fi\n"
        "    case $command in\n"
        "    help)\n"
        "        choices='%stypes man bash zsh'\n"
        "        ;;\n",
        text_string(&names), text_string(&names));
    for (size_t i = 0; commands[i]; i++)
        put_bash_command(out, commands[i]);
    text_puts(out, bash_end);
}

/* ---- zsh ---- */

/* Words within single quotes, in a part of a specification that a colon or bracket
 * ends. */
static void put_quoted(text *out, const char *words) {
    for (; *words; words++)
        if (*words == '\'')
            text_puts(out, "'\\''");
        else
            text_format(out, strchr(":[]\\", *words) ? "\\%c" : "%c", *words);
}

/* --name=[help]:value: and what completes the value. */
static void put_zsh_option(text *out, const option *one) {
    text_format(out, " \\\n            '--%s%s[", one->name, one->value ? "=" : "");
    put_quoted(out, one->help);
    text_puts(out, "]");
    if (one->value) {
        text_puts(out, ":");
        put_quoted(out, one->value);
        text_puts(out, ":");
    }
    if (is_path(one))
        text_puts(out, "_files");
    if (is_choice(one)) {
        text_puts(out, "(");
        put_choices(out, one);
        text_puts(out, ")");
    }
    text_puts(out, one->value && !is_path(one) && !is_choice(one) ? " '" : "'");
}

static void put_zsh_command(text *out, const command *one) {
    text_format(out, "    %s)\n        _arguments '--help[print the help]'", one->name);
    for (size_t i = 0; options_get(one, i); i++)
        put_zsh_option(out, options_get(one, i));
    for (int i = 0; i < 3 && (!one->most || i < one->most); i++)
        text_format(out, " \\\n            '%s:operand:%s'",
            i == 0   ? "1"
            : i == 1 ? "2"
                     : "*",
            one->kinds[i] == ARGUMENT_WORD ? "( )" : "_files");
    text_puts(out, "\n        ;;\n");
}

void completion_zsh(text *out, const command *const *commands) {
    text_puts(out, "#compdef bags\n"
                   "# Completion of bags for zsh, made by `bags help zsh`.\n"
                   "local -a commands\n"
                   "commands=(\n");
    for (size_t i = 0; commands[i]; i++) {
        text_format(out, "    '%s:", commands[i]->name);
        put_quoted(out, commands[i]->summary);
        text_puts(out, "'\n");
    }
    text_puts(out, "    'help:about a command'\n"
                   ")\n"
                   "if ((CURRENT == 2)); then\n"
                   "    _describe command commands -- '(--help --version)'\n"
                   "    return\n"
                   "fi\n"
                   "shift words\n"
                   "((CURRENT--))\n"
                   "case $words[1] in\n"
                   "    help)\n"
                   "        compadd -- ${commands%%:*} types man bash zsh\n"
                   "        ;;\n");
    for (size_t i = 0; commands[i]; i++)
        put_zsh_command(out, commands[i]);
    text_puts(out, "esac\n");
}
