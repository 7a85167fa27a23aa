#!/usr/bin/env bash
# Build every fuzzer with its corpus, as OSS-Fuzz calls it: with CC, CFLAGS, LIB_FUZZING_ENGINE
# and OUT, in the root of the repository. Shared libraries that are no part of the base system
# go to OUT/lib, where the fuzzers find them.
set -eu
unset MAKEFLAGS MAKELEVEL
names=$(basename -a -s .c tests/fuzz/fuzz_*.c)
make -j"$(getconf _NPROCESSORS_ONLN)" FLAVOUR=fuzz CC_fuzz="$CC" CFLAGS= \
    FLAGS_fuzz="-DBAGS_DEBUG $CFLAGS" \
    LINK_fuzz="$LIB_FUZZING_ENGINE ${LINK_MORE-} -Wl,-rpath,'\$\$ORIGIN/lib'" \
    programs NAMES="$(echo $names)"
mkdir -p "$OUT/lib"
for name in $names; do
    program=build/fuzz/tests/fuzz/$name corpus=tests/fuzz/corpus/${name#fuzz_}
    if [ ! -x "$program" ]; then
        echo "$name was not built: its library is missing" >&2
        exit 1
    fi
    cp "$program" "$OUT/$name"
    (cd "$corpus" && find . -type f | LC_ALL=C sort | zip -q -X -@ - ) >"$OUT/${name}_seed_corpus.zip"
    ldd "$program" | awk '$3 ~ /^\// { print $3 }' |
        grep -v -E '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so' |
        xargs -r -I'{}' cp -L -n '{}' "$OUT/lib/"
done
