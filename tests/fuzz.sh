#!/usr/bin/env bash
# Run every fuzzer for some seconds, from its corpus. What it finds new stays in
# build/fuzz/corpus, what makes it fail in build/fuzz.
#
#     tests/fuzz.sh 60
set -eu
for source in tests/fuzz_*.c; do
    name=$(basename "$source" .c)
    [ "$name" != fuzz_main ] || continue
    seeds=tests/corpus/${name#fuzz_}
    found=build/fuzz/corpus/${name#fuzz_}
    mkdir -p "$found"
    [ -d "$seeds" ] || seeds=
    echo "$name, $1 seconds"
    build/fuzz/tests/"$name" -max_total_time="$1" -print_final_stats=1 \
        -artifact_prefix="build/fuzz/$name-" -verbosity=0 -timeout=20 \
        -rss_limit_mb=2048 "$found" ${seeds:+"$seeds"}
done
