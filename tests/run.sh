#!/usr/bin/env bash
# Run everything that `make test` has built, as many parts at once as there are
# cores, and add up the counts. With `asan` or `tsan`: what is built in that
# flavour alone.
set -u
flavour=${1:-all}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
logs=build/logs
parts=0
rm -rf "$logs"
mkdir -p "$logs"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}

# part NAME COMMAND...: run it when a core is free.
part() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    parts=$((parts + 1))
    run_part "$@" &
}

# A part says how many tests it had at its end, as "3 passed, 0 failed"; or it
# is a cmocka program; or it is one test.
run_part() {
    local name=$1 log=$logs/${1//\//_} code=0 good bad=0 skips=0 counts
    shift
    timeout 1800 "$@" >"$log.log" 2>&1 </dev/null || code=$?
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log.log" | tail -n 1)
    if [ -n "$counts" ]; then
        read -r good _ bad _ <<<"$counts"
    elif grep -q '^\[==========\]' "$log.log"; then
        good=$(grep -c '^\[       OK \]' "$log.log")
        # Each is named when it comes, and again at the end.
        skips=$(grep '^\[  SKIPPED \] [^0-9]' "$log.log" | sort -u | wc -l)
        # A test that crashed has begun and not ended.
        bad=$(($(grep -c '^\[ RUN      \]' "$log.log") - good - skips))
    else
        good=$((code == 0))
    fi
    # Whatever the counts say, an exit code is a failure; and no failure may
    # make up for another.
    if [ "$bad" -lt 0 ] || { [ "$code" != 0 ] && [ "$bad" = 0 ]; }; then
        bad=1
    fi
    {
        printf '%-28s %5d passed' "$name" "$good"
        [ "$skips" = 0 ] || printf ', %d skipped' "$skips"
        if [ "$bad" != 0 ]; then
            printf ', %d FAILED (exit code %d):\n' "$bad" "$code"
            grep -v -E '^(ok |\[ RUN  |\[       OK )' "$log.log" | tail -n 60
        else
            echo
            grep '^skipped' "$log.log"
            [ -z "${BAGS_SOAK:-}" ] || grep -v '^\[' "$log.log"
        fi
    } >"$log.report"
    cat "$log.report"
    echo "$good $bad $skips" >"$log.count"
}

# programs FLAVOUR: its cmocka tests
programs() {
    local program
    for program in build/"$1"/tests/test_*; do
        if [ -x "$program" ] && [ -f "tests/${program##*/}.c" ]; then
            part "$1/${program##*/}" "$program"
        fi
    done
}

# The fuzzers' corpora.
replays() {
    local source name
    for source in tests/fuzz_*.c; do
        name=$(basename "$source" .c)
        if [ -d "tests/corpus/${name#fuzz_}" ] && [ -x "build/asan/tests/$name" ]; then
            part "asan/$name" "build/asan/tests/$name" "tests/corpus/${name#fuzz_}"
        fi
    done
}

# command_tests FLAVOUR
command_tests() {
    if [ -x "build/$1/bags" ]; then
        part "$1/command" tests/command.sh "build/$1/bags"
    else
        echo "skipped $1/command: build/$1/bags is not built"
    fi
}

asan() {
    command_tests asan
    programs asan
    replays
    part asan/examples tests/examples.sh build/asan
}

tsan() {
    if [ -x build/tsan/tests/test_threads ]; then
        part tsan/test_threads build/tsan/tests/test_threads
    fi
}

# kills PROGRAM COUNT
kills() {
    if [ -x "$1" ]; then
        part kills python3 tests/kills.py "$1" "$2"
    else
        echo "skipped kills: $1 is not built"
    fi
}

# Whole what the others do in part, with what they print of it.
soak() {
    export BAGS_SOAK=1
    kills build/release/bags 500
    for flavour in release asan; do
        if [ -x "build/$flavour/tests/test_system" ]; then
            part "$flavour/test_system" "build/$flavour/tests/test_system"
        fi
    done
}

# What takes longest comes first.
all() {
    part header tests/header.sh
    asan
    command_tests release
    kills build/release/bags 20
    programs release
    tsan
    part benchmark build/release/tests/bench/speed --small --folder build/bench-small
    part instructions tests/bench/instructions.sh build/release/tests/bench/instructions
    part release/examples tests/examples.sh build/release
    part readme tests/readme.py README.md
    part demo tests/demo.sh
    part install tests/install.sh
    part portability tests/portability.sh part
    part warnings tests/warnings.sh quick
    part footprint tests/footprint.py README.md
}

$flavour
wait
cat "$logs"/*.count | awk -v parts="$parts" '
    { passed += $1; failed += $2; skipped += $3 }
    END {
        failed += parts - NR # those that left no count
        if (skipped) print skipped " skipped"
        printf "%d passed, %d failed\n", passed, failed
        exit failed > 0 || passed == 0
    }'
