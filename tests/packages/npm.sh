#!/usr/bin/env bash
# The npm package: what npm packs, in node and in Chromium; types; a program as the page shows.
#
#     tests/packages/npm.sh build/release/bags
bags=$(realpath "$1")
. "$(dirname "$0")/common.sh"
make npm || exit 1
if [ ! -f build/npm/package.json ] || ! command -v node >/dev/null; then
    echo 'skipped npm: the package was not built, or node not found'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
export npm_config_cache=$dir/cache npm_config_update_notifier=false
package=$dir/program/node_modules/bags-reader

# The files that npm packs, unpacked where a program would have them.
packed() {
    mkdir -p "$package" && (cd build/npm && npm pack --silent --offline --pack-destination "$dir") &&
        tar xzf "$dir/bags-reader-$version.tgz" -C "$package" --strip-components 1 &&
        diff <(cd "$package" && ls) <(printf '%s\n' LICENSE README.md bags.wasm files.mjs index.d.ts index.mjs node.mjs package.json reader.mjs | LC_ALL=C sort)
}
copied() { mkdir -p "$package" && cp build/npm/* "$package"; }

data() {
    /usr/bin/python3 - "$dir" "$bags" <<'END_PYTHON' && cp -r "$dir/pets" "$dir/damaged" && cp -r "$dir/pets" "$dir/gap" && rm -r "$dir/gap/000001"
import base64, json, pathlib, subprocess, sys
out, bags = pathlib.Path(sys.argv[1]), sys.argv[2]
rows = ''.join(json.dumps({
    'big': 2**53 + 1 if i == 7 else i, 'label': i % 10, 'name': f'pet {i}', 'photo': {'base64': base64.b64encode(bytes([i % 256, 0])).decode()},
    'score': i / 2, 'shape': [i, -i], 'words': ['a', f'cat {i}'] if i % 2 else []}) + '\n' for i in range(600))
spec = 'big=u64,label=int(4),name=utf8,photo=bytes,score=array(float32),shape=array(int16,2),words=utf8[]'
run = lambda *words, **more: subprocess.run([bags, *words], check=True, **more)
run('pack', '-', str(out / 'pets'), '--spec', spec, '--shard-length', '200', input=rows, text=True)
run('zip', str(out / 'pets'), str(out / 'pets.zip'))
run('index', str(out / 'pets'), 'label')
run('index', str(out / 'pets'), 'name')
END_PYTHON
    printf x | dd of="$dir/damaged/000001/photo.bag" bs=1 seek=20 conv=notrunc
}

program() {
    block "$packages/npm/README.md" js 1 | sed "s|https://example.org/pets|$dir/pets|" >"$dir/program/main.mjs" &&
        (cd "$dir/program" && node main.mjs >"$dir/said") && cat "$dir/said" && grep -q '^600 ' "$dir/said" && grep -q "label: 0, words: \[\]" "$dir/said"
}

# With the types of the package, and an error where a program is wrong.
types() {
    cp "$packages/npm/example.ts" "$dir/program/example.mts" && cd "$dir/program" &&
        local options='--noEmit --strict --target es2022 --module nodenext --moduleResolution nodenext --lib es2022,dom,dom.iterable' &&
        tsc $options example.mts && echo 'import {open} from "bags-reader"; open("x").then(d => d.lenght);' >wrong.mts &&
        ! tsc $options wrong.mts
}

if command -v npm >/dev/null; then
    check 'npm: the files that npm packs' packed
else
    echo 'skipped npm pack: npm not found'
    copied
fi
check 'npm: a dataset' data
node tests/packages/npm.mjs "$package" "$dir" $(command -v chromium >/dev/null && echo page) | tee "$dir/npm.log"
read -r good _ bad _ < <(tail -n 1 "$dir/npm.log")
passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-1}))
check 'npm: the conformance set' tests/conformance/run.py node tests/packages/reader.mjs "$package"
check 'npm: the program of its page' program
need tsc 'npm: TypeScript accepts an example with the types' types
finish
