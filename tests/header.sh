#!/usr/bin/env bash
# bags.h with every compiler and standard, in every way it may be included: no
# warning, and no symbol outside bag_ and bags_.
set -u
warnings='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror'
only_c='-Wstrict-prototypes -Wc++-compat'
# C++ warns of {0}; for the public structs that is what we recommend.
only_cxx='-Wno-missing-field-initializers'
root=$PWD
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

# cell TITLE COMMAND...: one line; what the command prints only if it fails.
cell() {
    local title=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        echo "ok      $title"
        passed=$((passed + 1))
    else
        echo "FAILED  $title"
        head -n 20 "$dir/log"
        failed=$((failed + 1))
    fi
}

# source NAME LINE...: a file in C and the same in C++.
source_file() {
    local name=$1
    shift
    printf '%s\n' "$@" >"$dir/$name.c"
    cp "$dir/$name.c" "$dir/$name.cc"
}

call='int main(void) { return bags_version()[0] == 0; }'
source_file implementation '#define BAGS_IMPLEMENTATION' '#include "bags.h"' "$call"
source_file declarations '#include "bags.h"' 'int use(void);' \
    'int use(void) { return bags_version()[0]; }'
source_file static '#define BAGS_STATIC' '#include "bags.h"' "$call"
source_file twice '#define BAGS_IMPLEMENTATION' '#include "bags.h"' \
    '#include "bags.h"' "$call"
source_file later '#include "bags.h"' '#define BAGS_IMPLEMENTATION' \
    '#include "bags.h"' "$call"
source_file after_stdio '#include <stdio.h>' '#define BAGS_IMPLEMENTATION' \
    '#include "bags.h"' "$call"
source_file caller '#include "bags.h"' "$call"
source_file library '#define BAGS_IMPLEMENTATION' '#include "bags.h"'

compile() { # compile COMPILER STANDARD NAME: to NAME.o
    case $2 in
    *++*) "$1" -std="$2" $warnings $only_cxx -I"$root" -c "$dir/$3.cc" -o "$dir/$3.o" ;;
    *) "$1" -std="$2" $warnings $only_c -I"$root" -c "$dir/$3.c" -o "$dir/$3.o" ;;
    esac
}

# A system header came first: it works, or an #error says what to do.
compile_or_explain() {
    compile "$@" && return
    "$1" -std="$2" -I"$root" -c "$dir/$3.c" -o "$dir/$3.o" 2>&1 |
        grep -q '#error.*before'
}

run() { # run COMPILER OBJECT...: they link, and the program runs
    local compiler=$1
    shift
    "$compiler" "${@/#/$dir/}" -o "$dir/program" && "$dir/program"
}

separate() { # a library in one language, its caller in another
    compile "$1" "$2" library && compile "$3" "$4" caller &&
        run "$3" library.o caller.o
}

# What NAME.o defines, but main.
symbols() { nm -g --defined-only "$dir/$1.o" | awk '$3 != "main" {print $3}'; }

public_only() {
    compile "$1" "$2" library && symbols library | grep -q '^bags_version$' &&
        ! symbols library | grep -v -E '^bags?_'
}

nothing_public() {
    compile "$1" "$2" static && ! symbols static | grep .
}

matrix() { # matrix C-COMPILER C++-COMPILER
    local standard how compiler
    for standard in c99 c11 c17 gnu99 gnu17 \
        c++11 c++14 c++17 c++20 gnu++11 gnu++14 gnu++17 gnu++20; do
        compiler=$1
        case $standard in *++*) compiler=$2 ;; esac
        for how in implementation declarations static; do
            cell "$compiler -std=$standard $how" compile "$compiler" $standard $how
        done
    done
    for standard in c99 gnu99 c11 gnu17 c++11 gnu++17; do
        compiler=$1
        case $standard in *++*) compiler=$2 ;; esac
        for how in twice later; do
            cell "$compiler -std=$standard included $how" compile "$compiler" $standard $how
        done
        cell "$compiler -std=$standard behind stdio.h" \
            compile_or_explain "$compiler" $standard after_stdio
        cell "$compiler -std=$standard symbols" public_only "$compiler" $standard
        cell "$compiler -std=$standard symbols, static" nothing_public "$compiler" $standard
        cell "$compiler -std=$standard two files" separate "$compiler" $standard "$compiler" $standard
    done
    cell "$1 library, $2 caller" separate "$1" c99 "$2" c++11
    cell "$2 library, $1 caller" separate "$2" c++11 "$1" c99
}

for pair in 'gcc g++' 'clang clang++'; do
    set -- $pair
    if command -v "$1" >/dev/null && command -v "$2" >/dev/null; then
        matrix "$1" "$2"
    else
        echo "skipped $pair: not installed"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
