#!/usr/bin/env bash
# Run every fuzzer for some seconds, one after the other, from its corpus, and
# print how many inputs a second each has tried. What it finds new stays in
# build/fuzz/corpus, what makes it fail in build/fuzz.
#
#     tests/fuzz/fuzz.sh [SECONDS [NAME...]]      FUZZ_SECONDS or 60, every fuzzer
#
# After a run `tests/fuzz/fuzz.sh merge [NAME...]` puts into tests/fuzz/corpus what covers
# code that nothing there covers.
set -eu
what=${1:-${FUZZ_SECONDS:-60}}
shift || :
mkdir -p build/fuzz/logs
unset MAKEFLAGS MAKELEVEL

names() {
    basename -a -s .c tests/fuzz/fuzz_*.c | sed 's/^fuzz_//'
}

# merge NAME
merge() {
    mkdir -p "tests/fuzz/corpus/$1"
    "build/fuzz/tests/fuzz/fuzz_$1" -merge=1 -use_counters=0 -use_cmp=0 \
        -verbosity=0 "tests/fuzz/corpus/$1" "build/fuzz/corpus/$1"
}

# run NAME
run() {
    local log=build/fuzz/logs/$1
    mkdir -p "build/fuzz/corpus/$1" "tests/fuzz/corpus/$1"
    if ! "build/fuzz/tests/fuzz/fuzz_$1" -max_total_time="$what" \
        -print_final_stats=1 -artifact_prefix="build/fuzz/$1-" -verbosity=0 \
        -timeout=20 -rss_limit_mb=2048 "build/fuzz/corpus/$1" \
        "tests/fuzz/corpus/$1" >"$log" 2>&1; then
        tail -n 60 "$log"
        echo "fuzz_$1 has found something: see above, and build/fuzz/$1-*"
        return 1
    fi
    awk -v name="$1" -v seconds="$what" '
        /number_of_executed_units/ { tried = $2 }
        /average_exec_per_sec/ { rate = $2 }
        END { printf "%-10s %9d inputs in %d s, %6d a second\n", name, tried,
                  seconds, rate }' "$log"
}

checks=-fsanitize=address,undefined
make -j"${JOBS:-$(getconf _NPROCESSORS_ONLN)}" FLAVOUR=fuzz CC_fuzz=clang \
    FLAGS_fuzz="-DBAGS_DEBUG -O1 -g -fsanitize=fuzzer-no-link $checks -fno-sanitize-recover=all -fno-omit-frame-pointer" \
    LINK_fuzz=-fsanitize=fuzzer programs NAMES="$(names | sed 's/^/fuzz_/' | tr '\n' ' ')"

failed=0
for name in ${*:-$(names)}; do
    [ -x "build/fuzz/tests/fuzz/fuzz_$name" ] || continue # its library is missing
    if [ "$what" = merge ]; then
        merge "$name"
    else
        run "$name" || failed=1
    fi
done
exit $failed
