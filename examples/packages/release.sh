#!/usr/bin/env bash
# Write the files of a release in a clone: release.sh DIRECTORY [PACKAGES]
#
#     bags-VERSION.tar.gz     the tracked files; the same bytes for the same commit
#     bags.h                  the header
#     bags_h-*.whl, bags-h-VERSION.tar.gz
#                             the Python package: a wheel for this computer, and an sdist
#     bags-reader-VERSION.tgz the npm package
#     bags-packages-VERSION.tar.gz
#                             meson/, vcpkg/ and debian/ with the version and the
#                             hash of the archive
#     SHA256SUMS              of these files
#
# URL is the address below which users will find the archive. If the tools for a package are
# missing, it is skipped, and a line says so.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=examples/packages
mkdir -p "$1"
python=${PYTHON:-/usr/bin/python3}
version=$(sed -n 's/^.define BAGS_VERSION "\(.*\)"/\1/p' bags.h)
url=${URL:-https://example.org/bags}
[ -n "$version" ] || { echo 'bags.h: BAGS_VERSION not found' >&2; exit 1; }
git rev-parse --verify -q HEAD >/dev/null || { echo 'make release: not a clone of the repository' >&2; exit 1; }
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PYTHONDONTWRITEBYTECODE=1
changed=$(git status --porcelain --untracked-files=no | wc -l)
[ "$changed" = 0 ] || echo "release: $changed files differ from the commit, and are in the archive as they are"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
out=$stage/out
mkdir "$out"

# archive NAME PREFIX: make a tar of the files whose names are on stdin.
archive() {
    tar --no-recursion --null -T - --sort=name --format=ustar --owner=0 --group=0 \
        --numeric-owner --mode=u+rw,go+r,go-w,a+X --mtime="@$SOURCE_DATE_EPOCH" \
        --transform="flags=r;s,^,$2/," -c | gzip -n -9 >"$out/$1"
}

# fill FILE.in: fill in the values of this release.
fill() {
    sed "s|@VERSION@|$version|g; s|@URL@|$url|g; s|@SHA256@|$sha256|g; s|@SHA512@|$sha512|g
        s|@LIBRARIES@|$libraries|g; s|@DATE@|$(date -R -u -d "@$SOURCE_DATE_EPOCH")|g" "$1"
}

source_archive() {
    git ls-files -z | archive "bags-$version.tar.gz" "bags-$version"
    cp bags.h "$out"
    sha256=$(sha256sum "$out/bags-$version.tar.gz" | cut -d' ' -f1)
    sha512=$(sha512sum "$out/bags-$version.tar.gz" | cut -d' ' -f1)
}

# Copy the recipe directories, and fill in the .in files.
recipes() {
    local name file
    libraries=$(sed -n 's|^PKG_\([a-z0-9_/]*\) := .*|bags-\1|p' formats/packages.mk | tr / - | sort | tr '\n' ',' |
        sed 's/,$//; s/,/, /g; s/^/bags, /')
    mkdir "$stage/packages"
    for name in meson vcpkg debian; do
        (cd $packages && git ls-files "$name") | while IFS= read -r file; do
            mkdir -p "$stage/packages/$(dirname "$file")"
            case $file in
            *.in) fill "$packages/$file" >"$stage/packages/${file%.in}" ;;
            *) cp -p "$packages/$file" "$stage/packages/$file" ;;
            esac
        done
    done
    (cd "$stage/packages" && find . -type f -printf '%P\0' |
        archive "bags-packages-$version.tar.gz" "bags-packages-$version")
}

python_package() {
    if ! "$python" -c 'import build' 2>/dev/null; then
        echo 'skipped the Python package: the module build not found (python3-build)'
        return
    fi
    "$python" -m build --no-isolation --sdist --outdir "$out" examples/python
    "$python" -m build --no-isolation --wheel --outdir "$out" examples/python
}

npm_package() {
    make -s npm
    if [ ! -f build/npm/package.json ] || ! command -v npm >/dev/null; then
        echo 'skipped the npm package: it was not built, or npm not found'
        return
    fi
    (cd build/npm && npm pack --silent --offline --pack-destination "$out")
}

source_archive
recipes
for package in ${2:-python npm}; do
    case $package in
    python | npm)
        "${package}_package" >"$stage/log" 2>&1 || { cat "$stage/log"; exit 1; }
        grep '^skipped' "$stage/log" || : ;;
    esac
done
(cd "$out" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
mv -f "$out"/* "$1"
echo "release: written to $1:"
sed 's/.* /  /' "$1/SHA256SUMS"
