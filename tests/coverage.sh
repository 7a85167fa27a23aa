#!/usr/bin/env bash
# Measure which lines and branches of bags.h the tests, the fuzzers' corpora and
# the tests of the command execute. tests/coverage.py prints them, and fails if they are
# fewer than these percentages:
set -u
lines=98 branches=92
build=build/coverage
logs=$build/logs
mkdir -p "$logs"
rm -f "$logs/failed"
unset MAKEFLAGS MAKELEVEL

# -fkeep: else functions that are never called would not count. Of those that are
# inlined into programs, the lines would count as the programs'.
flags="-O0 -g --coverage -Dalways_inline=unused -fprofile-update=atomic"
flags="$flags -fkeep-inline-functions -fkeep-static-functions"
make -j"${JOBS:-$(getconf _NPROCESSORS_ONLN)}" FLAVOUR=coverage CC_coverage=gcc \
    FLAGS_coverage="$flags" \
    all programs NAMES="$(basename -a -s .c tests/*/test_*.c tests/*/*/test_*.c tests/fuzz/fuzz_*.c | xargs)" || exit
find "$build" -name '*.gcda' -delete

# part NAME COMMAND...
part() {
    local name=$1
    shift
    while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" ]; do
        wait -n
    done
    { "$@" >"$logs/$name" 2>&1 </dev/null || {
        echo "$name failed; the end of $logs/$name:"
        tail -n 20 "$logs/$name"
        touch "$logs/failed"
    }; } &
}

# Some tests run the command with a limit on the size of files. It would cut the
# counters, which all processes share: those of these processes go elsewhere.
cat >"$build/command" <<END
#!/bin/sh
[ "\$(ulimit -f)" = unlimited ] || export GCOV_PREFIX="$PWD/$build/limited"
exec "$PWD/$build/bags" "\$@"
END
chmod +x "$build/command"

# What takes longest comes first; an eighth of the images of disks has all lines.
part test_power "$build/tests/core/test_power" 8
[ ! -x "$build/bags" ] || part command tests/command/command.sh "$build/command"
for source in tests/*/test_*.c tests/*/*/test_*.c; do
    name=$(basename "$source" .c)
    program=$build/${source%.c}
    [ ! -x "$program" ] || [ "$name" = test_power ] || part "$name" "$program"
done
for program in "$build"/tests/fuzz/fuzz_*; do
    corpus=tests/fuzz/corpus/${program##*/fuzz_}
    [ ! -d "$corpus" ] || part "${program##*/}" "$program" "$corpus"
done
wait
if grep -l '^libgcov' "$logs"/*; then
    echo "counters were lost"
    touch "$logs/failed"
fi
tests/coverage.py $lines $branches && [ ! -e "$logs/failed" ]
