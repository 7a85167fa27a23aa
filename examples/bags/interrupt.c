/*
 * Ctrl-C and SIGTERM. They end the program at once, with a message that states what is
 * kept: what the commands write is valid whenever they are killed. A command that keeps
 * more, or removes files, if it ends in order defers the first signal to its next
 * interrupt_check; the second one still ends it at once.
 *
 * At the end the signal is raised again, so that a shell or another parent process
 * notices how the program ended; shells report 130 and 143.
 */
#include "command.h"
#include "system.h"

static volatile sig_atomic_t deferred, pending;
static volatile double pending_since;
/* What the handler prints, and a file that it removes. */
static const char *volatile notice = "bags: interrupted\n";
static const char *volatile doomed;

/* A parent process may pass on a signal that its process group receives as well. */
#define SAME_SECONDS 0.2

void interrupt_leaves(const char *kept) {
    /* That of the last call may be printed meanwhile. */
    static text texts[2];
    static unsigned turn;
    text *line = &texts[turn ^= 1];
    line->size = 0;
    text_puts(line, "bags: interrupted; ");
    text_clean(line, kept);
    text_puts(line, "\n");
    notice = text_string(line);
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

/* Only what a signal handler may call; texts were made before. */
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
    if (write(STDERR_FILENO, notice, strlen(notice)) >= 0)
        bar_is_shown = false;
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
    end(pending);
}

/* A signal that is ignored stays so, as nohup and background jobs of scripts need. */
void interrupt_expect(void) {
    static const int numbers[] = {SIGINT, SIGTERM};
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
