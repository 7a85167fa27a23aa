#!/usr/bin/env bash
# bags.h with every compiler and language standard, and its tests on every CPU and
# system that this machine can build for and emulate: one line a cell.
#
#     tests/portability.sh          the whole matrix: make portability
#     tests/portability.sh part     what belongs to make check
#     tests/portability.sh sources  fetch the libraries' sources
#     tests/portability.sh CELL...  the named ones, as s390x
#
# No exit code is believed alone: an example must print what its source says, a
# test program must report as many tests as its source has.
set -u
cd "$(dirname "$0")/.." || exit 1
logs=build/portability
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
unset MAKEFLAGS MAKELEVEL
export WINEPREFIX=${WINEPREFIX:-$PWD/build/wine} WINEDEBUG=-all
passed=0 failed=0 skipped=0 since=0

# report passed|failed|skipped CELL WHAT: and the seconds since the cell before
report() {
    printf '%-8s %-24s %4d s  %s\n' "$1" "$2" $((SECONDS - since)) "$3"
    since=$SECONDS
    count "$1"
}

count() {
    case $1 in
    passed) passed=$((passed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# lacks CELL COMMAND...: report what is not installed.
lacks() {
    local cell=$1 tool
    shift
    for tool in "$@"; do
        if ! command -v "$tool" >/dev/null; then
            report skipped "$cell" "for want of $tool"
            return 0
        fi
    done
    return 1
}

# say_failed CELL WHAT LOG
say_failed() {
    report failed "$1" "$2"
    tail -n 40 "$3" | sed 's/^/    /'
}

# --- libraries for other systems, from the distribution's sources

# fetch PACKAGE: unpack its source into build/PACKAGE, with lists of our own.
fetch() {
    local apt=$PWD/build/apt
    [ -d "build/$1" ] && return
    command -v apt-get >/dev/null || return
    if [ ! -d "$apt" ]; then
        mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" \
            "$apt/sources"
        find /etc/apt/sources.list /etc/apt/sources.list.d -type f \
            \( -name '*.list' -o -name '*.sources' \) -exec cp -t "$apt/sources" {} +
        sed -i 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$apt/sources"/*
        apt_get update
    fi
    mkdir -p "$apt/$1" && (cd "$apt/$1" && apt_get source --download-only "$1") &&
        mkdir -p "build/$1.new" &&
        tar -C "build/$1.new" --strip-components=1 -xf "$apt/$1"/*.orig.tar.?z &&
        mv "build/$1.new" "build/$1"
}

apt_get() {
    apt-get -q -oDir::State::Lists="$apt/lists" -oDir::Cache="$apt/cache" \
        -oDir::Etc::SourceList=/dev/null -oDir::Etc::SourceParts="$apt/sources" \
        -oAPT::Sandbox::User=root "$@"
}

sources() {
    fetch cmocka && fetch json-c && fetch libzstd
}

# cross MACHINE: its compiler. Packages with a version in their names leave gcc-multilib
# installed.
cross() {
    local version
    for version in '' "-$(gcc -dumpversion)" -12 -13 -14 -11; do
        if command -v "/usr/bin/$1-gcc$version" >/dev/null; then
            echo "$1-gcc$version"
            return
        fi
    done
    echo "$1-gcc"
}

compiler_of() {
    case $1 in
    m32) echo gcc ;;
    s390x) cross s390x-linux-gnu ;;
    aarch64) cross aarch64-linux-gnu ;;
    armhf) cross arm-linux-gnueabihf ;;
    windows) echo x86_64-w64-mingw32-gcc ;;
    musl) echo musl-gcc ;;
    esac
}

flags_of() {
    local undefined='-DBAGS_DEBUG -fsanitize=undefined -fno-sanitize-recover=all'
    case $1 in
    m32) echo "-O1 -g -m32 -I/usr/include/$(uname -m)-linux-gnu $undefined" ;;
    # MinGW has isfinite and isnan convert to float.
    windows) echo "-O2 -g -static -Wno-float-conversion $undefined -fsanitize-undefined-trap-on-error" ;;
    musl) echo "-O2 -g -static $undefined -fsanitize-undefined-trap-on-error" ;;
    *) echo "-O1 -g $undefined" ;;
    esac
}

compile_of() { echo "$(compiler_of "$1") $(flags_of "$1")"; }

# make_for FLAVOUR GOAL...: with the libraries below, and no other.
make_for() {
    local link=
    if [ "$1" = windows ]; then
        # Else .exe is appended to the name. The manifest makes arguments and file
        # names UTF-8.
        mkdir -p build/windows
        x86_64-w64-mingw32-windres examples/bags/windows.rc build/windows/manifest.o || return
        link="-Wl,-o,\$@ build/windows/manifest.o"
    fi
    PKG_CONFIG_LIBDIR=$PWD/build/$1/libraries make -j"$jobs" FLAVOUR="$1" \
        "CC_$1=$(compiler_of "$1")" "FLAGS_$1=$(flags_of "$1")" "LINK_$1=$link" "${@:2}"
}

# library FLAVOUR NAME CFLAGS LIBS: what pkg-config shall find.
library() {
    printf 'Name: %s\nDescription: %s\nVersion: 0\nCflags: %s\nLibs: %s\n' \
        "$2" "$2" "$3" "$4" >"build/$1/libraries/$2.pc"
}

# MinGW's printf is not the one that cmocka's attributes name; in 32 bits the tests
# convert sizes.
cmocka_for() {
    local object=$PWD/build/$1/libraries/cmocka.o library=$PWD/build/$1/libraries/libcmocka.a
    mkdir -p "build/$1/libraries"
    [ -f "build/$1/libraries/cmocka.pc" ] && return
    fetch cmocka >"$logs/cmocka.log" 2>&1 || return
    # shellcheck disable=SC2046
    $(compile_of "$1") -w -Ibuild/cmocka/include -DHAVE_MALLOC_H -DHAVE_SIGNAL_H \
        -DHAVE_INTTYPES_H -DHAVE_STRINGS_H -DHAVE_STRSIGNAL \
        -DHAVE_GCC_THREAD_LOCAL_STORAGE -c build/cmocka/src/cmocka.c \
        -o "$object" >"$logs/cmocka.log" 2>&1 && rm -f "$library" &&
        ar rcs "$library" "$object" &&
        library "$1" cmocka "-I$PWD/build/cmocka/include -Wno-conversion \
-Wno-format -Wno-format-extra-args" "$library"
}

json_for_windows() {
    local dir=$PWD/build/windows/libraries/json-c
    [ -f "build/windows/libraries/json-c.pc" ] && return
    fetch json-c && cmake -S build/json-c -B "$dir" -DCMAKE_SYSTEM_NAME=Windows \
        -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc -DCMAKE_BUILD_TYPE=Release \
        -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DBUILD_APPS=OFF \
        -DDISABLE_WERROR=ON -DCMAKE_INSTALL_PREFIX="$dir/root" &&
        cmake --build "$dir" --target install &&
        library windows json-c "-I$dir/root/include -I$dir/root/include/json-c" \
            "$dir/root/lib/libjson-c.a"
}

# --- another CPU or system: the core tests and the examples

# test_program FLAVOUR NAME RUN...: "OK SKIPPED" of a test program that ran to
# its end with every test of its source, in every group that it has begun.
test_program() {
    local log=$logs/$1-$2.log total groups good passed skips code part
    local program
    program=$(program_of "$1" "$2")
    part=$(part_of "$1" "$2")
    total=$(grep -c '^ *TEST(' "${program#build/*/}.c")
    shift 2
    # Where a writer and a reader alternate, and where hooks fail, each point is tried.
    case $program in *_live | *_hooks) unset BAGS_QUICK ;; esac
    for _ in 1 2; do
        code=0
        timeout 1800 "$@" "$program" ${part:+"$part"} </dev/null >"$log" 2>&1 || code=$?
        [ ! -s "$log" ] || break # Wine may end before the program has begun
    done
    [ $code = 0 ] || return
    sed -i 's/\r$//' "$log"
    groups=$(grep -c '^\[==========\] Running' "$log")
    good=$(grep -c '^\[       OK \]' "$log")
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s)\.$/\1/p' "$log" |
        awk '{ n += $1 } END { print n + 0 }')
    # Each is named when it comes, and again at the end.
    skips=$(($(grep -c '^\[  SKIPPED \] [^0-9]' "$log") / 2))
    # test_pairs makes its tests from a table.
    [ "$passed" = "$good" ] && [ "$good" -gt 0 ] &&
        { [ "$total" = 0 ] || [ $((good + skips)) = $((total * groups)) ]; } &&
        echo "$good $skips" >"$logs/$FLAVOUR-${program##*/}.count"
}

