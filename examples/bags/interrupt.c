/*
 * Ctrl-C and SIGTERM end the program at once, with a message that states which data is
 * kept and which command continues the work. This is safe because every command's files
 * are valid at any moment. A command that keeps more data or removes files when it ends
 * in order defers the first signal to its next interrupt_check; a second signal still
 * ends it at once.
 *
 * Finally, the signal is raised again, so that a shell or another parent process sees
 * how the program ended; shells report 130 and 143.
 */
#include "command.h"
#include "system.h"

static char **words; /* the words of the command line */
static volatile sig_atomic_t deferred, pending;
static volatile double pending_since;
/* The handler prints these two messages. They may be replaced, but are never freed. */
static const char *volatile notice = "bags: interrupted\n";
static const char *volatile next_line = "";
static const char *volatile doomed; /* the handler removes this file */

/* A parent process may pass on a signal that the whole process group received, too. */
#define SAME_SECONDS 0.2

/* ---- the command that continues ---- */

#define PLAIN                                                                          \
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"                   \
    "-_./:,@%+="

/* Append a word quoted for a shell. Control characters must not reach a terminal. */
static void put_word(text *out, const char *word) {
    bool control = !is_clean(word);
    if (*word && !word[strspn(word, PLAIN)]) {
        text_puts(out, word);
        return;
    }
    text_puts(out, control ? "$'" : "'");
    for (const char *at = word; *at; at++) {
        unsigned char byte = (unsigned char)*at;
        if (control && (byte < 0x20 || byte >= 0x7F))
            text_format(out, "\\%03o", byte);
        else if (control && (byte == '\'' || byte == '\\'))
            text_format(out, "\\%c", byte);
        else if (byte == '\'')
            text_puts(out, "'\\''");
        else
            text_put(out, at, 1);
    }
    text_puts(out, "'");
}

static void put_command(text *out, const char *with) {
    for (size_t i = 0; words && words[i]; i++) {
        text_puts(out, i ? " " : "");
        put_word(out, words[i]);
        if (i == 1 && with) /* before any "--" */
            text_format(out, " %s", with);
    }
}

void interrupt_leaves(const char *kept, const char *next, const char *with) {
    /* Use two sets in turn, since a signal may print the previous texts meanwhile. */
    static text texts[2][2];
    static unsigned turn;
    text *line = &texts[turn ^= 1][0], *all = &texts[turn][1];
    bool given = false;
    line->size = all->size = 0;
    for (size_t i = 0; with && words && words[i]; i++)
        given = given || !strcmp(words[i], with);
    if (next) {
        text_format(line, "bags: %s: ", next);
        put_command(line, given ? NULL : with);
        text_puts(line, "\n");
    }
    text_format(all, "bags: interrupted%s%s\n", *kept ? "; " : "", kept);
    notice = text_string(all);
    next_line = text_string(line);
}

/* ---- the signals ---- */

static volatile sig_atomic_t is_ending;

#ifdef _WIN32
ENDS static void end(int number) { _exit(128 + number); }
#else
ENDS static void end(int number) {
    sigset_t set;
    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    _exit(128 + number);
}
#endif

static void print_line(const char *line) {
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        return;
}

/* Calls only what a signal handler may call; the texts were prepared earlier. */
static void handle(int number) {
    if (deferred && !pending) {
        pending_since = seconds_now();
        pending = number;
        return;
    }
    bool same = pending && seconds_now() - pending_since < SAME_SECONDS;
    if (same || is_ending)
        return;
    is_ending = 1;
    if (doomed)
        unlink(doomed);
    bar_hide();
    print_line(notice);
    print_line(next_line);
    end(number);
}

void interrupt_removes(const char *path) { doomed = path; }

void interrupt_defer(void) { deferred = 1; }

bool interrupt_pending(void) { return pending != 0; }

void interrupt_check(void) {
    if (pending)
        fail(BAGS_ERROR_IO, "interrupted");
}

static void end_by_signal(void) {
    if (!pending)
        return;
    fflush(stdout);
    is_ending = 1;
    print_line(next_line);
    end(pending);
}

/* A signal that is ignored stays ignored, for nohup and for background jobs of
 * scripts. */
void interrupt_expect(char **line) {
    static const int numbers[] = {SIGINT, SIGTERM};
    words = line;
    failure_ends = end_by_signal;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
#ifdef _WIN32
        signal(numbers[i], handle);
#else
        struct sigaction before,
            action = {.sa_handler = handle, .sa_flags = SA_RESTART};
        if (!sigaction(numbers[i], NULL, &before) && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
#endif
    }
}
