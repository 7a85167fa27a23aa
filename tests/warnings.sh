#!/usr/bin/env bash
# All that compilers and analysers have to say of bags.h, the formats and the
# examples: one line for each of them. With `quick`: what takes seconds; with
# `analysers` or `compilers`: these alone.
set -u
mode=${1:-all}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cells=0

warnings='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Wcast-align -Wcast-qual
    -Wdouble-promotion -Wformat=2 -Wnull-dereference -Wvla -Werror'
only_c='-Wstrict-prototypes -Wc++-compat'
# {0} is what bags.h recommends.
only_cxx='-Wno-missing-field-initializers'

# Of all that clang knows, we do not want to hear of:
# -Wpadded                       structs have padding
# -Wdeclaration-after-statement  this is C99
# -Wunsafe-buffer-usage          every pointer that is indexed
# -Wreserved-macro-identifier    _GNU_SOURCE and its like
# -Wunused-macros                those in the header are for its users
everything='-Weverything -Werror -Wno-unknown-warning-option -Wno-padded
    -Wno-declaration-after-statement -Wno-unsafe-buffer-usage -Wno-reserved-macro-identifier
    -Wno-unused-macros'
# ... in C++ of what it has in common with C.
everything_cxx='-Wno-old-style-cast -Wno-zero-as-null-pointer-constant -Wno-c++98-compat-pedantic'
# ... in the formats: C99 cannot say that a function does not return; the default
# of a switch over a library's enum is for its later versions.
everything_formats='-Wno-missing-noreturn -Wno-covered-switch-default'

# clang-tidy's checks, without those for: parameters of like types; the C library's
# bounded twins, which no C library has; names of feature macros; text that has a size;
# doubles that are compared by their bits.
checks='-*,clang-analyzer-*,bugprone-*,cert-*'
checks+=',-bugprone-easily-swappable-parameters,-clang-analyzer-security.insecureAPI.*'
checks+=',-bugprone-reserved-identifier,-cert-dcl37-c,-cert-dcl51-cpp'
checks+=',-bugprone-not-null-terminated-result'
checks+=',-bugprone-suspicious-memory-comparison,-cert-exp42-c,-cert-flp37-c'

# What is not so, by file, check and line: an array that is transposed has dimensions;
# a buffer that was reserved is there.
mistaken='numpy.c|core.uninitialized.Assign|from += strides[i];
numpy.c|core.NullDereference|**out = header.npy;
msgpack.c|core.NullDereference|if (item->type == MSGPACK_OBJECT_MAP)'

# cell TITLE COMMAND...: one line; what the command prints only if it fails.
cell() {
    local number
    cells=$((cells + 1))
    number=$(printf %04d $cells)
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    one_cell "$dir/$number" "$@" &
}

one_cell() {
    local to=$1 title=$2
    shift 2
    if "$@" >"$to.log" 2>&1; then
        echo "ok      $title" >"$to.cell"
    else
        { echo "FAILED  $title"; head -n 40 "$to.log"; } >"$to.cell"
    fi
}

# have PROGRAM: it is there, or that is said
have() {
    command -v "$1" >/dev/null && return
    cells=$((cells + 1))
    echo "skipped $1: not installed" >"$dir/$(printf %04d $cells).cell"
    return 1
}

# The header as a file of its own, so that nothing in it counts as a header's.
header_c() { # header_c COMPILER STANDARD FLAG...
    "$1" -std="$2" $warnings $only_c "${@:3}" -x c -DBAGS_IMPLEMENTATION -c bags.h -o /dev/null
}

header_cxx() {
    "$1" -std="$2" $warnings $only_cxx "${@:3}" -x c++ -DBAGS_IMPLEMENTATION -c bags.h -o /dev/null
}

windows() { # windows LINE...: a file of these lines
    local compiler=x86_64-w64-mingw32-gcc
    printf '%s\n' "$@" | $compiler -std=c99 $warnings $only_c -I. -fsyntax-only -x c -
}

