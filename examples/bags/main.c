/*
 * bags - pack, show and unpack datasets in the Bag and Bags formats.
 *
 * Finds the subcommand and reports its failure. Everything printed must have
 * arrived: a full disk is an error with exit code 1. If the program that reads
 * the output has closed it, the command ends silently, as `bags get ... | head`
 * needs.
 */
#include "command.h"
#include "system.h"

#include <stdarg.h>
#include <stdatomic.h>

extern const command command_checksum, command_copy, command_export, command_finalize,
    command_get, command_images, command_index, command_import, command_info,
    command_load, command_pack, command_recover, command_sheet, command_verify,
    command_zip;

/* A new subcommand is one name above and one here. */
static const command *const commands[] = {
    &command_info,
    &command_get,
    &command_index,
    &command_export,
    &command_pack,
    &command_images,
    &command_import,
    &command_sheet,
    &command_load,
    &command_finalize,
    &command_recover,
    &command_verify,
    &command_checksum,
    &command_zip,
    &command_copy,
    NULL,
};

static const command *chosen;

/* ---- failures ---- */

#define TRUNCATED "a file was truncated while it was read, or its disk failed"

bags_error failure;
void (*on_failure)(void);
const char *mapped_path;

void note(const char *format, ...) {
    char message[2 * BAGS_ERROR_SIZE], clean[4 * sizeof message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    clean_copy(clean, sizeof clean, message);
    progress_hide();
    fprintf(stderr, "bags: %s\n", clean);
}

void die(void) {
    void (*prepare)(void) = on_failure;
    on_failure = NULL;
    if (prepare)
        prepare();
    bool is_usage = failure.code == BAGS_ERROR_ARGUMENT;
    if (is_usage && chosen)
        note(
            "%s: %s (see `bags help %s`)", chosen->name, failure.message, chosen->name);
    else
        note("%s", failure.message);
    interrupt_end();
    exit(is_usage ? 2 : 1);
}

void fail(bags_code code, const char *format, ...) {
    bags_error made = failure; /* whose message may be among the arguments */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made.message, sizeof made.message, format, arguments);
    va_end(arguments);
    made.code = code;
    failure = made;
    die();
}

void fail_system(int error, const char *path, const char *doing) {
    if (error == EEXIST && !strcmp(doing, "create"))
        fail(BAGS_ERROR_EXISTS, "%s: already exists; remove it, or write to a new path",
            path);
    if (error == EFAULT) /* of a write, what is SIGBUS of a read */
        fail(BAGS_ERROR_IO, "%s%s" TRUNCATED, mapped_path ? mapped_path : "",
            mapped_path ? ": " : "");
    bags_fail_io(NULL, error, path, doing, &failure);
    die();
}

#ifndef _WIN32
void fail_in_signal(const char *path, const char *what) {
    static atomic_flag failed = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&failed))
        pause(); /* another thread prints it */
    progress_hide();
    char clean[BAGS_ERROR_SIZE] = "";
    if (path)
        clean_copy(clean, sizeof clean, path);
    const char *const parts[] = {"bags: ", clean, path ? ": " : "", what, "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0)
            break;
    _exit(1);
}

static void say_truncated(int number) {
    (void)number;
    fail_in_signal(mapped_path, TRUNCATED);
}

static void expect_truncation(void) {
    struct sigaction action = {.sa_handler = say_truncated};
    sigaction(SIGBUS, &action, NULL);
}
#else
static void expect_truncation(void) {}
#endif

void must(bags_code code) {
    if (code)
        die();
}

void must_open(const void *opened) {
    if (!opened)
        die();
}

void failure_prefix(const char *format, ...) {
    bags_error old = failure;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.message, sizeof failure.message, format, arguments);
    va_end(arguments);
    failure_suffix("%s", old.message);
}

void failure_suffix(const char *format, ...) {
    size_t size = strlen(failure.message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.message + size, sizeof failure.message - size, format, arguments);
    va_end(arguments);
}

void failure_remedy(const char *path, const char *words) {
    size_t size = strlen(path);
    char *end = failure.message;
    if (!strncmp(end, path, size))
        end += size;
    end = strstr(end, "; ");
    if (end)
        *end = 0;
    failure_suffix("; %s", words);
}

