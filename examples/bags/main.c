/*
 * bags - pack, look at and unpack datasets in the Bag and Bags formats.
 *
 * Finds the subcommand, prints help, and makes sure that whatever was printed
 * arrived: a full disk or a closed pipe is an error with exit code 1, never a
 * death by signal and never silence.
 */
#include "command.h"
#include "system.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

static const command *const commands[] = {
    &command_info,
    &command_get,
    &command_export,
    &command_pack,
    &command_images,
    &command_sheet,
    &command_finalize,
    &command_recover,
    &command_verify,
    &command_checksum,
};

#define COMMANDS (sizeof commands / sizeof *commands)

/* Names come from strangers' files: nothing of them may steer a terminal. */
static void put_visible(const char *message) {
    for (const char *c = message; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte < 0x20 || byte == 0x7F)
            fprintf(stderr, "\\x%02x", byte);
        else
            fputc(byte, stderr);
    }
    fputc('\n', stderr);
}

void note(const char *format, ...) {
    char message[2 * BAGS_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fputs("bags: ", stderr);
    put_visible(message);
}

int fail(const bags_error *err) {
    note("%s", err->message);
    return 1;
}

int fail_usage(const command *about, const char *format, ...) {
    char message[BAGS_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (about)
        note("%s: %s (see: bags help %s)", about->name, message, about->name);
    else
        note("%s (see: bags help)", message);
    return 2;
}

bags_code output(const void *data, size_t size, bags_error *err) {
    errno = 0;
    if (size == 0 || fwrite(data, 1, size, stdout) == size)
        return BAGS_OK;
    return fail_system(err, errno ? errno : EIO, "standard output", "write");
}

static int print_help(void) {
    fputs("bags " BAGS_VERSION
          " - pack, look at and unpack machine-learning datasets\n"
          "\n"
          "usage: bags COMMAND ...\n"
          "\n", stdout);
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-10s%s\n", commands[i]->name, commands[i]->summary);
    fputs(
        "  help      this text; bags help COMMAND: more on a command\n"
        "\n"
        "A Bag is one NAME.bag file. A dataset is a directory with\n"
        "spec.json and a NAME.bag for each field, or a directory of such\n"
        "directories, its shards.\n"
        "\n"
        "example:\n"
        "  bags pack pets.jsonl pets --spec 'photo=jpeg,label=int(4)'\n"
        "  bags info pets\n"
        "  bags get pets 0:3 label\n"
        "\n"
        "Exit code: 0 done, 1 an error, 2 a command line that makes no\n"
        "sense.\n", stdout);
    return 0;
}

static const command *find_command(const char *name) {
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static int run_help(int count, char **words) {
    if (count == 0 || !strcmp(words[0], "help"))
        return print_help();
    const command *about = find_command(words[0]);
    if (!about || count > 1)
        return fail_usage(NULL, "there is no command %s", words[count - 1]);
    fputs(about->help, stdout);
    return 0;
}

static int run(int count, char **words) {
    if (count == 0) {
        fail_usage(NULL, "which command?");
        return 2;
    }
    if (!strcmp(words[0], "--version")) {
        printf("bags %s\n", bags_version());
        return 0;
    }
    if (!strcmp(words[0], "help") || !strcmp(words[0], "--help") ||
        !strcmp(words[0], "-h"))
        return run_help(count - 1, words + 1);
    const command *found = find_command(words[0]);
    if (!found)
        return fail_usage(NULL, "there is no command %s", words[0]);
    return found->run(count - 1, words + 1);
}

int main(int argc, char **argv) {
    prepare_standard_files();
    int code = run(argc - 1, argv + 1);
    bool good = !ferror(stdout);
    errno = 0;
    good = !fflush(stdout) && good;
    good = !fclose(stdout) && good;
    if (!good && code == 0) {
        note("standard output: cannot write: %s",
            errno ? strerror(errno) : "it was not written whole");
        code = 1;
    }
    return code;
}
