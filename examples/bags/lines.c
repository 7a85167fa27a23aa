/*
 * The lines of a manifest. They may come from a pipe, slowly: the reader of a
 * line says how long it can wait, since what it has must be flushed in time.
 *
 * Empty lines are allowed at the end alone: elsewhere something is missing.
 */
#include "command.h"
#include "system.h"

#include <errno.h>
#include <string.h>

#define LINE_MOST ((size_t)1 << 30)
#define LINES_READ ((size_t)1 << 16)

bags_code lines_open(line_reader *from, const char *path, bags_error *err) {
    struct stat about;
    memset(from, 0, sizeof *from);
    bool standard = !strcmp(path, "-");
    from->path = standard ? "standard input" : path;
    from->file = standard ? STDIN_FILENO : open_file(path, O_RDONLY);
    if (from->file < 0)
        return fail_system(err, errno, path, "open");
    bags_code code = BAGS_OK;
    if (fstat(from->file, &about))
        code = fail_system(err, errno, from->path, "look at");
    else if (S_ISDIR(about.st_mode))
        code = bags_fail(err, BAGS_ERROR_IO,
            "%s: cannot read: it is a directory", from->path);
    else if (S_ISREG(about.st_mode))
        from->size = (uint64_t)about.st_size;
    if (code)
        lines_close(from);
    return code;
}

void lines_close(line_reader *from) {
    if (from->file > STDIN_FILENO)
        close(from->file);
    from->file = -1;
    bags_buffer_free(&from->buffer);
}

/* Read more bytes behind those that are there. */
static line_state read_more(line_reader *from, int patience, bags_error *err) {
    if (patience >= 0 && !wait_for_bytes(from->file, patience))
        return LINE_LATER;
    if (from->start > 0) {
        memmove(from->buffer.data, from->buffer.data + from->start,
            from->stop - from->start);
        from->scanned -= from->start;
        from->stop -= from->start;
        from->start = 0;
    }
    if (bags_buffer_reserve(&from->buffer, from->stop + LINES_READ, err))
        return LINE_BAD;
    ssize_t got;
    do
        got = read_some(from->file, from->buffer.data + from->stop,
            from->buffer.capacity - from->stop - 1);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        fail_system(err, errno, from->path, "read");
        return LINE_BAD;
    }
    from->ended = got == 0;
    from->stop += (size_t)got;
    return LINE_HERE;
}

static bool is_blank(const char *line, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

/* The bytes up to `end` are a line; `skip`: a newline stands behind it. */
static void take(line_reader *from, size_t end, size_t skip, char **line,
    size_t *size) {
    *line = (char *)from->buffer.data + from->start;
    *size = end - from->start;
    from->buffer.data[end] = 0;
    from->start = end + skip;
    from->scanned = from->start;
    from->consumed += *size + skip;
    from->number++;
}

/* A line, be it empty, if one can be had. */
static line_state any_line(line_reader *from, int patience, char **line,
    size_t *size, bags_error *err) {
    for (;;) {
        size_t left = from->stop - from->scanned;
        unsigned char *at = from->buffer.data + from->scanned;
        unsigned char *end =
            left ? (unsigned char *)memchr(at, '\n', left) : NULL;
        if (end) {
            take(from, (size_t)(end - from->buffer.data), 1, line, size);
            return LINE_HERE;
        }
        from->scanned = from->stop;
        if (from->ended && from->start == from->stop)
            return LINE_NONE;
        if (from->ended) {
            take(from, from->stop, 0, line, size);
            return LINE_HERE;
        }
        if (from->stop - from->start > LINE_MOST) {
            bags_fail(err, BAGS_ERROR_LIMIT,
                "%s: line %ju: longer than 2^30 bytes", from->path,
                (uintmax_t)from->number + 1);
            return LINE_BAD;
        }
        line_state state = read_more(from, patience, err);
        if (state != LINE_HERE)
            return state;
    }
}

line_state lines_next(line_reader *from, int patience, char **line,
    size_t *size, bags_error *err) {
    for (;;) {
        line_state state = any_line(from, patience, line, size, err);
        if (state != LINE_HERE)
            return state;
        bool blank = is_blank(*line, *size);
        if (!blank && from->blank) {
            bags_fail(err, BAGS_ERROR_VALUE, "%s: line %ju: empty", from->path,
                (uintmax_t)from->blank);
            return LINE_BAD;
        }
        if (!blank)
            return LINE_HERE;
        if (!from->blank)
            from->blank = from->number;
    }
}
