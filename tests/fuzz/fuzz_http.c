/*
 * Listings of web servers and object stores: the first byte chooses which of the two,
 * the second how much of the rest is the prefix. Names are valid: not empty, without a
 * slash, neither . nor ..
 */
// flavours: test: asan
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int check_name(void *user, const char *name) {
    size_t *count = (size_t *)user;
    if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, "..") ||
        strlen(name) > 4096)
        abort();
    return ++*count == 100 ? 7 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t count = 0;
    if (size < 2)
        return 0;
    bool xml = data[0] == 'x';
    size_t length = data[1] < size - 2 ? data[1] : size - 2;
    char prefix[256];
    memcpy(prefix, data + 2, length);
    prefix[length] = '\0';
    /* At its exact size, so that a sanitizer sees what is read after it. */
    size -= 2 + length;
    char *page = (char *)malloc(size ? size : 1);
    if (!page)
        return 0;
    memcpy(page, data + 2 + length, size);
    int code = bags_http_names(page, size, xml, prefix, check_name, &count);
    if (code != (count == 100 ? 7 : 0))
        abort();
    free(page);
    return 0;
}
