#!/usr/bin/env bash
# The Python package of a release: the wheel, and a wheel that is built from the sdist
# without the repository. Nothing is installed.
. "$(dirname "$0")/common.sh"
python=/usr/bin/python3
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1

release() {
    examples/packages/release.sh "$dir/dist" python && ls "$dir/dist" &&
        cp "$dir"/dist/bags_h-"$version"-cp311-abi3-*.whl "$dir" && ls "$dir"/dist/bags[-_]h-"$version".tar.gz
}

# works NAME WHEEL: the wheel in a directory of its own.
works() {
    $python -m pip install --no-deps --target "$dir/$1" "$2" && cd "$dir" && PYTHONPATH=$dir/$1 $python -c "
import bags, importlib.metadata
assert bags.__file__.startswith('$dir/$1/'), bags.__file__
assert importlib.metadata.version('bags-h') == '$version'
with bags.DatasetWriter('$dir/$1 pets', {'label': 'int(4)', 'words': 'utf8[]'}, bags.encoders) as writer:
    writer.append({'label': 7, 'words': ['a', 'cat']})
with bags.DatasetReader('$dir/$1 pets', bags.decoders) as reader:
    assert reader[0]['words'] == ['a', 'cat'], reader[0]
assert bags.__version__ == '$version', bags.__version__" &&
        PYTHONPATH=$dir/$1 PATH=/nowhere $python -m bags --version | grep -x "bags $version" &&
        PYTHONPATH=$dir/$1 "$dir/$1/bin/bags" sql "$dir/$1 pets" 'SELECT label FROM data' | grep 7
}

wheel() { works wheel "$dir"/*.whl; }

from_sdist() {
    mkdir "$dir/sdist" && tar xzf "$dir"/dist/bags[-_]h-"$version".tar.gz -C "$dir/sdist" --strip-components 1 &&
        cd "$dir/sdist" && MAKEFLAGS=-j2 $python -m pip wheel --no-deps --no-build-isolation --wheel-dir "$dir/built" . &&
        works sdist_wheel "$dir"/built/*.whl
}

if ! $python -c 'import setuptools, build, pip, wheel'; then
    echo 'skipped the Python package: build, pip, setuptools or wheel not found'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
check 'Python: the wheel and the sdist of a release' release
check 'Python: the wheel' wheel
check 'Python: a wheel that is built from the sdist' from_sdist
finish
