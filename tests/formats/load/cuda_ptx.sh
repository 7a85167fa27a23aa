#!/bin/sh
# Compile the kernels of formats/load/cuda_kernels.h to formats/load/cuda_ptx.h, which
# needs clang 14:
#
#     tests/formats/load/cuda_ptx.sh          write it
#     tests/formats/load/cuda_ptx.sh check    fail if it differs
set -eu
cd "$(dirname "$0")/../../.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
if ! command -v clang-14 >/dev/null; then
    echo 'skipped cuda_ptx.h: clang-14 not found'
    exit 0
fi
clang-14 -x cl -cl-std=CL1.2 -O2 --target=nvptx64-nvidia-cuda -Xclang -target-cpu \
    -Xclang sm_50 -S -o "$made/ptx" formats/load/cuda_kernels.h
{
    cat <<'END'
/*
 * cuda_ptx.h - cuda_kernels.h, compiled by tests/formats/load/cuda_ptx.sh:
 *
 *     clang-14 -x cl -cl-std=CL1.2 -O2 --target=nvptx64-nvidia-cuda
 *         -Xclang -target-cpu -Xclang sm_50 -S
 *
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_CUDA_PTX_H
#define BAGS_FORMATS_CUDA_PTX_H

/* The lines of the PTX text. */
static const char *const cuda_ptx[] = {
END
    sed -e 's/[ \t]*\/\/.*//' -e '/^[ \t]*$/d' -e 's/\t/ /g' -e 's/  */ /g' \
        -e 's/^ //; s/\\/\\\\/g; s/"/\\"/g; s/.*/    "&",/' "$made/ptx"
    printf '};\n\n#endif /* BAGS_FORMATS_CUDA_PTX_H */\n'
} >"$made/h"
clang-format --style=file --assume-filename=formats/load/cuda_ptx.h <"$made/h" >"$made/cuda_ptx.h"
if [ "${1:-}" != check ]; then
    cp "$made/cuda_ptx.h" formats/load/cuda_ptx.h
elif ! cmp -s "$made/cuda_ptx.h" formats/load/cuda_ptx.h; then
    echo 'formats/load/cuda_ptx.h: not compiled from cuda_kernels.h; run tests/formats/load/cuda_ptx.sh'
    exit 1
fi
