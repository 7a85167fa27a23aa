#!/usr/bin/env bash
# Run the tests of the Python package of a flavour: tests/python/run.sh release [MODULE...]
set -eu
cd "$(dirname "$0")/../.."
package=build/python
if [ "$1" != release ]; then
    package=build/$1/python
    export BAGS_QUICK=1 # the long tests count memory
    # Python itself leaks; the runtime must come first.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 PYTHONMALLOC=malloc
    export LD_PRELOAD="$(gcc -print-file-name=lib$1.so) $(gcc -print-file-name=libstdc++.so)"
fi
shift
exec /usr/bin/python3 tests/python/run.py "$package" "$@"
