#!/usr/bin/env bash
# Install it as a packager would, use it as strangers would, and remove it.
set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
stage="$dir/a stage" prefix=$dir/prefix
passed=0 failed=0
log=$dir/log
unset DESTDIR PREFIX MAKEFLAGS MAKELEVEL

check() { # check TITLE COMMAND...
    local title=$1
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok      $title"
        passed=$((passed + 1))
    else
        echo "FAILED  $title"
        tail -n 40 "$log"
        failed=$((failed + 1))
    fi
}

installed() { # every file below DIR, from there
    (cd "$1" && find . -not -type d | sort)
}

# block LANGUAGE: the first such block of the README
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/!p}" README.md; }

cat >"$dir/main.c" <<'END'
#include <bags.h>
#include <bags/formats.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    bags_error err;
    bags_registry *codecs = bags_registry_create(NULL, &err);
    int code = !codecs || bags_registry_add(codecs, &bags_codec_npy, &err);
    code = code || strcmp(bags_version(), BAGS_VERSION) != 0;
    bag_writer *bag = code ? NULL : bag_writer_open("x.bag", NULL, &err);
    code = code || bag_writer_append(bag, "hello", 5, NULL, &err);
    code = code || bag_writer_close(bag, &err);
    bag_reader *reader = code ? NULL : bag_reader_open("x.bag", NULL, &err);
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob;
    code = code || !reader || bag_reader_get(reader, 0, &scratch, &blob, &err);
    code = code || blob.size != 5 || memcmp(blob.data, "hello", 5) != 0;
    bag_reader_close(reader);
    bags_buffer_free(&scratch);
    remove("x.bag");
    bags_registry_free(codecs);
    if (!code)
        puts("it works");
    return code;
}
END

works() { # works PROGRAM [LIBRARY PATH]
    (cd "$dir" && [ "$(LD_LIBRARY_PATH=${2:-} "$1")" = 'it works' ])
}

in_place() { make install PREFIX="$prefix"; }
staged() { make install PREFIX=/usr DESTDIR="$stage"; }

# A package's files are as they would be without DESTDIR, and do not mention it.
same_below_stage() {
    diff <(installed "$prefix") <(installed "$stage/usr") &&
        grep -q '^prefix=/usr$' "$stage/usr/lib/pkgconfig/bags.pc" &&
        ! grep -r -F "$stage" "$stage"
}

has_all() {
    local file
    for file in include/bags.h include/bags/formats.h lib/libbags.a lib/libbags.so \
        lib/pkgconfig/bags.pc; do
        [ -f "$prefix/$file" ] || { echo "no $file"; return 1; }
    done
    [ ! -x build/release/bags ] || { [ -x "$prefix/bin/bags" ] && [ -f "$prefix/share/man/man1/bags.1" ]; }
}

config() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@"; }

version() { [ "bags.h $(config --modversion bags)" = "bags.h $(sed -n 's/.*BAGS_VERSION "\(.*\)"/\1/p' bags.h)" ]; }

shared() { # shared COMPILER
    # shellcheck disable=SC2046
    "$@" "$dir/main.c" $(config --cflags --libs bags) -o "$dir/shared" &&
        ! works "$dir/shared" 2>"$dir/missing" && # it is not somewhere else
        works "$dir/shared" "$prefix/lib"
}

static() {
    # shellcheck disable=SC2046
    "$@" "$dir/main.c" $(config --static --cflags --libs bags |
        sed 's/-lbags /-l:libbags.a /') -o "$dir/static" && works "$dir/static"
}

# The header's own implementation before that of the library.
both() {
    # shellcheck disable=SC2046
    gcc -DBAGS_IMPLEMENTATION "$dir/main.c" $(config --cflags --libs bags) \
        -o "$dir/both" && works "$dir/both" "$prefix/lib"
}

