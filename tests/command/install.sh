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

# block LANGUAGE: the first such block of the README of the examples
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/!p}" examples/README.md; }

cat >"$dir/main.c" <<'END'
#include <bags.h>
#include <bags/formats.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    bags_error err;
    bags_registry *codecs = bags_registry_create(NULL, &err);
    int code = !codecs;
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

works() { # works PROGRAM
    (cd "$dir" && [ "$("$1")" = 'it works' ])
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
    for file in include/bags.h include/bags/formats.h include/bags/codecs.h \
        include/bags/load.h include/bags/storage.h include/bags/datasets.h include/bags/import.h include/bags/export.h lib/libbags.a \
        lib/pkgconfig/bags.pc lib/cmake/bags/bagsConfig.cmake lib/cmake/bags/bagsConfigVersion.cmake; do
        [ -f "$prefix/$file" ] || { echo "no $file"; return 1; }
    done
    ! installed "$prefix" | grep -e 'libbags\.so' -e '\.so$' || return 1
    [ ! -x build/release/bags ] || { [ -x "$prefix/bin/bags" ] && [ -f "$prefix/share/man/man1/bags.1" ] &&
        [ -f "$prefix/share/bash-completion/completions/bags" ] &&
        [ -f "$prefix/share/zsh/site-functions/_bags" ]; }
    [ ! -f build/viewer.html ] || [ -f "$prefix/share/bags/viewer.html" ]
}

config() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@"; }

version() { [ "bags.h $(config --modversion bags)" = "bags.h $(sed -n 's/.*BAGS_VERSION "\(.*\)"/\1/p' bags.h)" ]; }

# The names of the format libraries: those of the sources whose libraries are found.
formats() {
    local path
    for path in "$prefix"/lib/libbags-*.a; do
        path=${path##*/libbags-}
        echo "${path%.a}"
    done
}

# A library for each format that was built with another library, and no other file. Those
# of core are in libbags; the parts of http.c and mp4.c are in their libraries.
parts=$(sed -n '/^PARTS_\(http\|mp4\) := /{ s///; s/ /|/g; p }' formats/packages.mk | paste -s -d '|')
core='archive|copy|cuda|cuda_video|diff|frames|cache|cache_files|catalogue|convert|crop|derive|derive_copy|derived|image|index_build|index_find|join|keys|loader|metadata|numpy|opening|order|resample|resized|split|state|stats|tokens|unreferenced|verify|warp|worker|zip|import-(import|benzina|conversion|duckdb|folder|images|lmdb|megatron|tokens)|export-(export|duckdb|images|mds|tfrecord|webdataset)'
all_formats() {
    local built
    built=$(make -s print-formats | grep -o 'formats/[a-z0-9_/]*\.o' | sed -E 's,formats/((load|storage|data)/)?(.*).o,\3,' |
        tr / - | grep -v -x -E "$core|$parts" | sort)
    [ -n "$built" ] && [ "$(formats)" = "$built" ]
}

needed() { readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'; }

# A program with libbags needs only libc and its libm. The loader of libc finds variables of
# threads.
needs_libc() { ! needed "$1" | grep -q -v -x -e libc.so.6 -e libm.so.6 -e 'ld-linux.*'; }

# use FORMAT FLAG...: a program that uses it; -static also links libc statically.
use() {
    local format=$1 package=bags-$1 symbol="&bags_codec_$1" static=
    shift
    case $format in
    http) symbol=bags_http_close ;;
    numpy) symbol='&bags_codec_npy' package=bags ;;
    resample) symbol=bags_resample package=bags ;;
    loader) symbol=bags_loader_close package=bags ;;
    sql) symbol=bags_sql_rows ;;
    import-*) symbol="&bags_import_${format#import-}" ;;
    export-*) symbol="&bags_export_${format#export-}" ;;
    esac
    [ "$*" != -static ] || static=--static
    printf "%s\n" "#include <bags/formats.h>" "#include <bags/import.h>" "#include <bags/export.h>" \
        "#include <stdio.h>" "int main(void) {" \
        "    puts($symbol ? \"it works\" : \"\"); return bags_version()[0] == 0; }" >"$dir/format.c"
    # shellcheck disable=SC2046
    gcc -Wno-address "$@" "$dir/format.c" $(config $static --cflags --libs "$package") \
        -o "$dir/format" && works "$dir/format"
}

all_are_used() {
    local name
    for name in numpy resample loader $(formats); do
        use "$name" || return
    done
}

# What FFmpeg, libcurl, libzip and the libraries of importers need to be linked statically is not installed with them.
static_formats() {
    local name
    for name in numpy resample loader $(formats | grep -v -e mp4 -e http -e import- -e export-); do
        use "$name" -static || return
    done
}

# With the headers' directory alone.
plain_include() { gcc -fsyntax-only "-I$prefix/include" "$dir/main.c"; }

