#!/usr/bin/env bash
# All that compilers and analysers have to say of bags.h, the formats and the
# examples: one line for each of them. With `quick`: what takes seconds; with
# `analysers` or `compilers`: these alone.
set -u
unset MAKEFLAGS MAKELEVEL
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

# What is not so, by file, check and line or what is said: an array that is transposed has
# dimensions; a buffer that was reserved is there, and so are the bytes of a blob that was read; a list of names ends with a space; what
# is put into an array whose index gcc does not know (it then has no name) is not lost.
# And in one place of msgpack.c gcc gives up; the cell's title says so.
mistaken="numpy.c|core.uninitialized.Assign|from += strides[i];
numpy.c|core.NullDereference|**out = header.npy;
archive.c|core.NullDereference|return p[0] == 'P' && p[1] == 'K' && p[2] == a && p[3] == b;
archive.c|core.NullDereference|found.name[found.name_size - 1] == '/');
archive.c|core.NullDereference|char type = (char)p[156];
msgpack.c|core.NullDereference|if (item->type == MSGPACK_OBJECT_MAP)
msgpack.c|analyzer-too-complex|whole = whole && !point && *at != 'e';
bags.h|core.NullDereference|if (BAGI_UNLIKELY(count > 15 || *blob.data != (0x90 | count))) {
bags.h|analyzer-null-dereference|for (const char *at = dtype->also; *at && at[1]; at = strchr(at + 1, ' ')) {
bags.h|analyzer-malloc-leak|leak of 'field.name'
bags.h|analyzer-malloc-leak|leak of 'field.type'
bags.h|analyzer-malloc-leak|leak of '<unknown>'"

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
read -r -d '' -a flags < <(make -s print-formats | sed -n '1s/ -I\. / /p')
formats=$(make -s print-formats | grep -o 'formats/[a-z0-9_/]*\.o' | sed 's/\.o$/.c/')
examples=$(ls examples/*.c examples/bags/*.c examples/demo/*.c | grep -v _mpi.c)
pkg-config --exists json-c && read -r -d '' -a json < <(pkg-config --cflags json-c)

sources() { # sources COMPILER STANDARD FILES FLAG...
    local file failed=0
    for file in $3; do
        "$1" -std="$2" $warnings $only_c "${@:4}" "${flags[@]}" "${json[@]-}" -I. -c "$file" \
            -o /dev/null || failed=1
    done
    return $failed
}

everything() { # everything CLANG LANGUAGE STANDARD FLAG... FILE
    local code=0
    "$1" $everything -fsyntax-only -x "$2" -std="$3" "${@:4}" || code=1
    return $code
}

# Warnings in the libraries' headers are not ours; curl's macros have the names of the
# functions that they call.
everything_formats() {
    local file except failed=0
    for file in $formats; do
        except=
        case $file in */request.c | */sources.c | */transfer.c) except=-Wno-disabled-macro-expansion ;; esac
        everything "$1" c c99 $everything_formats $except \
            "${flags[@]/#-I\/usr/-isystem/usr}" -I. "$file" || failed=1
    done
    return $failed
}

# Analysers do not look into a function that has "..." behind its parameters, and
# must be told that bags_fail returns its code, and that bagi_print returns a text or
# fails with an error. This is done in a copy.
told='-Dbags_fail(err,code,...)=((bags_fail)(err,code,__VA_ARGS__),(code))'
print='-Dbagi_print(memory,err,...)=((void)snprintf(NULL,0,__VA_ARGS__),bagi_copy_text(memory,"",0,err))'
tell() {
    mkdir -p "$dir/told"
    cp -r formats "$dir/told"
    sed -E 's/^(BAGS_API .*)\bbags_fail\(/\1(bags_fail)(/
        s/^(static char \*)bagi_print\(/\1(bagi_print)(/
        s/^(static .*)\b(bagi_(alloc|alloc_raw|free|copy_text|free_text))\(/\1(\2)(/' bags.h >"$dir/told/bags.h"
}

# What is not among the mistaken findings.
# unmistaken FILE LINE CHECK SAID
unmistaken() {
    local text
    text=$(sed -n "$2{s/^ *//;p}" "$1")
    ! grep -q -x -F -e "${1##*/}|$3|$text" -e "${1##*/}|$3|$4" <<<"$mistaken"
}

# gcc's findings but the mistaken ones; that it gave up is one, and it may do ten times its
# usual work before it does. It says as well where it has seen enough paths and takes no
# more of them: that is usual.
fanalyzer() { # fanalyzer GCC FILE FLAG...
    local out=$dir/fanalyzer.$BASHPID found=0 at line said check
    LC_ALL=C "$1" -std=c99 -fanalyzer -Wanalyzer-too-complex -fdiagnostics-plain-output \
        --param analyzer-bb-explosion-factor=50 "${flags[@]}" -I"$dir/told" "$told" "$print" "${@:3}" \
        -x c -c "$2" -o /dev/null 2>"$out" || {
        cat "$out"
        return 1
    }
    while IFS=: read -r at line _ _ said; do
        check=${said##*[-W}
        said=${said% [*}
        said=${said% [CWE*}
        unmistaken "$at" "$line" "${check%]}" "${said# }" || continue
        found=1
        echo "$at:$line:$said [${check%]}]"
    done < <(grep -E ': warning: .*\[-Wanalyzer-' "$out" |
        grep -v ': terminating analysis for this program point: ')
    return $found
}

# All of bags.h at once is too much for gcc's analyser: it begins at the end of the file,
# spends what paths it may follow on opening a dataset, and says nothing of the rest. So
# it is given a part of the implementation at a time, in a copy in which the functions
# of the other parts are declared only; lines keep their numbers. Not optimised, or a
# dereference of NULL is gone before it is looked for. The hook for memory, of which
# nobody can know what it does, stands for the C library's.
part='FILENAME !~ /bags\.h$/ || /^ \* >>platform$/ { inside = 1 }
    { sub(/always_inline/, "unused") }
    body { body = !/^}/; print ""; next }
    /^[A-Za-z]/ { open = 1 }
    open && inside && /\) \{$/ && (NR <= from || NR > to) { sub(/ \{$/, ";"); body = 1 }
    /[;{]$/ || /^$/ { open = 0 }
    { print }'
memory=('-Dbagi_alloc(memory,size,err)=calloc(1,size)'
    '-Dbagi_alloc_raw(memory,size,err)=malloc(size)'
    '-Dbagi_free(memory,data,size)=free(data)'
    '-Dbagi_copy_text(memory,text,size,err)=((char *)calloc(1,(size)+1))'
    '-Dbagi_free_text(memory,text)=free(text)' -DBAGS_IMPLEMENTATION)

fanalyzer_parts() { # fanalyzer_parts GCC FILE FLAG...
    local copy from lines part_size=600 failed=0
    case $2 in *archive.c | *msgpack.c | *numpy.c) part_size=150 ;; esac
    copy=$(mktemp -d "$dir/parts.XXXXXX")/${2##*/}
    lines=$(wc -l <"$2")
    for ((from = 0; from < lines; from += part_size)); do
        awk -v from=$from -v to=$((from + part_size)) "$part" "$2" >"$copy"
        fanalyzer "$1" "$copy" -O0 "${@:3}" || failed=1
    done
    return $failed
}

# An analyser that finds nothing may have looked at nothing: these it must find, a leak
# and a NULL in the first and in the last room of the implementation.
fanalyzer_works() { # fanalyzer_works GCC
    local fault found
    mkdir "$dir/fault"
    fault=$(printf '%s\n' 'static int bagi_fault_NR(int n) {' \
        '    void *lost = bagi_alloc(NULL, 4, NULL);' '    int *none = NULL;' \
        '    if (n > 0)' '        none = &n;' '    return *none + (lost != NULL);' '}')
    awk -v fault="$fault" '/^ \* >>(bytes|checksum)$/ { room = 1 }
        { print }
        room && /\*\/$/ { room = 0; gsub("fault_[NR0-9]*", "fault_" NR, fault); print fault }' \
        "$dir/told/bags.h" >"$dir/fault/bags.h"
    found=$(fanalyzer_parts "$1" "$dir/fault/bags.h" "${memory[@]}")
    echo "$found"
    [ "$(grep -c "leak of 'lost'" <<<"$found")" = 2 ] &&
        [ "$(grep -c "dereference of NULL 'none'" <<<"$found")" = 2 ]
}

# clang-tidy's findings but the mistaken ones. A file that does not compile is one.
tidy() { # tidy FILE FLAG...
    local file=$1 found=0 at line said check
    (cd "$dir/told" && clang-tidy --checks="$checks" --quiet "$file" -- -std=c99 "$told" "$print" \
        "${flags[@]}" -I. "${@:2}") >"$dir/tidy.${file##*/}" 2>"$dir/tidy.${file##*/}.err"
    grep -E '^/[^ ]*: (warning|error): ' "$dir/tidy.${file##*/}" >"$dir/found.${file##*/}"
    while IFS=: read -r at line _ _ said; do
        check=${said##*[}
        check=${check#clang-analyzer-}
        unmistaken "$at" "$line" "${check%]}" "$said" || continue
        found=1
        echo "$at:$line:$said"
    done <"$dir/found.${file##*/}"
    return $found
}

# An analyser that finds nothing may have looked at nothing: this it must find.
tidy_works() {
    printf '%s\n' '#include "bags.h"' 'int fault(int n);' 'int fault(int n) {' \
        '    return n / (int)bags_fail(NULL, BAGS_OK, "x"); }' >"$dir/told/fault.c"
    ! tidy fault.c >"$dir/found.planted" && grep -q DivideZero "$dir/found.planted"
}

check_c() { cppcheck -q --enable=warning,portability,performance --inline-suppr --error-exitcode=1 "$@"; }

# Of clang, -Weverything has all of these warnings.
quick() {
    cell 'words: no construction becomes more frequent' tests/words.py
    have gcc && cell 'gcc -std=c99 bags.h' header_c gcc c99 -O2
    have gcc && cell 'gcc -std=c99 formats' sources gcc c99 "$formats" -O1
    cell 'cuda_ptx.h is compiled from cuda_kernels.h' tests/formats/load/cuda_ptx.sh check
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
        cell 'gcc-12 -fanalyzer bags.h, in parts' \
            fanalyzer_parts gcc-12 "$dir/told/bags.h" "${memory[@]}"
        cell 'gcc-12 -fanalyzer finds planted faults' fanalyzer_works gcc-12
        for file in $formats; do
            case $file in
            */msgpack.c)
                cell "gcc-12 -fanalyzer $file, in parts, one of them not to its end" \
                    fanalyzer_parts gcc-12 "$dir/told/$file" "-I$dir/told/${file%/*}" ;;
            */archive.c | */numpy.c)
                cell "gcc-12 -fanalyzer $file, in parts" \
                    fanalyzer_parts gcc-12 "$dir/told/$file" "-I$dir/told/${file%/*}" ;;
            *) cell "gcc-12 -fanalyzer $file" fanalyzer gcc-12 "$dir/told/$file" -O1 ;;
            esac
        done
    fi
    if have cppcheck; then
        cell 'cppcheck bags.h' check_c --std=c99 --language=c -DBAGS_IMPLEMENTATION \
            -UBAGI_IMPLEMENTED -U_WIN32 bags.h
        cell 'cppcheck formats' check_c --std=c99 '-DBAGI_PRINTF(format,arguments)=' $formats
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
