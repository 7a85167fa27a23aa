# Functions that the tests of packages share. Each test sources them.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
root=$PWD packages=$PWD/examples/packages
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
log=$dir/log
passed=0 failed=0 skipped=0
version=$(sed -n 's/^.define BAGS_VERSION "\(.*\)"/\1/p' bags.h)
unset DESTDIR PREFIX MAKEFLAGS MAKELEVEL
export PYTHONDONTWRITEBYTECODE=1

check() { # check TITLE COMMAND...
    local title=$1
    shift
    if ("$@") >"$log" 2>&1; then
        echo "ok      $title"
        passed=$((passed + 1))
    else
        echo "FAILED  $title"
        tail -n 40 "$log"
        failed=$((failed + 1))
    fi
}

# need 'PROGRAM...' TITLE COMMAND...: check, if all these programs exist.
need() {
    local program
    for program in $1; do
        if ! command -v "$program" >/dev/null; then
            echo "skipped $2: $program not found"
            skipped=$((skipped + 1))
            return
        fi
    done
    check "${@:2}"
}

# The program prints the version of the library that it was linked with.
greets() { [ "$("$@")" = "bags.h $version" ]; }

# block FILE LANGUAGE N: the N-th block of a language in a page.
block() {
    awk -v fence="\`\`\`$2" -v wanted="$3" '
        /^```/ { if (inside) inside = 0; else if ($0 == fence) inside = ++n == wanted; next }
        inside' "$1" | grep . || { echo "$1: no block $3 of $2"; return 1; }
}

finish() {
    echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
    [ $failed = 0 ]
}
