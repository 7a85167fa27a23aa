/*
 * formats.h - codecs, a data loader, and other storage for bags.h.
 *
 *     codecs.h   JPEG, PNG, NumPy, MessagePack, video
 *     loader.h   indexes of keys, shuffled orders, batches of tensors, resized images
 *     storage.h  zip and tar files, web servers, S3
 *     data.h     versions of datasets that copy no data
 *
 * Include this header, or those that you need. Each subject is one file, on one library
 * at most, which the headers list: compile the files that you need with your program.
 * They need bags.h and these headers in the include path, but not each other.
 *
 * What bags.h states about errors, ownership, threads and untrusted files holds
 * here, too. No function prints, ends the program or keeps anything between
 * calls; all may be called from several threads at once. README.md in this
 * directory is the reference of types, values and limits.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "codecs.h"
#include "data.h"
#include "loader.h"
#include "storage.h"

#endif /* BAGS_FORMATS_H */
