#!/usr/bin/env bash
# Count the instructions of the paths that must be short, and compare them with
# instructions.txt: a count that grows by more than 10 percent is a failure.
#
#     tests/bench/instructions.sh PROGRAM [write]
#
# With `write` the file is written anew. The counts are those of gcc 12 with the
# flags of the release flavour, on x86-64.
set -u
program=$1
expected=tests/bench/instructions.txt
times=1000
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

skip() {
    echo "skipped: instruction counts: $1"
    echo '0 passed, 0 failed'
    exit 0
}

wanted='gcc 12, optimized, x86-64'
compiler=$("$program" compiler)
[ "$compiler" = "$wanted" ] || skip "they are for $wanted; this is $compiler"
command -v valgrind >/dev/null || skip 'for want of valgrind'

# count OPERATION: instructions, of one of the many times.
count() {
    valgrind --tool=callgrind --toggle-collect="count_$1" \
        --callgrind-out-file=/dev/null "$program" "$1" "$dir" 2>&1 |
        awk -v times=$times '/Collected/ { printf "%.1f\n", $NF / times }'
}

"$program" prepare "$dir" || exit 1
passed=0 failed=0
for operation in $("$program" 2>/dev/null); do
    got=$(count "$operation")
    was=$(awk -v o="$operation" '$1 == o { print $2 }' $expected 2>/dev/null)
    echo "$operation $got" >>"$dir/counts"
    if [ "${2:-}" = write ]; then
        echo "$operation: $got, was ${was:-nothing}"
    elif awk -v got="$got" -v was="$was" \
        'BEGIN { exit !(got > 0 && was > 0 && got <= was * 1.1) }'; then
        echo "ok      $operation: $got instructions, of at most $was and 10 percent"
        passed=$((passed + 1))
    else
        echo "FAILED  $operation: ${got:-no} instructions; it was ${was:-not counted}"
        failed=$((failed + 1))
    fi
done
if [ "${2:-}" = write ]; then
    {
        echo '# Instructions a call; see instructions.sh. `make instructions` writes this.'
        cat "$dir/counts"
    } >$expected
    exit
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