# program_of FLAVOUR NAME: the path of a test program.
program_of() {
    local source
    source=$(ls tests/*/"$2".c tests/*/*/"$2".c 2>/dev/null)
    echo "build/$1/${source%.c}"
}

# What FLAVOUR leaves out, and why.
left_out() {
    echo "system: its shim stands before the calls of this system's own C library"
    [ "$1" != windows ] || printf '%s\n' 'limits: has limits of POSIX' \
        'no_checksum: a writer crashes in a child made by fork'
}

# part_of FLAVOUR NAME: what a test is told that would take ten minutes under QEMU, or two
# minutes of `make check`, so that it tries one case in about so many; it prints that, and
# how many those were.
part_of() {
    case $1-$2 in
    s390x-test_power | aarch64-test_power | armhf-test_power) echo 8 ;;
    m32-test_power) [ -z "${BAGS_QUICK:-}" ] || echo 8 ;;
    esac
}

# test_names FLAVOUR: without those of formats that need libraries, too; if there
# is a subset, of that alone.
test_names() {
    local source name
    for source in tests/core/test_*.c tests/formats/test_{image,numpy}.c tests/formats/*/test_{archive,index,loader,resample,warp}.c; do
        name=${source##*/test_}
        name=${name%.c}
        case " ${subset:-$name} " in *" $name "*) ;; *) continue ;; esac
        if left_out "$1" | grep -q "^$name:"; then
            continue
        fi
        echo "test_$name"
    done
}

