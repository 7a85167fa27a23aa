#!/usr/bin/env bash
# Run build.sh as OSS-Fuzz does, and each fuzzer over its corpus: tests/fuzz/oss-fuzz/test.sh
set -u
cd "$(dirname "$0")/../../.." || exit 1
for tool in clang zip unzip; do
    command -v $tool >/dev/null && continue
    echo "skipped OSS-Fuzz: $tool not found"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
done
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
checks=-fsanitize=address,undefined
CC=clang CFLAGS="-O1 -g -fsanitize=fuzzer-no-link $checks -fno-sanitize-recover=all -fno-omit-frame-pointer" \
    LIB_FUZZING_ENGINE=-fsanitize=fuzzer OUT=$out tests/fuzz/oss-fuzz/build.sh || exit 1
passed=0 failed=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename -s .c "$source") corpus=tests/fuzz/corpus
    mkdir "$out/$name.corpus"
    # An empty corpus would pass, and so would a program that tries nothing.
    if unzip -q "$out/${name}_seed_corpus.zip" -d "$out/$name.corpus" &&
        [ "$(ls "$out/$name.corpus" | wc -l)" = "$(ls "$corpus/${name#fuzz_}" | wc -l)" ] &&
        "$out/$name" -runs=0 -rss_limit_mb=2048 "$out/$name.corpus" >"$out/log" 2>&1 &&
        grep -q 'INITED' "$out/log"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        tail -n 20 "$out/log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
