#!/usr/bin/env bash
# bags.h with every compiler and standard, in every way it may be included: no
# warning, and no symbol outside bag_ and bags_ but those that `inlined` names. With
# `quick`: five of these cells.
set -u
warnings='-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror'
only_c='-Wstrict-prototypes -Wc++-compat'
# C++ warns of {0}; for the public structs that is what we recommend.
only_cxx='-Wno-missing-field-initializers'
root=$PWD what=${1:-all}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# cell TITLE COMMAND...: one line; what the command prints only if it fails.
cell() {
    local title=$1
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok      $title"
    else
        echo "FAILED  $title"
        head -n 20 "$log"
    fi
}

# write_source NAME LINE...: a file in C and the same in C++.
write_source() {
    local name=$1
    shift
    printf '%s\n' "$@" >"$dir/$name.c"
    cp "$dir/$name.c" "$dir/$name.cc"
}

call='int main(void) { return bags_version()[0] == 0; }'
write_source declarations '#include "bags.h"' 'int use(void);' \
    'int use(void) { return bags_version()[0]; }'
write_source static '#define BAGS_STATIC' '#include "bags.h"' "$call"
write_source twice '#define BAGS_IMPLEMENTATION' '#include "bags.h"' \
    '#include "bags.h"' "$call"
write_source later '#include "bags.h"' '#define BAGS_IMPLEMENTATION' \
    '#include "bags.h"' "$call"
write_source after_stdio '#include <stdio.h>' '#define BAGS_IMPLEMENTATION' \
    '#include "bags.h"' "$call"
write_source caller '#include "bags.h"' "$call"
# Without a system a program needs libc's part of ISO C, and opens nothing without hooks.
write_source no_local '#include <stdio.h>' '#define BAGS_NO_LOCAL' \
    '#define BAGS_IMPLEMENTATION' '#include "bags.h"' 'int main(void) {' \
    '    bags_error err; bags_field field = {"a", "utf8"};' \
    '    puts(bags_reader_open("x", NULL, &err) ? "?" : err.message);' \
    '    puts(bag_writer_open("x/a.bag", NULL, &err) ? "?" : err.message);' \
    '    puts(bags_writer_open("x", &field, 1, NULL, &err) ? "?" : err.message);' \
    '    puts(bags_recover("x", NULL, NULL, &err) ? err.message : "?");' \
    '    puts(bags_verify("x", NULL, NULL, &err) ? err.message : "?");' \
    '    return 0; }'
write_source library '#define BAGS_IMPLEMENTATION' '#include "bags.h"'

compile() { # compile COMPILER STANDARD NAME: to STANDARD-NAME.o, once
    local ending=c flags=$only_c level=-O0
    [ ! -e "$out/$2-$3.o" ] || return 0
    case $2 in *++*) ending=cc flags=$only_cxx ;; esac
    # Some warnings of gcc need its optimizer.
    case $what:$1-$2-$3 in all:g*-c99-library | all:g*-c++11-library) level=-O2 ;; esac
    "$1" -std="$2" $level $warnings $flags -I"$root" -c "$dir/$3.$ending" \
        -o "$out/$2-$3.o"
}

# A system header came first: it works, or the one error says what to do.
compile_or_explain() {
    compile "$@" && return
    local said
    said=$("$1" -std="$2" -I"$root" -fsyntax-only "$dir/$3.c" 2>&1)
    grep -q 'error.*bags\.h: a system header came first' <<<"$said" &&
        [ "$(grep -c 'error: \|warning: ' <<<"$said")" = 1 ]
}

run() { # run COMPILER OBJECT...: they link, and the program runs
    local compiler=$1
    shift
    "$compiler" "${@/#/$out/}" -o "$out/program" && "$out/program"
}

separate() { # a library in one language, its caller in another
    compile "$1" "$2" library && compile "$3" "$4" caller &&
        run "$3" "$2-library.o" "$4-caller.o"
}

# What the functions that stand in the header call, and their own copies: in C
# all of these, in C++ what is not inline.
inlined() {
    case $1 in
    *++*) printf 'bagi_%s\n' bag_get ;;
    *) printf 'bagi_%s\n' bag_get load_u64 mapped_blob mapped_get row_slots ;;
    esac
}

# What STANDARD-NAME.o defines, but main.
symbols() { nm -g --defined-only "$out/$1.o" | awk '$3 != "main" {print $3}'; }

public_only() {
    compile "$1" "$2" library && symbols "$2-library" | grep -q '^bags_version$' &&
        diff <(inlined "$2") <(symbols "$2-library" | grep -v -E '^bags?_' | LC_ALL=C sort)
}