# programs FLAVOUR: its tests and the examples, as make knows them.
programs() {
    local name
    for name in $(test_names "$1"); do
        program_of "$1" "$name"
    done
    for name in ${examples-01_bag 02_dataset 03_sequences 04_workers 05_codec}; do
        [ "$1 $name" = 'windows 04_workers' ] || echo "build/$1/examples/$name"
    done
}

# is_for FLAVOUR: else its programs, which may run here, would test this system again.
is_for() {
    local is
    case $1 in
    m32) is='defined(__i386__)' ;;
    s390x) is='__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__' ;;
    aarch64) is='defined(__aarch64__)' ;;
    armhf) is='defined(__ARM_PCS_VFP)' ;;
    musl) is='!defined(__GLIBC__)' ;;
    windows) is='defined(_WIN64)' ;;
    esac
    printf '#include <stdlib.h>\n#if !(%s)\n#error not for %s\n#endif\n' "$is" "$1" |
        $(compile_of "$1") -x c -fsyntax-only -
}

# emulated FLAVOUR WHAT RUN...
emulated() {
    local flavour=$1 what=$2 name log=$logs/$1.log count lacking=
    shift 2
    rm -f "$logs/$flavour".log "$logs/$flavour"-test_*
    export FLAVOUR=$flavour logs
    # shellcheck disable=SC2046
    if ! { is_for "$flavour" && cmocka_for "$flavour" &&
        make_for "$flavour" $(programs "$flavour"); } \
        >"$log" 2>&1; then
        say_failed "$flavour" "does not build" "$log"
        return
    fi
    export -f test_program program_of part_of
    # shellcheck disable=SC2016
    test_names "$flavour" | xargs -P "$jobs" -I{} bash -c 'test_program "$FLAVOUR" "$@"' - {} "$@"
    for name in $(test_names "$flavour"); do
        if [ ! -f "$logs/$flavour-$name.count" ]; then
            lacking+=" $name"
            log=$logs/$flavour-$name.log
        fi
    done
    if [ -n "$lacking" ]; then
        say_failed "$flavour" "did not pass:$lacking" "$log"
        return
    fi
    if [ -n "${examples-all}" ]; then
        if ! RUN="$*" tests/command/examples.sh "build/$flavour" >>"$log" 2>&1; then
            say_failed "$flavour" "the examples" "$log"
            return
        fi
        what+=", $(tail -n 1 "$log" | sed 's/ passed.*/ examples/')"
    fi
    count=$(cat "$logs/$flavour"-*.count | awk '{ n += $1; s += $2 }
        END { printf "%d tests", n; if (s) printf ", %d skipped", s }')
    report passed "$flavour" "$what: $count"
    if [ -n "${subset:-}" ]; then
        echo "         only a subset: test_${subset// /, test_}"
    else
        left_out "$flavour" | sed 's/^/         left out: test_/'
    fi
    grep -hE '^(skipped|in part)' "$logs/$flavour"-test_*.log | sed 's/^/         /'
}

m32() {
    lacks m32 gcc && return
    if ! echo '#include <errno.h>' | $(compile_of m32) -x c -c - -o /dev/null \
        2>/dev/null; then
        report skipped m32 'for want of gcc-12-multilib'
        return
    fi
    emulated m32 '32 bits, UBSan' env
}

s390x() {
    lacks s390x "$(compiler_of s390x)" qemu-s390x-static ||
        emulated s390x 'big-endian, UBSan, QEMU' qemu-s390x-static \
            -L /usr/s390x-linux-gnu
}

# What turns numbers between files and memory.
s390x_subset() {
    local subset='bag checksum crc numpy reader types writer'
    s390x
}

aarch64() {
    lacks aarch64 "$(compiler_of aarch64)" qemu-aarch64-static ||
        emulated aarch64 'UBSan, QEMU' qemu-aarch64-static \
            -L /usr/aarch64-linux-gnu
}

# The CPU's own CRC, which is assembly; no examples.
aarch64_subset() {
    local subset='crc' examples=
    aarch64
}

armhf() {
    lacks armhf "$(compiler_of armhf)" qemu-arm-static ||
        emulated armhf '32 bits, UBSan, QEMU' qemu-arm-static \
            -L /usr/arm-linux-gnueabihf
}

musl() {
    lacks musl musl-gcc || emulated musl 'static' env
}

windows() {
    lacks windows x86_64-w64-mingw32-gcc wine && return
    wine wineboot -i >/dev/null 2>&1 # or the first programs do it all at once
    emulated windows 'MinGW-w64, Wine' wine
}

# What the command writes and prints under Wine is what it does here.
command_windows() {
    local cell=windows-command log=$PWD/$logs/windows-command.log dir
    local spec='name=utf8,label=int(4),data=int[],raw=bytes'
    lacks "$cell" x86_64-w64-mingw32-gcc wine cmake && return
    json_for_windows >"$logs/json-c.log" 2>&1
    if ! make -j"$jobs" build/release/bags FLAVOUR=release >"$log" 2>&1 ||
        ! make_for windows build/windows/bags >>"$log" 2>&1; then
        say_failed "$cell" 'does not build' "$log"
        return
    fi
    local here=$PWD/build/release/bags there=$PWD/build/windows/bags
    dir=$(mktemp -d) || return
    (
        set -ex
        cd "$dir"
        printf 'caf\351 \r\n\0\32' >blob
        printf '{"name":"%s","label":%d,"data":[%d,7],"raw":{"file":"blob"}}\n' \
            'é日本' 3 1 'b\nc' 4 2 d 5 3 >lines
        "$here" pack lines set --spec "$spec" --shard-length 2
        wine "$there" pack lines 'päck\set' --spec "$spec" --shard-length 2
        diff -r set päck/set
        wine "$there" pack - piped --spec "$spec" --shard-length 2 <lines
        diff -r set piped
        for words in 'info set' 'get set 0:3' 'get set 0 raw --raw' 'verify set'; do
            # shellcheck disable=SC2086
            "$here" $words >expected
            # shellcheck disable=SC2086
            wine "$there" $words >given
            cmp expected given
        done
        "$here" export set exported
        wine "$there" export päck/set 'ëxported'
        diff -r exported ëxported
        if wine "$there" info missing; then
            exit 1
        fi
        echo finished
    ) >>"$log" 2>&1
    if tail -n 1 "$log" | grep -qx finished; then
        report passed "$cell" 'pack, info, get, export, verify as on this system'
    else
        say_failed "$cell" 'differs' "$log"
    fi
    rm -rf "$dir"
}

# --- compilers and languages: the examples

# The program at the top of bags.h: it prints "cat".
header_program() {
    sed -n '/^ \* A COMPLETE PROGRAM$/,/^ \* CONTENTS/s/^ \*     //p' bags.h
}

# prepare CELL: a directory with bags.h and the programs, without what they made.
prepare() {
    rm -rf "${logs:?}/$1"
    mkdir -p "$logs/$1/examples" && cp bags.h "$logs/$1" &&
        cp examples/0[1-5]*.c "$logs/$1/examples" &&
        header_program >"$logs/$1/program.c"
}

# language CELL COMPILER...: as many at once as there are cores; gather prints.
language() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    begun+=("$1")
    one_language "$@" >"$logs/$1.report" 2>&1 &
}

