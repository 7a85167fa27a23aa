#!/bin/sh
# Pack a manifest with the ranks of an MPI job, then load it with other ranks:
#
#     MANIFEST=birds.jsonl OUT=birds SPEC='name=utf8' mpi.sh pack 8
#     OUT=birds mpi.sh load 3
#
# The command does not use MPI: mpirun only starts it. MPIRUN may have options.
set -eu
what=$1 ranks=$2

# mpirun may mix the lines of ranks: each writes a file in OUT.load.
if [ "$what" = load ]; then
    mkdir -p "$OUT.load"
    rm -f "$OUT.load"/*.jsonl
    # shellcheck disable=SC2016
    ${MPIRUN:-mpirun} -n "$ranks" sh -c 'exec bags load "$0" --worker auto --epochs "$1" --digest \
        >"$0.load/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}.jsonl"' "$OUT" "${EPOCHS:-1}"
    cat "$OUT.load"/*.jsonl
    exit
fi

# If one rank fails, mpirun ends all: they continue at their last flush, by --resume.
for try in 1 2 3; do
    ${MPIRUN:-mpirun} -n "$ranks" \
        bags pack "$MANIFEST" "$OUT" --spec "$SPEC" --worker auto --resume && exit
    echo "mpi.sh: attempt $try failed" >&2
done
exit 1