# After the implementation only the internal macros of the API are defined, on every
# system: what is defined under any #if is removed again.
macros_removed() {
    local api='ADDRESS|ALWAYS|CAST|CHECKED|IMPLEMENTED|INLINE|LENGTH|NODISCARD|NULL|PRINTF|SIZE|UNLIKELY|UNUSED'
    ! "$1" -std=c99 -I"$root" -dM -E "$dir/library.c" | grep "#define BAGI_" |
        grep -vE "BAGI_($api)\>" &&
        diff <(grep -oE '^# *define BAGI_[A-Z0-9_]+' "$root/bags.h" | grep -o 'BAGI_.*' |
            grep -vxE "BAGI_($api)" | sort -u) \
            <(grep -oE '^#undef BAGI_[A-Z0-9_]+' "$root/bags.h" | grep -o 'BAGI_.*' | sort)
}

# A compiler that inlines nothing finds a definition of every inline function.
all_emitted() {
    "$1" -std="$2" -O0 -Dalways_inline=unused -I"$root" -c "$dir/library.c" \
        -o "$out/emitted.o" && ! nm -u "$out/emitted.o" | grep bag
}

nothing_public() {
    compile "$1" "$2" static && ! symbols "$2-static" | grep .
}

no_local() {
    local system='open|read|pread|stat|mmap|flock|fcntl|opendir|readdir|getcwd|rename|unlink|mkdir|pthread_[a-z_]*'
    compile "$1" "$2" no_local && "$1" "$out/$2-no_local.o" -o "$out/program" &&
        ! nm -u "$out/$2-no_local.o" | grep -wE "$system" &&
        [ "$("$out/program" | grep -c '^x.*: no local files (BAGS_NO_LOCAL); set env.io$')" = 5 ]
}

# Every combination of what is left out compiles, and leaves that out.
left_out() {
    local writer verify checksum left level=-O0
    case $1 in gcc) level=-O1 ;; esac
    for writer in '' -DBAGS_NO_WRITER; do
        for verify in '' -DBAGS_NO_VERIFY; do
            for checksum in '' -DBAGS_NO_CHECKSUM; do
                "$1" -std="$2" $level $warnings $only_c $writer $verify $checksum \
                    -I"$root" -c "$dir/library.c" -o "$out/left_out.o" || return 1
                left=
                [ "$writer$checksum" ] || left+='bags_checksum '
                [ "$writer" ] || left+='bags_recover '
                [ "$verify" ] || left+='bags_verify '
                [ "$left" = "$(symbols left_out | LC_ALL=C sort |
                    grep -xE 'bags_(checksum|recover|verify)' | tr '\n' ' ')" ] || return 1
            done
        done
    done
}

# The formats that can be built here, and how.
format_flags=$(make print-formats | sed -n 1p)
formats=$(make print-formats | tail -n 1 | grep -o ' [^ ]*formats/[^ ]*\.o' |
    sed 's|.*/formats/|formats/|; s|o$|c|')

# They compile for a program that only reads, or an #error says why not.
formats_reading() {
    local file
    for file in $formats; do
        "$1" -std=c99 -fsyntax-only $warnings $format_flags -DBAGS_NO_WRITER \
            -DBAGS_NO_VERIFY "$file" >"$out/said" 2>&1 ||
            grep -q 'an importer reads the entries' "$out/said" || {
            cat "$out/said"
            return 1
        }
    done
}

# bags.h with its implementation and any of them are one file, and so are all. The first
# depends on names alone, which are the same for each compiler.
formats_together() {
    local file one=$formats
    [ "$1" = gcc ] || one=
    for file in $one; do
        printf '#include "%s"\n' formats/formats.h "$root/$file" |
            cat "$dir/library.c" - >"$out/together.c"
        "$1" -std=c99 -fsyntax-only $warnings $format_flags "$out/together.c" || return 1
    done
    { cat "$dir/library.c"; printf "#include \"$root/%s\"\n" $formats; } >"$out/together.c"
    "$1" -std=c99 -fsyntax-only $warnings $format_flags "$out/together.c"
}

# A program may include each of these without the others.
each_header() {
    local header out_of=c flags=$only_c
    case $2 in *++*) out_of=c++ flags=$only_cxx ;; esac
    for header in $(sed -n "s/^headers='\(.*\)'/\1/p" formats/install.sh); do
        printf '#include "%s"\n' "$root/formats/$header" |
            "$1" -std="$2" -x $out_of -fsyntax-only $warnings $flags $format_flags - || return 1
    done
}

# C++ has stricter warnings, and knows which results must not be ignored.
strict_cxx() {
    local strict='-Wold-style-cast -Wuseless-cast -Wzero-as-null-pointer-constant -Werror' header
    case $1 in clang*) strict=${strict/-Wuseless-cast/} ;; esac
    for header in ../bags.h $(sed -n "s/^headers='\(.*\)'/\1/p" formats/install.sh); do
        printf '#include "%s"\n' "$root/formats/$header" >"$out/strict.cc"
        "$1" -std="$2" -fsyntax-only $warnings $strict $only_cxx $format_flags "$out/strict.cc" || return 1
    done
    printf '%s\n' '#include "bags.h"' 'void f(bags_buffer *b);' \
        'void f(bags_buffer *b) { bags_buffer_reserve(b, 1, NULL); }' >"$out/strict.cc"
    ! "$1" -std=c++17 -fsyntax-only -Werror -I"$root" "$out/strict.cc" 2>/dev/null &&
        "$1" -std=c++11 -fsyntax-only -Werror -I"$root" "$out/strict.cc"
}