one_language() {
    local cell=$1
    shift
    since=$SECONDS
    lacks "$cell" "$1" && return
    prepare "$cell" && run_programs "$cell" "$@"
}

# The reports of all cells that language began, in their order.
gather() {
    local cell word
    wait
    for cell in "${begun[@]}"; do
        word=
        cat "$logs/$cell.report"
        read -r word _ <"$logs/$cell.report"
        count "$word"
    done
    begun=() since=$SECONDS
}

# run_programs CELL COMPILER...: of a directory that was prepared
run_programs() {
    local dir=$logs/$1 log=$logs/$1.log cell=$1 name
    shift
    for name in program examples/{01_bag,02_dataset,03_sequences,04_workers,05_codec}; do
        if ! "$@" "$dir/$name.c" -o "$dir/$name" -pthread >"$log" 2>&1; then
            say_failed "$cell" "does not compile $name" "$log"
            return
        fi
    done
    if [ "$(cd "$dir" && ./program 2>&1)" != cat ]; then
        say_failed "$cell" 'the program at the top of bags.h' "$log"
    elif tests/command/examples.sh "$dir" >"$log" 2>&1 && grep -q '^5 passed, 0' "$log"; then
        report passed "$cell" "${what:-5 examples, and that of bags.h}"
    else
        say_failed "$cell" 'the examples' "$log"
    fi
}

