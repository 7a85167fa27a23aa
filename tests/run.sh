#!/usr/bin/env bash
# Build and run tests, several parts at once, and add up the counts:
#
#     tests/run.sh test    what finds most faults in five minutes
#     tests/run.sh check   all other parts
#     tests/run.sh asan    every test program under AddressSanitizer and UBSan
#     tests/run.sh tsan    the tests of threads under ThreadSanitizer
#     tests/run.sh soak    for hours
set -u
cd "$(dirname "$0")/.." || exit 1
tier=${1:-test}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
logs=build/logs/$tier
# The last 64 KiB of stack frames of each size and 16 MiB of freed blocks are kept, which
# fit into a CPU's cache; shadow memory is reused, not mapped again.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:max_uar_stack_size_log=16:quarantine_size_mb=16:clear_shadow_mmap_threshold=1073741824}
export PYTHONDONTWRITEBYTECODE=1
unset MAKEFLAGS MAKELEVEL

# What a part needs is built first: FLAVOUR:all is what `make all` builds, FLAVOUR:x
# is build/FLAVOUR/tests/**/x. A part that needs a program that cannot be built is skipped.
# The longest come first.
parts() {
    cat <<'END'
# tier | part          | needs                     | command
test  | command/1      | release:all release:test_cuda | tests/command/command.sh build/release/bags 1/4
test  | command/2      | release:all release:test_cuda | tests/command/command.sh build/release/bags 2/4
test  | command/3      | release:all release:test_cuda | tests/command/command.sh build/release/bags 3/4
test  | command/4      | release:all release:test_cuda | tests/command/command.sh build/release/bags 4/4
test  | release/test_power | release:test_power    | build/release/tests/core/test_power 16
test  | sections       |                           | tests/core/sections.py
test  | includes       |                           | tests/formats/includes.py
test  | security       |                           | tests/security.py
test  | header         |                           | tests/core/header.sh quick
test  | kills          | release:all               | /usr/bin/python3 tests/command/kills.py build/release/bags 20
test  | instructions   | release:instructions      | tests/bench/instructions.sh build/release/tests/bench/instructions
test  | examples       | release:all               | tests/command/examples.sh build/release
test  | python         | release:python release:test_cuda | tests/python/run.sh release
test  | conformance    | release:all               | tests/conformance/all.sh build/release/bags quick
check | portability    | release:all               | env BAGS_QUICK=5 tests/portability.sh part
check | asan/command/1 | asan:all                  | tests/command/command.sh build/asan/bags 1/3
check | asan/command/2 | asan:all                  | tests/command/command.sh build/asan/bags 2/3
check | asan/command/3 | asan:all                  | tests/command/command.sh build/asan/bags 3/3
check | conformance    | release:all release:python | tests/conformance/all.sh build/release/bags
check | asan/conformance | asan:all                | tests/conformance/run.py build/asan/bags get {} : --base64
check | model          | release:test_power        | tests/model/check.py build/release/tests/core/test_power
check | oss-fuzz       |                           | tests/fuzz/oss-fuzz/test.sh
check | demo           | release:all               | tests/command/demo.sh
check | readme         | release:all               | tests/command/readme.py
check | header         |                           | tests/core/header.sh
check | release/test_power | release:test_power    | build/release/tests/core/test_power
check | asan/test_power | asan:test_power         | build/asan/tests/core/test_power 16
check | clusters       | release:all               | tests/command/clusters.py build/release/bags
check | viewer         | release:all               | tests/viewer/viewer.sh build/release/bags
check | install        | release:all               | tests/command/install.sh
check | packages/rust  |                           | tests/packages/rust.sh
check | packages/go    |                           | tests/packages/go.sh
check | packages/npm   | release:all               | tests/packages/npm.sh build/release/bags
check | packages/debian |                          | tests/packages/debian.sh
check | packages/python | release:python          | tests/packages/python.sh
check | packages/build | release:all               | tests/packages/build.sh
check | http           | release:all release:bench_http | tests/formats/storage/http.sh build/release
check | lint           |                           | tests/lint.sh quick
check | pillow         |                           | tests/formats/load/pillow.py
check | footprint      |                           | tests/bench/footprint.py README.md tests/bench/README.md
check | benchmark      | release:speed             | build/release/tests/bench/speed --small --folder build/bench-small
check | asan/test_pairs | asan:test_pairs         | env BAGS_QUICK=5 build/asan/tests/core/test_pairs
check | asan/test_faults | asan:test_faults       | env BAGS_QUICK=5 build/asan/tests/core/test_faults
check | asan/examples  | asan:all                  | tests/command/examples.sh build/asan
check | python         | release:python release:test_cuda | env BAGS_LONG=1 tests/python/run.sh release
check | asan/python    | asan:python               | tests/python/run.sh asan
check | tsan/python    | tsan:python               | tests/python/run.sh tsan
check | cxx/examples   | cxx:all                   | tests/command/examples.sh build/cxx
soak  | command        | release:all               | tests/command/command.sh build/release/bags
soak  | kills          | release:all               | /usr/bin/python3 tests/command/kills.py build/release/bags 500
END
}

