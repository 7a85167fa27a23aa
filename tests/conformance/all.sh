#!/usr/bin/env bash
# The readers of this repository over the conformance set, and readers that must fail:
#
#     tests/conformance/all.sh build/release/bags [quick]
#
# `quick` runs only the command and bagref.py. Readers that were not built are skipped. Packages
# of other languages run run.py themselves.
set -u
cd "$(dirname "$0")/../.." || exit 1
bags=$1 tier=${2:-all}
passed=0 failed=0 skipped=0

# reader NAME COMMAND...
reader() {
    local name=$1 log
    shift
    if log=$(tests/conformance/run.py "$@"); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        echo "$log"
    fi
}

# refuses NAME COMMAND...: it is no reader, and must not pass.
refuses() {
    local name=$1
    shift
    if tests/conformance/run.py --only ds- "$@" >/dev/null; then
        failed=$((failed + 1))
        echo "FAILED $name passed"
    else
        passed=$((passed + 1))
    fi
}

reader 'the command' "$bags" get '{}' : --base64
[ "$tier" = quick ] || make viewer >/dev/null 2>&1
reader bagref.py /usr/bin/python3 tests/lib/bagref.py --lines
if [ "$tier" = quick ]; then
    :
elif [ -f build/python/bags/_core.abi3.so ]; then
    reader 'the Python package' env PYTHONPATH=build/python /usr/bin/python3 tests/conformance/reader.py
else
    echo 'skipped the Python package: it was not built'
    skipped=$((skipped + 1))
fi
if [ "$tier" = quick ]; then
    :
elif [ -f build/viewer.wasm ] && command -v node >/dev/null; then
    reader "the viewer's reader" node tests/conformance/reader.mjs build/viewer.wasm
else
    echo "skipped the viewer's reader: it was not built, or node not found"
    skipped=$((skipped + 1))
fi
refuses 'a program that accepts all' true
refuses 'a program that refuses all' false
refuses 'a program that crashes' bash -c 'kill -SEGV $$'
refuses 'a program that does not exist' build/no/such/program
refuses 'a reader that prints values' "$bags" get '{}' :
# The set is what make.py makes.
before=$(find tests/data/conformance -type f ! -name README.md | sort | xargs sha256sum)
tests/conformance/make.py >/dev/null
if [ "$before" = "$(find tests/data/conformance -type f ! -name README.md | sort | xargs sha256sum)" ]; then
    passed=$((passed + 1))
else
    echo 'FAILED: tests/data/conformance is not what make.py makes'
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
