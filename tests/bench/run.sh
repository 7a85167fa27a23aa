#!/usr/bin/env bash
# Build and run a benchmark: bench, benchformats, instructions or footprint, which are
# also the goals of make that run this.
set -eu
unset MAKEFLAGS MAKELEVEL
bin=build/release/tests/bench

build() {
    make -j"${JOBS:-$(getconf _NPROCESSORS_ONLN)}" FLAVOUR=release programs NAMES="$*"
}

case $1 in
bench)
    build speed bench_loader bench_gulp
    # shellcheck disable=SC2086
    $bin/speed --json build/bench.json ${BENCH:-}
    tests/bench/chart.py build/bench.json build/bench.svg
    $bin/bench_gulp
    if [ -x $bin/bench_loader ] && tests/deps.sh bench &&
        /usr/bin/python3 -c 'import torch, torchvision' 2>/dev/null; then
        code=0
        tests/bench/peer_torch.py $bin/bench_loader build/loader.json || code=$?
        tests/bench/chart.py build/loader.json build/loader.svg
        [ $code = 0 ] || exit $code
    else
        echo 'skipped the loader next to others: torch or torchvision not found'
    fi
    echo build/*.json build/*.svg
    ;;
benchformats)
    # shellcheck disable=SC2046
    build $(basename -a -s .c tests/bench/bench_*.c)
    for program in $bin/bench_*; do
        if [ -x "$program" ] && [ -f "tests/bench/${program##*/}.c" ]; then
            echo "$program"
            $program
        fi
    done
    ;;
instructions)
    build instructions
    tests/bench/instructions.sh $bin/instructions write
    ;;
footprint) tests/bench/footprint.py ;;
esac