# What other systems have in the place of what Linux has, run here. 51 is what
# macOS calls F_FULLFSYNC; here it is an unknown request, as on some disks.
elsewhere() {
    local warn_all
    read -ra warn_all <<<"$warn_c"
    branches macos gcc -std=c99 "${warn_all[@]}" -DF_FULLFSYNC=51
    branches openbsd gcc -std=c99 "${warn_all[@]}" -D__OpenBSD__
}

# branches SYSTEM COMPILER...
branches() {
    local cell=$1-branches what="those of bags.h for $1, run on this system"
    shift
    lacks "$cell" "$1" && return
    prepare "$cell"
    sed -i 's/defined(__linux__)/defined(NEITHER)/
        s/defined(POSIX_FADV_WILLNEED)/defined(NEITHER)/' "$logs/$cell/bags.h"
    if [ "$(grep -c 'defined(NEITHER)' "$logs/$cell/bags.h")" -lt 4 ]; then
        report failed "$cell" 'bags.h has none'
    else
        run_programs "$cell" "$@"
    fi
}

warn='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror'
warn_c="$warn -Wstrict-prototypes -Wc++-compat"
warn_cxx="$warn -Wno-missing-field-initializers"

languages() {
    local std begun=()
    # shellcheck disable=SC2086
    {
        for std in c99 c11 c17 c2x; do
            language "gcc-$std" gcc -std=$std $warn_c
            language "gcc-11-$std" gcc-11 -std=$std $warn_c
            language "clang-$std" clang -std=$std $warn_c
        done
        for std in c99 c11 c17 c23; do
            language "clang-19-$std" clang-19 -std=$std $warn_c
        done
        for std in 11 14 17 20 23; do
            language "g++-c++$std" g++ -x c++ -std=c++$std $warn_cxx
            language "g++-11-c++$std" g++-11 -x c++ -std=c++$std $warn_cxx
            language "clang++-c++$std" clang++ -x c++ -std=c++${std/23/2b} $warn_cxx
            language "clang++-19-c++$std" clang++-19 -x c++ -std=c++$std $warn_cxx
        done
        for std in c99 c11; do
            language "musl-$std" musl-gcc -static -std=$std $warn_c
            language "tcc-$std" tcc -std=$std
        done
        language clang-m32 clang -m32 -I"/usr/include/$(uname -m)-linux-gnu" \
            -std=c99 $warn_c
        gather
    }
}