# Every test_*.c of tests/ and tests/fuzz/fuzz_*.c states in its first lines in which
# flavours a tier runs it. Usually `test` runs it under the sanitizers and `check` without
# them; if it takes long under the sanitizers, the other way round.
programs() {
    local source name words lines flavours tier
    for source in tests/core/test_{pairs,faults,hooks,live,system,threads}.c tests/*/test_*.c tests/formats/*/test_*.c tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        words=
        case $name in fuzz_*) words=tests/fuzz/corpus/${name#fuzz_} ;; esac
        lines=$(sed -n 's|^// flavours: ||p' "$source")
        [ -n "$lines" ] || echo "test | $source states no flavours | | false"
        while IFS=: read -r tier flavours; do
            for flavour in $flavours; do
                echo "${tier// /} | $flavour/$name | $flavour:$name | build/$flavour/${source%.c} $words"
            done
        done <<<"${lines//;/$'\n'}"
    done | awk '!seen[$0]++'
}

# The parts of this tier.
chosen() {
    { parts; programs; } | case $tier in
    asan | tsan) grep "| $tier/" | grep -v '^soak' ;;
    *) grep "^$tier " ;;
    esac
}

build() {
    local needs flavour names formats
    needs=$(chosen | cut -d'|' -f3)
    for flavour in release asan tsan cxx; do
        names=$(grep -o "\<$flavour:[^ ]*" <<<"$needs" | sed 's/.*://')
        formats=()
        # No test of threads imports or asks with SQL.
        [ $flavour != tsan ] || formats=(FORMATS='jpeg png mp4 msgpack zstd http')
        [ -z "$names" ] ||
            make -j"$jobs" FLAVOUR=$flavour $(grep -x -e all -e python <<<"$names" | sort -u) \
                "${formats[@]}" programs NAMES="$(echo $names)" || return
    done
}

# From what `times` prints: of a shell and of its children, user and system.
processor_time() {
    tr 'ms ' '  \n' | awk '{ sum += 60 * $1 + $2 } END { printf "%d", sum }'
}