program() { # program COMPILER FLAG...
    # shellcheck disable=SC2046
    "$@" "$dir/main.c" $(config --cflags --libs bags) -o "$dir/program" && works "$dir/program"
}
small_program() { program gcc && needs_libc "$dir/program"; }

# The header's own implementation before that of the library.
both() {
    # shellcheck disable=SC2046
    gcc -DBAGS_IMPLEMENTATION "$dir/main.c" $(config --cflags --libs bags) \
        -o "$dir/both" && works "$dir/both"
}

# What the command opens: named after the version, and not linked with another copy of bags.h.
soname() {
    local library name
    for library in "$prefix"/lib/lib*.so.*; do
        name=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
        [ "$name" = "${library##*/}" ] && ! needed "$library" | grep libbags &&
            [ "${name##*.so.}" = "$(config --modversion bags | cut -d. -f1,2)" ] || return
    done
}

# The same names in both, but for bagi_, which files of a subject call of each other, and
# none that the headers do not declare.
exported() {
    local library
    sed '/The API ends here/q' formats/*.h formats/*/*.h bags.h | grep -o -w '[a-z0-9_]*' |
        sort -u >"$dir/api.names"
    for library in "$prefix"/lib/lib*.so.*; do
        nm -D --defined-only "$library" | awk '{print $3}' | sort >"$dir/shared.names"
        nm -g --defined-only "${library%.so.*}.a" | awk 'NF == 3 {print $3}' | sort >"$dir/static.names"
        grep -q bags_ "$dir/shared.names" &&
            diff <(grep -v '^bagi_' "$dir/shared.names") <(grep -v '^bagi_' "$dir/static.names") &&
            [ -z "$(comm -23 "$dir/shared.names" "$dir/api.names")" ] || return
    done
}

with_cmake() {
    mkdir "$dir/cmake" && cp "$dir/main.c" "$dir/cmake" &&
        block cmake >"$dir/cmake/CMakeLists.txt" &&
        PKG_CONFIG_PATH=$prefix/lib/pkgconfig cmake -S "$dir/cmake" -B "$dir/cmake/build" &&
        cmake --build "$dir/cmake/build" && works "$dir/cmake/build/program"
}

with_meson() {
    mkdir "$dir/meson" && cp "$dir/main.c" "$dir/meson" &&
        block meson >"$dir/meson/meson.build" &&
        PKG_CONFIG_PATH=$prefix/lib/pkgconfig meson setup "$dir/meson/build" "$dir/meson" &&
        meson compile -C "$dir/meson/build" && works "$dir/meson/build/program"
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
    said=$(mandoc -Tlint "$dir/bags.1" 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }
}

manual_renders() {
    local said
    said=$(man --warnings -l "$dir/bags.1" 2>&1 >"$dir/manual") && [ -z "$said" ] || { echo "$said"; return 1; }
    grep -q recover "$dir/manual"
}

# What the command says of itself is in its manual: every command and option. And its
# help on a command names just those options of the manual that the command takes.
manual_is_whole() {
    local word option code=0
    sed -n 's/^\.It Fl Fl \([a-z0-9-]*\).*/--\1/p' "$dir/bags.1" | sort -u >"$dir/manual"
    for word in $(build/release/bags help | awk '/^  [a-z]+ +[a-z]/ && $1 != "bags" {print $1}'); do
        grep -q "^.It Cm $word\$" "$dir/bags.1" || { echo "no $word"; code=1; }
        [ "$word" != help ] || continue
        # Without what is said of other commands.
        build/release/bags help "$word" | sed "/^  bags $word /!{/^  bags /d}" | tr -s '\n ' ' ' |
            sed 's/--shard-\.\.\.//; s/--shard option//; s/`bags [^`]*`//g' |
            grep -o -e '--[a-z0-9-]*[a-z0-9]' | sort -u >"$dir/named"
        while read -r option; do
            build/release/bags "$word" "$option" 2>&1 </dev/null |
                grep -q 'there is no option' || echo "$option"
        done <"$dir/manual" >"$dir/taken"
        diff "$dir/named" "$dir/taken" || { echo "of $word"; code=1; }
    done
    [ -s "$dir/manual" ] && [ $code = 0 ]
}

removed() { # removed PREFIX [DESTDIR]: nothing is left, but for others' files
    touch "${2:-}$1/lib/another.so" && make uninstall PREFIX="$1" DESTDIR="${2:-}" &&
        [ "$(installed "${2:-}$1")" = ./lib/another.so ] && [ ! -e "${2:-}$1/include/bags" ]
}

