/*
 * How the program ends: failures are printed, and all output must have arrived. Also
 * contains the memory functions that every file needs, and access to stderr. This file
 * calls only clean.c. Other files install callbacks for anything else a failure must
 * do: on_failure, failure_ends.
 */
#include "command.h"
#include "system.h"

#include <stdarg.h>
#include <stdatomic.h>

#define TRUNCATED "a file was truncated while it was read, or its disk failed"

bags_error failure;
const char *failed_command, *mapped_path;
void (*on_failure)(void);
void (*failure_ends)(void);
int failure_exit = 1;

/* ---- stderr ---- */

volatile bool bar_is_shown;

void bar_hide(void) {
    static const char clear[] = "\r\033[K";
    if (bar_is_shown && write(STDERR_FILENO, clear, sizeof clear - 1) > 0)
        bar_is_shown = false;
}

/* File and field names in a message may contain characters that control a terminal. */
void note(const char *format, ...) {
    char message[2 * BAGS_ERROR_SIZE], clean[4 * sizeof message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    clean_copy(clean, sizeof clean, message);
    bar_hide();
    fprintf(stderr, "bags: %s\n", clean);
}

/* ---- failures ---- */

/* The library's remedies name C functions and options. */
static const struct remedy {
    const char *words, *command;
} remedies[] = {
    {"bags_recover", "`bags recover`"},
    {"bags_finalize", "`bags finalize`"},
    {"bags_checksum", "`bags checksum`"},
    {"bags_catalogue", "`bags catalogue`"},
    {"bags_reader_length", "`bags info`"},
    {"with `unfinished`", "with `bags export --live`"},
    {"resume it without", "pass --no-checksum to resume it"},
    {"set allow_gaps", "pass --allow-gaps"},
    {"set whole to write all of them",
        "--compact writes only referenced blobs, --whole all"},
    {"set BAGS_EXISTING_RESUME", "pass --resume"},
    {"set BAGS_EXISTING_APPEND", "pass --append"},
    {"with values for it", "with --set FIELD=JSON"},
    {"with drop_partial", "with --drop-partial"},
    {"shard_start", "--shard-start"},
};

/* Translate only once: text appended later is already in the form the command uses. */
static void failure_translate(void) {
    snprintf(failure.message, sizeof failure.message, "%s",
        message_of_command(failure.message, failure.remedy));
    failure.remedy = 0;
}

const char *message_of_command(const char *message, size_t remedy) {
    static char made[2 * BAGS_ERROR_SIZE];
    size_t used = 0;
    for (size_t at = 0; message[at] && used + 32 < sizeof made;) {
        const struct remedy *found = NULL;
        for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
            if (remedy && at >= remedy &&
                !strncmp(message + at, remedies[i].words, strlen(remedies[i].words)))
                found = &remedies[i];
        if (found)
            strcpy(made + used, found->command);
        else
            made[used] = message[at];
        used += found ? strlen(found->command) : 1;
        at += found ? strlen(found->words) : 1;
    }
    made[used] = 0;
    return made;
}

void note_failure(void) {
    note("%s", message_of_command(failure.message, failure.remedy));
}

void die(void) {
    void (*prepare)(void) = on_failure;
    on_failure = NULL;
    failure_translate();
    if (prepare)
        prepare();
    bool is_usage = failure.code == BAGS_ERROR_ARGUMENT;
    if (is_usage && failed_command)
        note("%s: %s (see `bags help %s`)", failed_command, failure.message,
            failed_command);
    else
        note("%s", failure.message);
    if (failure_ends)
        failure_ends();
    exit(is_usage ? 2 : failure_exit);
}

void fail(bags_code code, const char *format, ...) {
    bags_error made = failure; /* the arguments may include its message */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made.message, sizeof made.message, format, arguments);
    va_end(arguments);
    made.code = code;
    made.remedy = 0;
    failure = made;
    die();
}

/* Fail with a system error in words. If the file already exists, also suggest a way
 * out. */
void fail_system(int error, const char *path, const char *doing) {
    if (error == EEXIST && !strcmp(doing, "create"))
        fail(BAGS_ERROR_EXISTS, "%s: already exists; remove it, or write to a new path",
            path);
    if (error == EFAULT) /* in a write, the equivalent of SIGBUS in a read */
        fail(BAGS_ERROR_IO, "%s%s" TRUNCATED, mapped_path ? mapped_path : "",
            mapped_path ? ": " : "");
    bags_fail_io(NULL, error, path, doing, &failure);
    die();
}

#ifndef _WIN32
void fail_in_signal(const char *path, const char *what) {
    static atomic_flag failed = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&failed))
        pause(); /* another thread prints the message */
    bar_hide();
    char clean[BAGS_ERROR_SIZE] = "";
    if (path)
        clean_copy(clean, sizeof clean, path);
    const char *const parts[] = {"bags: ", clean, path ? ": " : "", what, "\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0)
            break;
    _exit(failure_exit);
}

static void say_truncated(int number) {
    (void)number;
    fail_in_signal(mapped_path, TRUNCATED);
}

void expect_truncation(void) {
    struct sigaction action = {.sa_handler = say_truncated};
    sigaction(SIGBUS, &action, NULL);
}
#else
void expect_truncation(void) {}
#endif

void must(bags_code code) {
    if (code)
        die();
}

void must_open(const void *opened) {
    if (!opened)
        die();
}

void failure_suffix(const char *format, ...) {
    failure_translate();
    size_t size = strlen(failure.message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.message + size, sizeof failure.message - size, format, arguments);
    va_end(arguments);
}

/* ---- output and memory ---- */

/* If the program that reads the output has ended, this one ends silently, too. */
void output(const void *data, size_t size) {
    errno = 0;
    if (size == 0 || fwrite(data, 1, size, stdout) == size)
        return;
    if (errno == EPIPE)
        exit(failure_exit);
    fail_system(errno ? errno : EIO, "standard output", "write");
}

/* stdio may buffer bytes until the end; only fclose shows whether all of them
 * arrived. */
bool output_is_complete(void) {
    bool complete = !ferror(stdout);
    errno = 0;
    complete = !fflush(stdout) && complete;
    complete = !fclose(stdout) && complete;
    if (!complete && errno != EPIPE)
        note("standard output: cannot write: %s",
            errno ? strerror(errno) : "it is incomplete");
    return complete;
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

/* Sixteen buffers in turn, so that several results can be arguments to one call. */
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
