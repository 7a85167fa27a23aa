/* far.h - formats whose libraries take long to load: the module bags._far has them, and
 * bags._core imports it when it needs one. */
#ifndef BAGS_PYTHON_FAR_H
#define BAGS_PYTHON_FAR_H

#include "formats.h"

#define FAR_CAPSULE "bags._far.functions"

/* Both modules have their own copy of bags.h; NULL: not built. */
typedef struct Far {
    const bags_codec *mp4;
    bags_http *(*http_open)(const bags_http_options *options, bags_error *err);
    void (*http_close)(bags_http *http);
    const bags_io *(*http_io)(const bags_http *http);
} Far;

#endif