# Every function of these headers has the word, and the program of the README uses none
# that may change.
experimental() {
    local header program=$out/promised.c
    for header in load/load storage/storage data/datasets import/import export/export; do
        ! sed 's,/\*.*\*/,,; /\/\*/,/\*\//d' "formats/$header.h" |
            grep -E '^[a-z].*\bbags?_[a-z0-9_]+\(' | grep -v -E '^(typedef|static|extern)' || return 1
    done
    awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' README.md |
        grep -v BAGS_IMPLEMENTATION >"$program"
    "$1" -std=c99 -I"$root" -fsyntax-only -Werror "-DBAGS_EXPERIMENTAL=__attribute__((deprecated))" \
        "$program" && echo 'void touch(void) { bags_reader_touch(NULL, NULL, 0, NULL, 0); }' >>"$program" &&
        ! "$1" -std=c99 -I"$root" -fsyntax-only -Werror \
            "-DBAGS_EXPERIMENTAL=__attribute__((deprecated))" "$program" 2>/dev/null
}

# The build and the README compile the implementation as C, too.
quick() {
    cell 'g++ -std=c++11 declarations' compile g++ c++11 declarations
    cell 'gcc -std=c99 symbols' public_only gcc c99
    cell 'g++ -std=c++17 strict warnings' strict_cxx g++ c++17
    cell 'gcc the word for declarations that may change' experimental gcc
    cell 'gcc -std=c99 symbols, static' nothing_public gcc c99
}

matrix() { # matrix C-COMPILER C++-COMPILER
    local standard how compiler
    for standard in c99 c11 c17 gnu99 gnu17 \
        c++11 c++14 c++17 c++20 gnu++11 gnu++14 gnu++17 gnu++20; do
        compiler=$1
        case $standard in *++*) compiler=$2 ;; esac
        for how in library declarations static; do
            cell "$compiler -std=$standard $how" compile "$compiler" $standard $how
        done
    done
    for standard in c99 gnu99 c11 gnu17 c++11 gnu++17; do
        compiler=$1
        case $standard in *++*) compiler=$2 ;; esac
        cell "$compiler -std=$standard twice" compile "$compiler" $standard twice
        cell "$compiler -std=$standard first without, then with the implementation" \
            compile_or_explain "$compiler" $standard later
        cell "$compiler -std=$standard behind stdio.h" \
            compile_or_explain "$compiler" $standard after_stdio
        cell "$compiler -std=$standard symbols" public_only "$compiler" $standard
        cell "$compiler -std=$standard symbols, static" nothing_public "$compiler" $standard
        cell "$compiler -std=$standard two files" separate "$compiler" $standard "$compiler" $standard
    done
    cell "$1 -std=c99 without local files" no_local "$1" c99
    cell "$2 -std=c++11 without local files" no_local "$2" c++11
    cell "$1 -std=c99 without inlining" all_emitted "$1" c99
    cell "$1 -std=c99 internal macros" macros_removed "$1"
    cell "$1 -std=c99 without the writer, verify or checksums" left_out "$1" c99
    cell "$1 -std=c99 formats without the writer" formats_reading "$1"
    cell "$1 -std=c99 each header of the formats" each_header "$1" c99
    cell "$2 -std=c++11 each header of the formats" each_header "$2" c++11
    for standard in c++11 c++17 c++20; do
        cell "$2 -std=$standard strict warnings" strict_cxx "$2" $standard
    done
    cell "$1 -std=c99 each format in one file with bags.h" formats_together "$1"
    cell "$1 library, $2 caller" separate "$1" c99 "$2" c++11
    cell "$2 library, $1 caller" separate "$2" c++11 "$1" c99
}

# One compiler on each core.
all() {
    local pair
    for pair in 'gcc g++' 'clang clang++'; do
        set -- $pair
        if command -v "$1" >/dev/null && command -v "$2" >/dev/null; then
            out=$dir/$1 log=$dir/$1.log
            mkdir "$out"
            matrix "$1" "$2" >"$dir/$1.cells" &
        else
            echo "skipped $pair: not installed" >"$dir/$1.cells"
        fi
    done
    wait
}

out=$dir log=$dir/log
case $what in
quick) quick >"$dir/quick.cells" ;;
all) all ;;
esac
cat "$dir"/*.cells
passed=$(cat "$dir"/*.cells | grep -c '^ok')
failed=$(cat "$dir"/*.cells | grep -c '^FAILED')
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
