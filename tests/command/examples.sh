#!/usr/bin/env bash
# Run the examples that were built, and compare what they print with the comment
# at the end of their source.
#
#     tests/command/examples.sh build/release
#     RUN='qemu-s390x-static -L /usr/s390x-linux-gnu' tests/command/examples.sh build/s390x
set -u
# shellcheck disable=SC2206
run=(${RUN:-})
bin=$PWD/$1/examples
photos=$PWD/tests/data/photos
# Open MPI refuses root, and more ranks than cores, unless it is told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

# check NAME TITLE COMMAND...: the command prints what NAME.c says.
check() {
    local source=examples/$1.c title=$2
    shift 2
    sed -n '/^\/\* Output:$/,/^\*\/$/{//!p;}' "$source" >"$dir/expected"
    if "$@" >"$dir/stdout" 2>"$dir/stderr" &&
        diff --strip-trailing-cr "$dir/expected" "$dir/stdout"; then
        echo "ok      $title"
        passed=$((passed + 1))
    else
        echo "FAILED  $title"
        cat "$dir/stderr"
        failed=$((failed + 1))
    fi
}

# record COMMAND... PATH: interrupt it once it has flushed; the dataset must verify.
record() {
    "$@" &
    local job=$! path=${*: -1}
    until [ -s "$path/000000/imu.idx" ]; do
        kill -0 $job || return 1
        sleep 0.02
    done
    kill -INT $job
    wait $job && { [ ! -x "$bin/../bags" ] || "$bin/../bags" verify --decode "$path" >&2; }
}

for source in examples/[01]*.c; do
    name=$(basename "$source" .c)
    if [ ! -x "$bin/$name" ]; then
        echo "skipped $name: not built"
        continue
    fi
    case $name in
    06_images)
        check "$name" "$name" "${run[@]}" "$bin/$name" "$dir/$name" \
            "$photos/china.jpg" "$photos/flower.jpg"
        ;;
    08_train)
        balls=$PWD/build/release/balls
        if [ ! -x "$balls" ]; then
            echo "skipped $name: $balls was not built"
            continue
        fi
        "$balls" "$dir/balls" 0 1 8 >/dev/null
        check "$name" "$name" "${run[@]}" "$bin/$name" "$dir/balls" "$dir/$name" 4
        ;;
    09_tokens) check "$name" "$name" "${run[@]}" "$bin/$name" "$PWD/LICENSE" "$dir/$name" ;;
    10_recorder) check "$name" "$name" record "${run[@]}" "$bin/$name" "$dir/$name" ;;
    07_mpi)
        for ranks in 1 3 4; do
            check "$name" "$name with $ranks ranks" \
                mpirun -n $ranks "$bin/$name" "$dir/$name-$ranks"
        done
        ;;
    *) check "$name" "$name" "${run[@]}" "$bin/$name" "$dir/$name" ;;
    esac
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
