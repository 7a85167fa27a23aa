/*
 * formats.h - codecs, a data loader, and other storage for bags.h.
 *
 *     codecs.h            JPEG, PNG, NumPy, MessagePack, video
 *     load/load.h         shuffled orders, batches of tensors, resized images
 *     storage/storage.h   zip and tar files, web servers, S3
 *     data/datasets.h     versions of datasets that copy no data, indexes of keys, SQL,
 *                         statistics
 *
 * Include this header or only the ones you need, and compile the files you need with
 * your program. README.md lists the files and libraries for each subject. Headers are
 * included without a directory: put these folders in the include path, or all files in
 * one folder.
 *
 * The rules in bags.h for errors, ownership, threads and untrusted files also apply
 * here. No function prints, ends the program or keeps state between calls; all may be
 * called from several threads at once. README.md in this directory is the reference for
 * types, values and limits.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "codecs.h"
#include "datasets.h"
#include "load.h"
#include "storage.h"

#endif /* BAGS_FORMATS_H */
