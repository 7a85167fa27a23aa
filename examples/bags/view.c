/*
 * bags view: show a dataset in a browser. The server is in serve.c.
 */
#include "command.h"
#include "system.h"

#include "serve.h"

#include <limits.h>

static option_number port = {0, 1, 65535, false};
static bool no_browser, live;

static const option options[] = {
    {"port", OPTION_NUMBER, &port, "P", "listen on this port (default: any free one)"},
    {"no-browser", OPTION_FLAG, &no_browser, NULL, "only print the address"},
    {"live", OPTION_FLAG, &live, NULL,
        "follow a running writer: show the datapoints that were flushed, and whether a "
        "writer holds the lock"},
    OPTIONS_END,
};

#if defined(COMMAND_WITH_LIBMICROHTTPD) && defined(__linux__)

/* Find the page: at BAGS_VIEWER, or next to the command, where `make install` and `make
 * viewer` put it. */
static bags_view page_find(void) {
    static bags_buffer memory;
    char program[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
    program[size < 0 ? 0 : size] = '\0';
    const char *parent = path_parent(program), *path = getenv("BAGS_VIEWER");
    if (!path || !*path) {
        path = string_format("%s/../share/bags/viewer.html", parent);
        if (!path_exists(path))
            path = string_format("%s/../viewer.html", parent);
    }
    if (!path_exists(path))
        fail(BAGS_ERROR_MISSING,
            "%s: not found; build it with `make viewer`, or set BAGS_VIEWER to its "
            "path",
            path);
    return file_read(path, &memory);
}

/* Open the address in a child process, and discard its output. */
static void open_browser(const char *address) {
    if (no_browser || !(getenv("DISPLAY") || getenv("WAYLAND_DISPLAY")))
        return;
    pid_t child = fork();
    if (child != 0)
        return;
    int null = open("/dev/null", O_RDWR);
    (void)dup2(null, STDIN_FILENO);
    (void)dup2(null, STDOUT_FILENO);
    (void)dup2(null, STDERR_FILENO);
    struct rlimit open_files; /* programs may close every descriptor below the limit */
    if (!getrlimit(RLIMIT_NOFILE, &open_files) && open_files.rlim_cur > 1024) {
        open_files.rlim_cur = 1024;
        setrlimit(RLIMIT_NOFILE, &open_files);
    }
    execlp("xdg-open", "xdg-open", address, (char *)NULL);
    _exit(127);
}

static int run(char **operands) {
    serve_options serving = {{NULL, 0}, NULL, NULL, 0, live};
    bags_error remark;
    must(serve_check(&failure));
    serving.page = page_find();
    serving.registry = live ? registry_blobs() : NULL;
    serving.shown = path_without_secrets(operands[0]);
    serving.port = (uint16_t)port.value;
    const serve *server = serve_open(operands[0], &serving, &remark, &failure);
    must_open(server);
    if (remark.code) /* the page shows as much as can be read */
        note("%s", message_of_command(remark.message, remark.remedy));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    interrupt_leaves("", NULL, NULL);
    print("%s\n", serve_address(server));
    if (fflush(stdout))
        fail_system(errno, "standard output", "write");
    open_browser(serve_address(server));
    for (;;)
        pause();
}

#else

static int run(char **operands) {
    (void)operands;
    must(serve_check(&failure));
    return 1;
}

#endif

const command command_view = {"view", "show a dataset in a browser", "PATH|URL",
    {ARGUMENT_PATH}, 1, 1, options, NULL,
    "Serves a dataset, a zip or tar file or a Bag, and the page that shows it, to the "
    "browser of this computer, and prints the address. It is new each time, and others "
    "cannot read the dataset without it. Nothing is written, and symbolic links are "
    "not followed. Ctrl-C ends it. A dataset at a URL is read by the browser itself, "
    "if the server allows it (the header Access-Control-Allow-Origin).\n",
    "  bags view pets\n  bags view pets.zip --port 8000 --no-browser\n", run};
