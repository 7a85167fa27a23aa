/*
 * formats.h - codecs for bags.h on the libraries of their fields.
 *
 * Each format is one file, on one library, and stands alone: copy bags.h and
 * the directory formats/ beside it, and compile the files that you need with
 * your program. None needs another.
 *
 *     formats/jpeg.c     jpeg jpg          libjpeg-turbo    -ljpeg
 *     formats/png.c      png               libpng           -lpng
 *
 * A codec serves its types once it is in the registry that a reader or a writer
 * was opened with:
 *
 *     bags_codecs *codecs = bags_codecs_create(NULL, &err);
 *     bags_codecs_add(codecs, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.codecs = codecs;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 *
 * What bags.h says of errors, ownership, threads and untrusted files holds here
 * too. No function prints, ends the program or keeps anything between calls;
 * all may be called from several threads at once.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "../bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * What JPEG and PNG share.
 * ====================================================================== */

/* ========================================================================
 * >>jpeg
 * ====================================================================== */

extern const bags_codec bags_codec_jpeg;

/* ========================================================================
 * >>png
 * ====================================================================== */

extern const bags_codec bags_codec_png;

/* end of >>png */

#ifdef __cplusplus
}
#endif

#endif /* BAGS_FORMATS_H */