soname() {
    local name
    name=$(readelf -d "$prefix/lib/libbags.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    [ "$name" = "libbags.so.$(config --modversion bags | cut -d. -f1,2)" ] && [ -f "$prefix/lib/$name" ]
}

# The same names in both, and none that the headers do not declare. Of bagi_ the
# Makefile lets out of the shared one those that inline functions call.
exported() {
    nm -D --defined-only "$prefix/lib/libbags.so" | awk '{print $3}' | sort >"$dir/shared.names"
    nm -g --defined-only "$prefix/lib/libbags.a" | awk 'NF == 3 {print $3}' | sort >"$dir/static.names"
    grep -q -x bags_reader_open "$dir/shared.names" &&
        diff "$dir/shared.names" "$dir/static.names" &&
        sed '/The API ends here/q' formats/formats.h bags.h | grep -o -w '[a-z0-9_]*' |
            sort -u >"$dir/api.names" && [ -z "$(comm -23 "$dir/shared.names" "$dir/api.names")" ]
}

with_cmake() {
    mkdir "$dir/cmake" && cp "$dir/main.c" "$dir/cmake" &&
        block cmake >"$dir/cmake/CMakeLists.txt" &&
        PKG_CONFIG_PATH=$prefix/lib/pkgconfig cmake -S "$dir/cmake" -B "$dir/cmake/build" &&
        cmake --build "$dir/cmake/build" && works "$dir/cmake/build/program" "$prefix/lib"
}

with_meson() {
    mkdir "$dir/meson" && cp "$dir/main.c" "$dir/meson" &&
        block meson >"$dir/meson/meson.build" &&
        PKG_CONFIG_PATH=$prefix/lib/pkgconfig meson setup "$dir/meson/build" "$dir/meson" &&
        meson compile -C "$dir/meson/build" && works "$dir/meson/build/program" "$prefix/lib"
}

# need PROGRAM TITLE COMMAND...: check, if there is such a program
need() {
    if command -v "$1" >/dev/null; then
        check "${@:2}"
    else
        echo "skipped $2: $1 is not installed"
    fi
}

manual_is_clean() {
    local said
    said=$(mandoc -Tlint examples/bags/bags.1 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }
}

manual_renders() {
    local said
    said=$(man --warnings -l examples/bags/bags.1 2>&1 >"$dir/manual") && [ -z "$said" ] || { echo "$said"; return 1; }
    grep -q recover "$dir/manual"
}

# What the command says of itself is in its manual: every command and option. And its
# help on a command names just those options of the manual that the command takes.
manual_is_whole() {
    local word option code=0
    sed -n 's/^\.It Fl Fl \([a-z-]*\).*/--\1/p' examples/bags/bags.1 | sort -u >"$dir/manual"
    for word in $(build/release/bags help | awk '/^  [a-z]+ +[a-z]/ && $1 != "bags" {print $1}'); do
        grep -q "^.It Cm $word\$" examples/bags/bags.1 || { echo "no $word"; code=1; }
        [ "$word" != help ] || continue
        build/release/bags help "$word" | sed 's/--shard-\.\.\.//; s/--shard option//
            s/bags get --check//' | grep -o -e '--[a-z-]*[a-z]' | sort -u >"$dir/named"
        while read -r option; do
            build/release/bags "$word" "$option" 2>&1 </dev/null |
                grep -q 'there is no option' || echo "$option"
        done <"$dir/manual" >"$dir/taken"
        diff "$dir/named" "$dir/taken" || { echo "of $word"; code=1; }
    done
    [ -s "$dir/taken" ] && [ $code = 0 ]
}

removed() { # removed PREFIX [DESTDIR]: nothing is left, but for others' files
    touch "${2:-}$1/lib/another.so" && make uninstall PREFIX="$1" DESTDIR="${2:-}" &&
        [ "$(installed "${2:-}$1")" = ./lib/another.so ] && [ ! -e "${2:-}$1/include/bags" ]
}

# Two copies of the sources, in directories of different names.
reproducible() {
    local copy
    for copy in one another/longer; do
        mkdir -p "$dir/$copy" && git ls-files -z Makefile bags.h formats examples/bags |
            xargs -0 cp --parents -t "$dir/$copy" && (cd "$dir/$copy" &&
            make library build/release/bags FORMATS=numpy CFLAGS=-O0) || return 1
    done
    (cd "$dir/one/build/release" && find . -name '*.[ao]' -o -name '*.so*' -o -name bags -type f) |
        sort >"$dir/files"
    [ "$(wc -l <"$dir/files")" -gt 25 ] || return 1
    while read -r copy; do
        cmp "$dir/one/build/release/$copy" "$dir/another/longer/build/release/$copy" || return 1
    done <"$dir/files"
}

check 'make install' in_place
check 'what should be there is there' has_all
check 'make install with a DESTDIR that has a space' staged
check 'the same files, and nothing of DESTDIR in them' same_below_stage
check 'the version is that of the header' version
check 'the shared library by its name' soname
check 'the libraries export the API alone' exported
check 'a program with the shared library' shared gcc
check 'a program with the static library' static gcc
check 'a C++ program with the shared library' shared g++ -x c++
check 'a program with an implementation of its own' both
need cmake 'a program with CMake, as in the README' with_cmake
need meson 'a program with Meson, as in the README' with_meson
need mandoc 'the manual has no faults' manual_is_clean
need man 'the manual is shown' manual_renders
[ ! -x build/release/bags ] || check 'the manual has every command and option' manual_is_whole
check 'make uninstall' removed "$prefix"
check 'make uninstall with DESTDIR' removed /usr "$stage"
check 'two directories, one result' reproducible
echo "$passed passed, $failed failed"
[ $failed = 0 ]
