#!/bin/sh
# Pack a manifest with processes of GNU parallel, then load it with others:
#
#     MANIFEST=birds.jsonl OUT=birds SPEC='name=utf8' parallel.sh pack 8
#     OUT=birds parallel.sh load 3
#
# PARALLEL may have its options: --sshloginfile nodes, for several computers. It has no
# variable for the number of jobs, so both numbers are passed.
set -eu
what=$1 workers=$2
export OUT EPOCHS="${EPOCHS:-1}" MANIFEST="${MANIFEST:-}" SPEC="${SPEC:-}"

# A job that fails, or is killed, starts again, and continues by --resume.
if [ "$what" = pack ]; then
    seq 0 $((workers - 1)) | parallel --jobs "$workers" --retries 3 \
        'bags pack "$MANIFEST" "$OUT" --spec "$SPEC" --resume' \
        --shard-start '{}' --shard-stop "$workers"
else
    seq 0 $((workers - 1)) | parallel --jobs "$workers" --keep-order \
        'bags load "$OUT" --epochs "$EPOCHS" --digest' --rank '{}' --ranks "$workers"
fi