# run_part NAME COMMAND...: a part prints how many tests it had at its end, as "3 passed,
# 0 failed"; or it is a cmocka program; or it is one test.
run_part() {
    local name=$1 log=$logs/${1//\//_} scratch code=0 good bad=0 skips=0 counts
    shift
    SECONDS=0
    case $tier:$name in test:* | *:asan/* | *:tsan/* | *:portability | *pairs) scratch=$memory ;; *) scratch=$disk ;; esac
    TMPDIR=$scratch timeout 3600 "$@" >"$log.log" 2>&1 </dev/null || code=$?
    times >"$log.times"
    took="$SECONDS s ($(processor_time <"$log.times") s of the processor)"
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log.log" | tail -n 1)
    if [ -n "$counts" ]; then
        read -r good _ bad _ skips _ <<<"${counts//,/} 0"
    elif grep -q '^\[==========\]' "$log.log"; then
        good=$(grep -c '^\[       OK \]' "$log.log")
        # Each is named when it comes, and again at the end.
        skips=$(grep '^\[  SKIPPED \] [^0-9]' "$log.log" | sort -u | wc -l)
        # A test that crashed has started and not ended.
        bad=$(($(grep -c '^\[ RUN      \]' "$log.log") - good - skips))
    else
        good=$((code == 0))
    fi
    # A nonzero exit code is a failure, whatever the counts are.
    if [ "$bad" -lt 0 ] || { [ "$code" != 0 ] && [ "$bad" = 0 ]; }; then
        bad=1
    fi
    {
        printf '%-28s %5d passed, %s' "$name" "$good" "$took"
        [ "$skips" = 0 ] || printf ', %d skipped' "$skips"
        if [ "$bad" != 0 ]; then
            printf ', %d FAILED (exit code %d):\n' "$bad" "$code"
            grep -v -E '^(ok |\[ RUN  |\[       OK )' "$log.log" | tail -n 60
        else
            echo
            grep '^skipped' "$log.log"
            [ "$tier" != soak ] || grep -v '^\[' "$log.log"
        fi
    } >"$log.report"
    cat "$log.report"
    echo "$good $bad $skips" >"$log.count"
    printf '%-28s %s\n' "$name" "$took" >"$log.took"
}

# missing COMMAND...: the first program of these words that was not built.
missing() {
    local word
    for word; do
        case $word in build/*/bags | build/*/tests/*) [ -x "$word" ] || { echo "$word"; return; } ;; esac
    done
}

run() {
    local name command gone
    while IFS='|' read -r _ name _ command; do
        read -r name <<<"$name"
        read -ra command <<<"$command"
        gone=$(missing "${command[@]}")
        if [ -n "$gone" ]; then
            echo "skipped $name: $gone was not built"
            echo '0 0 1' >"$logs/${name//\//_}.count"
            continue
        fi
        # Four more than there are cores: many tests wait for disks, timers and servers.
        while [ "$(jobs -rp | wc -l)" -gt $((jobs + 3)) ]; do
            wait -n
        done
        run_part "$name" "${command[@]}" &
    done < <(chosen)
    wait
}

rm -rf "$logs"
mkdir -p "$logs"
# `test`, and what runs under sanitizers, in 32 bits or in pairs of processes, has its
# files in memory, if there are 4 GiB from which programs run: calls of a file system are
# most of its time. The others have a disk.
disk=${TMPDIR:-/tmp}
memory=$disk
free=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
if [ "${free:-0}" -gt 4194304 ] && shm=$(mktemp -d /dev/shm/bags-tests-XXXXXX); then
    trap 'rm -rf "$shm"' EXIT
    chmod 755 "$shm" # test_system has children that are another user
    cp /bin/true "$shm" && "$shm/true" && memory=$shm
fi
case $tier in
# One of 11 points, and of the cases of a test every third, which depends on the commit.
test) export BAGS_QUICK=11 BAGS_THIRD=$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % 3)) ;;
soak) export BAGS_SOAK=1 ;;
esac
case $tier in
check | soak) tests/deps.sh check || exit ;;
esac
if ! build; then
    echo '0 passed, 1 failed'
    exit 1
fi
building=$SECONDS
times >"$logs/building.times"
run
# Who sees only the end of a log sees what failed.
for report in $(grep -l 'FAILED (exit code' "$logs"/*.report); do
    head -n 1 "$report"
    sed 1d "$report" | grep -E 'FAILED|ERROR|not ok|[Ee]rror|Sanitizer' | tail -n 8
done
echo 'The slowest parts:'
{ printf '%-28s %s\n' building "$building s ($(processor_time <"$logs/building.times") s of the processor)"
  cat "$logs"/*.took; } | sort -k 2 -n -r | head -n 11
cat "$logs"/*.count | awk -v parts="$(chosen | wc -l)" '
    { passed += $1; failed += $2; skipped += $3 }
    END {
        failed += parts - NR # those that left no count
        printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
        exit failed > 0 || passed == 0
    }'