# --- Windows: what needs no test program

# compiles CELL WHAT COMPILER...: of standard input, and nothing is said.
compiles() {
    local cell=$1 what=$2
    shift 2
    if "$@" -I. - >"$logs/$cell.log" 2>&1 && [ ! -s "$logs/$cell.log" ]; then
        report passed "$cell" "$what"
    else
        say_failed "$cell" "$what" "$logs/$cell.log"
    fi
}

# windows.h before and behind, also a whole one with its macros min and max.
windows_h() {
    local compiler
    # shellcheck disable=SC2086
    for compiler in 'gcc -x c -std=c99' 'g++ -x c++ -std=c++11'; do
        set -- $compiler
        lacks "windows.h-$1" "x86_64-w64-mingw32-$1" && continue
        compiles "windows.h-$1-before" 'windows.h, then bags.h' \
            "x86_64-w64-mingw32-"$compiler $warn_cxx -c -o /dev/null <<'END'
#include <windows.h>
#define BAGS_IMPLEMENTATION
#include "bags.h"
END
        compiles "windows.h-$1-behind" 'bags.h, then windows.h' \
            "x86_64-w64-mingw32-"$compiler $warn_cxx -c -o /dev/null <<'END'
#define BAGS_STATIC
#include "bags.h"
#include <winsock2.h>
#include <windows.h>
END
    done
}

# MSVC itself is not to be had: its front end as clang imitates it, with the
# branches for MSVC, MinGW's headers, and the two inline functions that they lack.
# What they have and MSVC's lack is poisoned, when they have been read; so are
# clang's extensions, which -Wpedantic allows where they are spelt with underscores.
msvc() {
    local std header=/usr/share/mingw-w64/include
    if [ ! -f "$header/windows.h" ]; then
        report skipped msvc 'for want of mingw-w64-x86-64-dev'
        return
    fi
    lacks msvc clang && return
    mkdir -p "$logs/msvc"
    sed -E 's/defined\(__(GNUC|clang|BYTE_ORDER)__\)/defined(NEITHER)/g' bags.h \
        >"$logs/msvc/bags.h"
    for std in 'c -std=c99' 'c -std=c11' 'c++ -std=c++14' 'c++ -std=c++20'; do
        # shellcheck disable=SC2086
        compiles "msvc-${std#*=}" 'syntax alone, by clang' \
            clang --target=x86_64-pc-windows-msvc -fgnuc-version=4.2.1 \
            -fsyntax-only -x $std $warn_cxx -Wvla -Wno-unused-parameter -Wno-gnu-anonymous-struct \
            -isystem "$header" -I"$logs/msvc" <<'END'
#include <windows.h>
static inline PVOID ReadPointerAcquire(PVOID const volatile *slot) {
    return (PVOID)*slot;
}
static inline void WritePointerRelease(PVOID volatile *slot, PVOID value) {
    *slot = value;
}
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef strcasecmp
#undef strncasecmp
#pragma GCC poison ssize_t off_t off64_t mode_t pid_t useconds_t fseeko ftello \
    strcasecmp strncasecmp strtok_r gettimeofday clock_gettime nanosleep usleep
#pragma GCC poison __attribute__ __typeof__ __extension__ __int128 __auto_type \
    __builtin_expect __builtin_bswap64 __atomic_load_n __atomic_store_n
#define BAGS_IMPLEMENTATION
#include <bags.h>
END
    done
}

part() {
    msvc
    m32
    s390x_subset
    aarch64_subset
}

all() {
    languages
    elsewhere
    windows_h
    msvc
    m32
    s390x
    aarch64
    armhf
    musl
    windows
    command_windows
}

main() {
    local cell
    mkdir -p "$logs"
    if [ "${1:-}" = sources ]; then
        sources >"$logs/sources.log" 2>&1
        return
    fi
    for cell in "${@:-all}"; do
        $cell
    done
    [ $skipped = 0 ] || echo "$skipped skipped"
    echo "$passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed -gt 0 ]
}

main "$@"; exit # and read no more of this file, should it change meanwhile
