#!/usr/bin/env bash
# The demo: workers write a dataset, then commands examine it. Every command is printed
# before it runs, so that it can be repeated.
#
#     examples/demo/demo.sh PHOTOS OUT
#
# OUT is created; if it already exists, OUT-2, OUT-3, ... is created instead.
set -eu
photos=$1 out=$2
bags=build/bags
balls=build/release/balls
trainer=build/release/examples/08_train
curve=build/release/curve

if [ ! -x "$bags" ]; then
    echo 'demo: the bags command was not built; it needs json-c (make deps)' >&2
    exit 1
fi
mkdir -p "$(dirname "$out")"
for ((i = 2; ; i++)); do
    mkdir "$out" 2>/dev/null && break
    if [ ! -e "$out" ]; then
        mkdir "$out" # says why
    fi
    out=${2%/}-$i
done

say() {
    echo
    printf '# %s\n' "$@"
}

# Quote a word for the shell.
word() {
    case $1 in
    *[!a-zA-Z0-9_./-]*) printf "'%s'" "${1//\'/\'\\\'\'}" ;;
    *) printf %s "$1" ;;
    esac
}

run() {
    local part
    printf '$'
    for part; do
        printf ' %s' "$(word "$part")"
    done
    echo
    "$@"
}

say 'Four processes simulate bouncing balls and write one dataset. Worker 1 of 4' \
    'writes the shards 1, 5, 9, ...: nobody shares a file, nobody waits.'
printf '$ for w in 0 1 2 3; do %s %s $w 4 32 & done; wait\n' \
    "$balls" "$(word "$out/balls")"
workers=()
for w in 0 1 2 3; do
    "$balls" "$out/balls" $w 4 32 &
    workers+=($!)
done
for pid in "${workers[@]}"; do
    wait "$pid"
done

say 'A shard is a directory with one Bag a field: refs.bag says which blobs belong' \
    'to a datapoint, spec.json what they are.'
run ls "$out/balls"
printf '$ wc -c %s/*\n' "$(word "$out/balls/000000")"
wc -c "$out/balls/000000/"*

say 'All shards are one dataset. It knows its length without being read.'
run $bags info "$out/balls"

say 'An episode has pictures, a clip, the state of the balls at every frame, what' \
    'the agent did, a caption and metadata. Read what you need: of episode 0 the' \
    'caption, the metadata and the first two states. The pictures stay on disk.'
run $bags get "$out/balls" 0 caption meta 'state[0:2]'

say 'Of a sequence, any range: frames 3 to 6 of episode 5, with one contiguous' \
    'read, and written to files.'
run $bags get "$out/balls" 5 'frames[3:7]'
run $bags get "$out/balls" 5 'frames[3:7]' --out "$out/frames"

sheet() { # sheet DATASET PICTURE [--field F]: draw a sheet, using the png format
    if grep -q WITH_PNG build/release/flags; then
        run $bags sheet "$@"
    else
        echo 'skipped: no contact sheet without libpng'
    fi
}

say 'A contact sheet: the first frames, as a PNG.'
sheet "$out/balls" "$out/balls.png" --field frames

say 'Photographs, packed as they are, with their paths; class folders would be labels.'
run $bags images "$photos" "$out/photos"
run $bags get "$out/photos" 0
sheet "$out/photos" "$out/photos.png"

# train LOG COUNT: train until the log has COUNT lines, then kill the trainer.
train() {
    "$trainer" "$out/balls" "$out/train.state" 40 >>"$1" &
    pid=$!
    while [ "$(wc -l <"$1")" -lt "$2" ] && kill -0 $pid 2>/dev/null; do
        sleep 0.01
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
}

if [ -x $trainer ]; then
    say 'Train a small network from it, to see where the balls are. The trainer is killed' \
        'in the middle, and started again: it continues with the next batch.'
    printf '$ %s %s %s 40 >>%s & sleep 1; kill -KILL $!\n' "$trainer" \
        "$(word "$out/balls")" "$(word "$out/train.state")" "$(word "$out/train.log")"
    : >"$out/train.log"
    train "$out/train.log" 60
    run tail -n 2 "$out/train.log"
    printf '$ %s %s %s 40 >>%s\n' "$trainer" \
        "$(word "$out/balls")" "$(word "$out/train.state")" "$(word "$out/train.log")"
    "$trainer" "$out/balls" "$out/train.state" 40 >>"$out/train.log"
    run tail -n 2 "$out/train.log"
    if grep -q WITH_PNG build/release/flags; then
        printf '$ %s %s <%s\n' $curve "$(word "$out/train.png")" "$(word "$out/train.log")"
        $curve "$out/train.png" <"$out/train.log"
    fi
else
    echo 'skipped: no training without libjpeg'
fi

say 'Check every file.'
run $bags verify "$out/balls"
run $bags verify "$out/photos"

make=
[ -f build/viewer.html ] || make='make viewer && '
say 'See it in a browser, with:' "    $make$bags view $(word "$out/photos")"

program="import bags, sys
with bags.DatasetReader(sys.argv[1]) as reader:
    row = reader[0, {'caption': True, 'state': range(2), 'frames': range(1)}]
    print(len(reader), row['caption'], row['state'][1].shape, row['frames'][0].dtype)
for batch in bags.Loader(sys.argv[1], 16, fields=['caption']):
    print(len(batch['caption']), end=' ')"
if make -s python >/dev/null 2>&1 && [ -e build/python/bags/_core.abi3.so ] &&
    /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
    say 'The same from Python: the package of make python reads it with the same C.'
    printf '$ PYTHONPATH=build/python python3 -c "%s" %s\n' "$program" "$(word "$out/balls")"
    PYTHONPATH=build/python /usr/bin/python3 -c "$program" "$out/balls"
    echo
else
    echo 'skipped: no Python without its headers (python3-dev) and NumPy'
fi

say "All of it is in $out. Look at $out/balls.png and $out/train.png."