# What is there of the formats, and how to compile them.
read -r -d '' -a flags < <(make -s print-formats | head -n 1)
formats=$(printf '%s\n' "${flags[@]}" | sed -n 's/^-DBAGS_WITH_\(.*\)=1$/formats\/\L\1.c/p')
examples=$(ls examples/*.c examples/bags/*.c examples/demo/*.c | grep -v _mpi.c)
pkg-config --exists json-c && read -r -d '' -a json < <(pkg-config --cflags json-c)

sources() { # sources COMPILER STANDARD FILES FLAG...
    local file failed=0
    for file in $3; do
        "$1" -std="$2" $warnings $only_c "${@:4}" "${flags[@]}" "${json[@]-}" -c "$file" \
            -o /dev/null || failed=1
    done
    return $failed
}

everything() { # everything CLANG LANGUAGE STANDARD FLAG... FILE
    local code=0
    "$1" $everything -fsyntax-only -x "$2" -std="$3" "${@:4}" || code=1
    return $code
}

everything_formats() {
    local file failed=0
    for file in $formats; do
        everything "$1" c c99 $everything_formats "${flags[@]}" "$file" || failed=1
    done
    return $failed
}

# Analysers do not look into a function that has "..." behind its parameters, and
# must be told that bags_fail returns its code, and that bagi_print returns a text or
# fails with an error. This is done in a copy.
told='-Dbags_fail(err,code,...)=((bags_fail)(err,code,__VA_ARGS__),(code))'
print='-Dbagi_print(memory,err,...)=((void)snprintf(NULL,0,__VA_ARGS__),bagi_copy_text(memory,"",0,err))'
tell() {
    mkdir "$dir/told" "$dir/told/formats"
    cp formats/*.[ch] "$dir/told/formats"
    sed -E 's/^(BAGS_API .*)\bbags_fail\(/\1(bags_fail)(/
        s/^(static char \*)bagi_print\(/\1(bagi_print)(/' bags.h >"$dir/told/bags.h"
}

fanalyzer() { # fanalyzer GCC FLAG... FILE
    "$1" -std=c99 -O1 -fanalyzer -Werror "${flags[@]}" "$told" "$print" "${@:2}" -c -o /dev/null
}

# clang-tidy's findings but the mistaken ones. A file that does not compile is one.
tidy() { # tidy FILE FLAG...
    local file=$1 found=0 at line said check text
    (cd "$dir/told" && clang-tidy --checks="$checks" --quiet "$file" -- -std=c99 "$told" "$print" \
        "${flags[@]}" "${@:2}") >"$dir/tidy.${file##*/}" 2>"$dir/tidy.${file##*/}.err"
    grep -E '^/[^ ]*: (warning|error): ' "$dir/tidy.${file##*/}" >"$dir/found.${file##*/}"
    while IFS=: read -r at line _ _ said; do
        check=${said##*[}
        check=${check#clang-analyzer-}
        text=$(sed -n "${line}{s/^ *//;p}" "$at")
        grep -q -x -F "${file##*/}|${check%]}|$text" <<<"$mistaken" && continue
        found=1
        echo "$at:$line:$said"
    done <"$dir/found.${file##*/}"
    return $found
}

# An analyser that finds nothing may have looked at nothing: this it must find.
tidy_works() {
    printf '%s\n' '#include "bags.h"' 'int fault(int n);' 'int fault(int n) {' \
        '    return n / (int)bags_fail(NULL, BAGS_OK, "x"); }' >"$dir/told/fault.c"
    ! tidy fault.c >"$dir/fault" && grep -q DivideZero "$dir/fault"
}

check_c() { cppcheck -q --enable=warning,portability,performance --inline-suppr --error-exitcode=1 "$@"; }

quick() {
    local compiler
    for compiler in gcc clang; do
        have $compiler || continue
        cell "$compiler -std=c99 bags.h" header_c $compiler c99 -O2
        cell "$compiler -std=c99 formats" sources $compiler c99 "$formats" -O1
    done
    have g++ && cell 'g++ -std=c++11 bags.h' header_cxx g++ c++11 -O1
    have clang && cell 'clang -Weverything bags.h' \
        everything clang c c99 -DBAGS_IMPLEMENTATION bags.h
    have clang && cell 'clang -Weverything formats' everything_formats clang
}

compilers() {
    local compiler standard
    for compiler in gcc-11 gcc-12 clang-14 clang-19; do
        have $compiler || continue
        for standard in c99 gnu99 c11 c17 c2x; do
            cell "$compiler -std=$standard bags.h" header_c $compiler $standard -O2
        done
        cell "$compiler -std=c99 formats" sources $compiler c99 "$formats" -O2
        cell "$compiler -std=gnu11 examples" sources $compiler gnu11 "$examples" -O2
    done
    for compiler in g++-11 g++-12 clang++-14 clang++-19; do
        have $compiler || continue
        for standard in c++11 c++14 c++17 c++20 c++2b; do
            cell "$compiler -std=$standard bags.h" header_cxx $compiler $standard -O2
        done
    done
    if have gcc-12; then
        cell 'gcc-12 -m32 bags.h' header_c gcc-12 c99 -O2 -m32 \
            "-I/usr/include/$(uname -m)-linux-gnu"
    fi
    if have x86_64-w64-mingw32-gcc; then
        cell 'mingw bags.h behind windows.h' windows '#include <windows.h>' \
            '#define BAGS_IMPLEMENTATION' '#include "bags.h"'
        cell 'mingw bags.h before windows.h' windows '#define BAGS_STATIC' \
            '#include "bags.h"' '#include <windows.h>'
    fi
    for compiler in clang-14 clang-19; do
        have $compiler || continue
        cell "$compiler -Weverything bags.h" \
            everything $compiler c c99 -DBAGS_IMPLEMENTATION bags.h
        cell "$compiler -Weverything bags.h, C++" \
            everything $compiler c++ c++11 $everything_cxx -DBAGS_IMPLEMENTATION bags.h
        cell "$compiler -Weverything formats" everything_formats $compiler
    done
}

analysers() {
    local file
    tell
    if have clang-tidy; then
        cell 'clang-tidy bags.h' tidy bags.h -x c -DBAGS_IMPLEMENTATION
        for file in $formats; do
            cell "clang-tidy $file" tidy "$file"
        done
        cell 'clang-tidy finds a planted fault' tidy_works
    fi
    if have gcc-12; then
        cell 'gcc-12 -fanalyzer bags.h' \
            fanalyzer gcc-12 -DBAGS_IMPLEMENTATION -x c "$dir/told/bags.h"
        for file in $formats; do
            cell "gcc-12 -fanalyzer $file" fanalyzer gcc-12 "$dir/told/$file"
        done
    fi
    if have cppcheck; then
        cell 'cppcheck bags.h' check_c --std=c99 --language=c -DBAGS_IMPLEMENTATION \
            -UBAGI_IMPLEMENTED -U_WIN32 bags.h
        cell 'cppcheck formats' check_c --std=c99 $formats
        cell 'cppcheck examples' check_c --std=c11 -DBAGI_IMPLEMENTED \
            -U_WIN32 "${flags[@]}" $examples
    fi
}

all() {
    analysers
    compilers
}

main() {
    local passed failed skipped
    $mode
    wait
    cat "$dir"/*.cell
    passed=$(cat "$dir"/*.cell | grep -c '^ok')
    failed=$(cat "$dir"/*.cell | grep -c '^FAILED')
    skipped=$(cat "$dir"/*.cell | grep -c '^skipped')
    [ "$skipped" = 0 ] || echo "$skipped skipped"
    # Every cell has left a line, and none of them has failed.
    [ $((passed + failed + skipped)) = $cells ] || failed=$((failed + 1))
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}

main; exit # and read no more of this file, should it change meanwhile
