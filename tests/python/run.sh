#!/usr/bin/env bash
# Run the tests of the Python package of a flavour: tests/python/run.sh release [MODULE...]
# Under ThreadSanitizer: those of threads, unless modules are listed.
set -eu
cd "$(dirname "$0")/../.."
flavour=$1
shift
package=build/python
if [ "$flavour" != release ]; then
    package=build/$flavour/python
    export BAGS_QUICK=1 # the long tests count memory
    # Python itself leaks; the runtime must come first.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 PYTHONMALLOC=malloc
    export LD_PRELOAD="$(gcc -print-file-name="lib$flavour.so") $(gcc -print-file-name=libstdc++.so)"
fi
[ "$flavour" != tsan ] || [ $# -gt 0 ] || set -- concurrency
exec /usr/bin/python3 tests/python/run.py "$package" "$@"
