#!/usr/bin/env bash
# Run everything that `make test` has built and add up the counts. With `asan`
# or `tsan`: what is built in that flavour alone.
set -u
flavour=${1:-all}
logs=build/logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}

# part NAME COMMAND...: run it, count its tests, and show its output if one
# failed. A part says how many at its end, as "3 passed, 0 failed"; or it is a
# cmocka program; or it is one test.
part() {
    local name=$1 log=$logs/${1//\//_}.log code=0 good bad=0 skips=0 counts
    shift
    timeout 900 "$@" >"$log" 2>&1 </dev/null || code=$?
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [ -n "$counts" ]; then
        read -r good _ bad _ <<<"$counts"
    elif grep -q '^\[==========\]' "$log"; then
        good=$(grep -c '^\[       OK \]' "$log")
        # Each is named when it comes, and again at the end.
        skips=$(grep '^\[  SKIPPED \] [^0-9]' "$log" | sort -u | wc -l)
        # A test that crashed has begun and not ended.
        bad=$(($(grep -c '^\[ RUN      \]' "$log") - good - skips))
    else
        good=$((code == 0))
    fi
    if [ "$code" != 0 ] && [ "$bad" = 0 ]; then
        bad=1
    fi
    printf '%-28s %5d passed' "$name" "$good"
    [ "$skips" = 0 ] || printf ', %d skipped' "$skips"
    if [ "$bad" != 0 ]; then
        printf ', %d FAILED (exit code %d):\n' "$bad" "$code"
        grep -v -E '^(ok |\[ RUN  |\[       OK )' "$log" | tail -n 60
    else
        echo
        grep '^skipped' "$log"
    fi
    passed=$((passed + good)) failed=$((failed + bad))
    skipped=$((skipped + skips))
}

programs() { # programs FLAVOUR: its cmocka tests
    local program
    for program in build/"$1"/tests/test_*; do
        if [ -x "$program" ] && [ -f "tests/${program##*/}.c" ]; then
            part "$1/${program##*/}" "$program"
        fi
    done
}

replays() { # the fuzzers' corpora
    local source name
    for source in tests/fuzz_*.c; do
        name=$(basename "$source" .c)
        if [ -d "tests/corpus/${name#fuzz_}" ]; then
            part "asan/$name" "build/asan/tests/$name" "tests/corpus/${name#fuzz_}"
        fi
    done
}

asan() {
    programs asan
    replays
    part asan/examples tests/examples.sh build/asan
    command_tests asan
}

tsan() {
    if [ -x build/tsan/tests/test_threads ]; then
        part tsan/test_threads build/tsan/tests/test_threads
    fi
}

command_tests() { # command_tests FLAVOUR
    if [ -x "build/$1/bags" ]; then
        part "$1/command" tests/command.sh "build/$1/bags"
    else
        echo "skipped $1/command: build/$1/bags is not built"
    fi
}

all() {
    part header tests/header.sh
    programs release
    asan
    tsan
    command_tests release
    part release/examples tests/examples.sh build/release
    part readme tests/readme.py README.md
    part demo tests/demo.sh
}

$flavour
[ $skipped = 0 ] || echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
