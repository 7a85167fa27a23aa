#!/usr/bin/env bash
# The viewer: its reader under node with the golden data, and its page in Chromium.
#
#     tests/viewer/viewer.sh build/release/bags
set -u
cd "$(dirname "$0")/../.." || exit 1
make viewer || exit 1
if [ ! -f build/viewer.html ] || ! command -v node >/dev/null; then
    echo 'skipped the viewer: it was not built, or node not found'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
space=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
[ "${space:-0}" -le 1048576 ] || export TMPDIR=/dev/shm
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
part() {
    "$@" | tee "$dir/log"
    read -r good _ bad _ < <(tail -n 1 "$dir/log")
    passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-1}))
}
part node tests/viewer/golden.mjs build/viewer.wasm
part node tests/viewer/corpus.mjs build/viewer.wasm
part node tests/viewer/values.mjs build/viewer.wasm
if command -v chromium >/dev/null; then
    mkdir "$dir/live" && part node tests/viewer/live.mjs build/viewer.html "$dir/live" "$1"
    if /usr/bin/python3 tests/viewer/data.py "$1" "$dir"; then
        part node tests/viewer/page.mjs build/viewer.html "$dir" "$1"
    else
        failed=$((failed + 1))
    fi
else
    echo 'skipped the page: chromium not found'
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