/* ---- output and memory ---- */

void output(const void *data, size_t size) {
    errno = 0;
    if (size == 0 || fwrite(data, 1, size, stdout) == size)
        return;
    if (errno == EPIPE)
        exit(1);
    fail_system(errno ? errno : EIO, "standard output", "write");
}

void *allocate(size_t count, size_t size) {
    void *made = calloc(count + 1, size);
    if (!made)
        fail(BAGS_ERROR_MEMORY, "out of memory");
    return made;
}

void *grow(void *array, size_t count, size_t size) {
    if (count & (count - 1))
        return array;
    void *grown = realloc(array, (count ? 2 * count : 1) * size);
    if (!grown)
        fail(BAGS_ERROR_MEMORY, "out of memory");
    return grown;
}

BAGI_PRINTF(1, 0)
static char *format_list(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *made = (char *)allocate(size < 0 ? 0 : (size_t)size, 1);
    vsnprintf(made, (size_t)size + 1, format, arguments);
    return made;
}

char *string_format(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *made = format_list(format, arguments);
    va_end(arguments);
    return made;
}

const char *temp_format(const char *format, ...) {
    static char *temps[16];
    static size_t next;
    size_t i = next++ % 16;
    va_list arguments;
    va_start(arguments, format);
    char *made = format_list(format, arguments);
    va_end(arguments);
    free(temps[i]);
    temps[i] = made;
    return made;
}

void print(const char *format, ...) {
    static text out;
    va_list arguments;
    va_start(arguments, format);
    char *made = format_list(format, arguments);
    va_end(arguments);
    size_t size = strlen(made);
    bool ends = format[strlen(format) - 1] == '\n';
    made[size - ends] = 0;
    out.size = 0;
    text_clean(&out, made);
    text_puts(&out, ends ? "\n" : "");
    text_output(&out);
    free(made);
}

const char *counted(uint64_t count, const char *unit) {
    const char *plural = count == 1 ? "" : has_ending(unit, "ch") ? "es" : "s";
    return temp_format("%ju %s%s", (uintmax_t)count, unit, plural);
}

/* ---- help ---- */

const char help_about[] =
    "A Bag is a file NAME.bag. A dataset is a directory with spec.json and a "
    "NAME.bag for each field, or a directory of such directories, its shards. "
    "Commands that read accept one in X.zip or X.tar, too.\n";
const char help_codes[] =
    "Exit code: 0 success, 1 an error, 2 an invalid command line.\n";

static void put_help(text *out) {
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

static const command *find_command(const char *name) {
    for (size_t i = 0; commands[i]; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    guess from = {name, strlen(name), NULL, 0};
    for (size_t i = 0; commands[i]; i++)
        guess_name(&from, commands[i]->name);
    guess_name(&from, "help");
    usage("there is no command %s%s (see `bags help`)", name,
        guess_words(&from, "bags ", ""));
}

static void run_help(int count, char **words) {
    if (count > 1)
        usage("help: expected one COMMAND (see `bags help`)");
    static text out;
    const char *about = count ? words[0] : "help";
    if (!strcmp(about, "help"))
        put_help(&out);
    else if (!strcmp(about, "types"))
        types_help(&out);
    else if (!strcmp(about, "man"))
        manual_help(&out, commands);
    else if (!strcmp(about, "bash"))
        completion_bash(&out, commands);
    else if (!strcmp(about, "zsh"))
        completion_zsh(&out, commands);
    else
        options_help(&out, find_command(about));
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
    chosen = find_command(words[0]);
    if (!options_parse(chosen, count - 1, words + 1))
        return 0;
    progress_prepare();
    return chosen->run(words + 1);
}

int main(int argc, char **argv) {
    prepare_standard_files();
    expect_truncation();
    interrupt_expect(argc, argv);
    int code = run(argc - 1, argv + 1);
    bool complete = !ferror(stdout);
    errno = 0;
    complete = !fflush(stdout) && complete;
    complete = !fclose(stdout) && complete;
    if (complete)
        return code;
    if (errno != EPIPE)
        note("standard output: cannot write: %s",
            errno ? strerror(errno) : "it is incomplete");
    return 1;
}