# Two copies of the sources, in directories of different names; one format.
reproducible() {
    local copy
    for copy in one another/longer; do
        mkdir -p "$dir/$copy" && git ls-files -z Makefile bags.h formats examples/bags |
            xargs -0 cp --parents -t "$dir/$copy" && (cd "$dir/$copy" &&
            make install PREFIX=/usr DESTDIR=stage FORMATS=png CFLAGS=-O0) || return 1
    done
    diff -r "$dir/one/stage" "$dir/another/longer/stage" &&
        installed "$dir/one/stage/usr" | grep -q libbags-png.so &&
        ! installed "$dir/one/stage/usr" | grep -v png | grep libbags-
}

# No format, with a prefix relative to the sources; libraries as Debian has them. What is
# installed is used from another directory, and what was built with a format stays.
no_formats() {
    local prefix=$dir/relative lib=$dir/relative/lib/x86_64-linux-gnu
    (cd "$dir/one" && find build/release -type f -exec sha256sum {} + >"$dir/built" &&
        make install FORMATS= PREFIX=../relative CFLAGS=-O0 \
            LIBDIR=../relative/lib/x86_64-linux-gnu && sha256sum -c --quiet "$dir/built") || return
    if installed "$prefix" | grep -e bags- -e '^./lib/lib'; then
        return 1
    fi
    # shellcheck disable=SC2046
    (cd / && gcc "$dir/main.c" $(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs bags) \
        -o "$dir/plain") && works "$dir/plain" && needs_libc "$dir/plain" &&
        { [ ! -x "$prefix/bin/bags" ] || ! needed "$prefix/bin/bags" | grep -v -e '^ld-linux' -e '^libc\.' -e '^libm\.' -e '^libjson-c\.' -e '^libz\.'; }
}

# It does not call good what it cannot decode.
says_undecoded() {
    local bags=$dir/relative/bin/bags code=0
    printf '{"a": {"base64": "AA=="}}\n' >"$dir/a.jsonl"
    "$bags" pack "$dir/a.jsonl" "$dir/jpegs" --spec a=jpeg --any-type --unchecked &&
        "$bags" verify "$dir/jpegs" || return
    "$bags" verify --decode "$dir/jpegs" >"$dir/said" || code=$?
    cat "$dir/said"
    [ $code = 1 ] && ! grep good "$dir/said" &&
        grep -q 'field "a": 1 blob not decoded: no codec for type "jpeg" in this build' "$dir/said"
}

# The command opens libraries of formats in ../lib and in LIBDIR.
opens() { # opens BAGS: whether it finds libbags-http
    BAGS_RETRY_SECONDS=1 "$1" info http://127.0.0.1:1/none 2>"$dir/said"
    grep -q '127.0.0.1:1/none: cannot open' "$dir/said"
}
command_opens() { opens "$prefix/bin/bags"; }
command_opens_libdir() {
    make install PREFIX="$dir/split" LIBDIR="$dir/elsewhere/lib" && opens "$dir/split/bin/bags" &&
        mv "$dir/elsewhere" "$dir/moved" && ! opens "$dir/split/bin/bags" && cat "$dir/said" &&
        grep -q 'install libbags-http.so.* in' "$dir/said"
}

check 'make install' in_place
check 'every file is installed' has_all
check 'a library for each format that needs one' all_formats
check 'make install with a DESTDIR that has a space' staged
check 'the same files, and nothing of DESTDIR in them' same_below_stage
check 'the version is that of the header' version
[ ! -x build/release/bags ] || check 'the libraries of the command have their version as a name' soname
[ ! -x build/release/bags ] || check 'and export only the API' exported
check 'the include directory is enough' plain_include
check 'a program, which needs only libc and libm' small_program
check 'a program that is linked statically' program gcc -static
check 'a C++ program' program g++ -x c++
check 'a program with an implementation of its own' both
check 'programs with the library of each format' all_are_used
check 'programs with each format that are linked statically' static_formats
need cmake 'a program with CMake, as in the README' with_cmake
need meson 'a program with Meson, as in the README' with_meson
if [ -x build/release/bags ]; then
    build/release/bags help man >"$dir/bags.1"
    need mandoc 'the manual has no faults' manual_is_clean
    need man 'the manual is shown' manual_renders
    check 'the manual has every command and option' manual_is_whole
fi
if [ -x "$prefix/bin/bags" ] && [ -e "$prefix/lib/libbags-http.a" ]; then
    check 'the command opens the libraries of formats' command_opens
    check 'and in a LIBDIR elsewhere' command_opens_libdir
fi
check 'make uninstall' removed "$prefix"
check 'make uninstall with DESTDIR' removed /usr "$stage"
check 'two directories, one result; only the formats in FORMATS' reproducible
check 'FORMATS=, a relative PREFIX, and LIBDIR' no_formats
[ ! -x "$dir/relative/bin/bags" ] || check 'verify --decode names what it cannot decode' says_undecoded
echo "$passed passed, $failed failed"
[ $failed = 0 ]
