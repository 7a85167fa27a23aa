#!/usr/bin/env bash
# Run the demo as a user would, twice into one directory, and read what it wrote
# with an independent reader.
set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

check() { # check TITLE COMMAND...
    local title=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        echo "ok      $title"
        passed=$((passed + 1))
    else
        echo "FAILED  $title"
        cat "$dir/log"
        failed=$((failed + 1))
    fi
}

demo() { make demo OUT="$dir/a place" ${1:+PHOTOS="$1"}; }
is_png() { [ "$(head -c 4 "$1" | tail -c 3)" = PNG ]; }
strict() { /usr/bin/python3 tests/lib/bagref.py "$1" --strict --text; }
counts() { strict "$1" | grep -q "^count	$2\$"; }

# What `bags get` says of every datapoint is what the independent reader reads.
same_values() {
    /usr/bin/python3 - "$1" <<'END'
import json, subprocess, sys
sys.path.insert(0, 'tests/lib')
import bagref
want = bagref.read(sys.argv[1], signed=False)['data']
lines = subprocess.run(['build/bags', 'get', sys.argv[1], '0:1000'], check=True,
                       stdout=subprocess.PIPE).stdout.splitlines()
got = [json.loads(line) for line in lines]
assert len(got) == len(want), (len(got), len(want))

def same(shown, blob):
    if 'value' in blob:
        return shown == blob['value']
    return 'dtype' in shown or shown['bytes'] == blob['len']

for shown, row in zip(got, want):
    assert shown.keys() == row.keys()
    for key, blob in row.items():
        if 'list' not in blob:
            assert same(shown[key], blob), (key, shown[key], blob)
            continue
        assert len(shown[key]) == blob['list']
        for a, b in zip(shown[key], blob['items']):
            assert same(a, b), (key, a, b)
END
}

# A trainer that is killed in the middle of epochs and started again prints the losses and
# leaves the weights of one that ran through.
same_losses() {
    /usr/bin/python3 - "$1" "$dir" <<'END'
import subprocess, sys
balls, folder = sys.argv[1:]
train = ['build/release/examples/08_train', balls]
whole = subprocess.run(train + [folder + '/whole', '10'], check=True,
                       stdout=subprocess.PIPE, text=True).stdout.splitlines()
losses = [float(line.split()[-1]) for line in whole]
assert len(whole) == 40 and sum(losses[-4:]) < sum(losses[:4]) / 2, losses
inside = late = 0
for attempt in range(8):  # until it has not ended before it was killed
    if inside and not late:
        break
    killed, got, inside, late = f'{folder}/killed{attempt}', [], 0, 0
    for stop in 6, 13, 18, 25, 31, None:
        run = subprocess.Popen(train + [killed, '10'], stdout=subprocess.PIPE, text=True)
        for line in run.stdout:
            if line.endswith('\n') and got[-1:] != [line.rstrip()]:
                got.append(line.rstrip())
            if len(got) == stop:
                run.kill()
        code = run.wait()
        late += code == 0 and stop is not None
        assert code == 0 or code == -9 and stop is not None
        inside += len(got) % 4 != 0
    assert got == whole, (got, whole)
    assert open(folder + '/whole', 'rb').read() == open(killed, 'rb').read()
assert inside and not late
END
}

# The demo's own log, in which the line before the kill may be repeated, is complete.
complete_log() { [ "$(uniq "$1" | wc -l)" = 160 ]; }

mkdir "$dir/cats and dogs" "$dir/cats and dogs/cat"
cp tests/data/photos/flower.jpg "$dir/cats and dogs/cat"
check 'the demo runs' demo
check 'it runs again, with other photographs' demo "$dir/cats and dogs"
for name in balls photos; do
    check "the contact sheet of the $name is a PNG" is_png "$dir/a place/$name.png"
done
check 'an independent reader reads 32 episodes' counts "$dir/a place/balls" 32
check 'it reads the photographs' counts "$dir/a place/photos" 2
check 'it reads the other photograph' counts "$dir/a place-2/photos" 1
check 'the values of the episodes are the same' same_values "$dir/a place/balls"
check 'the values of the photographs are the same' same_values "$dir/a place/photos"
if [ -x build/release/examples/08_train ]; then
    check 'training continues after kill -9 with the same losses' \
        same_losses "$dir/a place/balls"
    check 'the training of the demo is complete' complete_log "$dir/a place/train.log"
    check 'its curve is a PNG' is_png "$dir/a place/train.png"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
