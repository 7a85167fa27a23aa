/*
 * formats.h - codecs, a data loader, and other storage for bags.h.
 *
 *     codecs.h            JPEG, PNG, NumPy, MessagePack, video
 *     load/load.h         shuffled orders, batches of tensors, resized images
 *     storage/storage.h   zip and tar files, web servers, S3
 *     data/datasets.h     versions of datasets that copy no data, indexes of keys, SQL,
 *                         statistics
 *
 * Include this header, or those that you need. Compile the files that you need with your
 * program: README.md lists the files of each subject, and the library that it needs.
 * Includes name no folder: these folders are in the include path, or all files in one.
 *
 * What bags.h states about errors, ownership, threads and untrusted files holds
 * here, too. No function prints, ends the program or keeps anything between
 * calls; all may be called from several threads at once. README.md in this
 * directory is the reference of types, values and limits.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "codecs.h"
#include "datasets.h"
#include "load.h"
#include "storage.h"

#endif /* BAGS_FORMATS_H */
