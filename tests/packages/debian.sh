#!/usr/bin/env bash
# The Debian packages: built from the archive of a release, checked by lintian, unpacked and
# used. Nothing is installed.
. "$(dirname "$0")/common.sh"
export LC_ALL=C
tree=$dir/bags-$version
multiarch=$(dpkg-architecture -q DEB_HOST_MULTIARCH 2>/dev/null)
libdir=$dir/root/usr/lib/$multiarch

source_tree() {
    examples/packages/release.sh "$dir/dist" none && cp "$dir/dist/bags-$version.tar.gz" "$dir/bags_$version.orig.tar.gz" &&
        tar xzf "$dir/dist/bags-$version.tar.gz" -C "$dir" && tar xzf "$dir/dist/bags-packages-$version.tar.gz" -C "$dir" &&
        cp -r "$dir/bags-packages-$version/debian" "$tree" && cd "$tree" &&
        [ "$(dpkg-parsechangelog -S Version)" = "$version-1" ] && dpkg-source -b .
}

built() { cd "$tree" && dpkg-buildpackage -us -uc -b -j2 && ls "$dir"/*.deb; }

# No tag of a warning or an error, but that no bug of Debian asks for the package.
linted() {
    cd "$dir" && lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs ./*.dsc ./*.changes
}

unpacked() {
    local deb
    for deb in "$dir"/libbags-dev_*.deb "$dir"/bags-tools_*.deb "$dir"/python3-bags_*.deb; do
        dpkg-deb -x "$deb" "$dir/root" || return
    done
    find "$dir/root" -type f | sort
}

library() {
    export PKG_CONFIG_PATH=$libdir/pkgconfig
    # shellcheck disable=SC2046
    gcc "$packages/hello.c" -I"$dir/root/usr/include" -L"$libdir" $(pkg-config --libs bags) -o "$dir/hello" && greets "$dir/hello" &&
        printf '#include <bags/formats.h>\nint main(void) { return !bags_codec_jpeg.names; }\n' >"$dir/jpeg.c" &&
        gcc "$dir/jpeg.c" -I"$dir/root/usr/include" -L"$libdir" $(pkg-config --libs bags-jpeg) -o "$dir/jpeg" && "$dir/jpeg"
}

# Once installed, the command finds its formats by its own path.
command_works() {
    local bags=$dir/root/usr/bin/bags
    export LD_LIBRARY_PATH=$libdir/bags
    [ "$("$bags" --version | head -n 1 | grep -o "$version")" = "$version" ] &&
        readelf -d "$bags" | grep -q "R.*PATH.*/usr/lib/$multiarch/bags\]" &&
        printf '{"a": {"from": "%s"}}\n' "$(ls "$root"/tests/data/photos/*.jpg | head -n 1)" >"$dir/a.jsonl" &&
        "$bags" pack "$dir/a.jsonl" "$dir/photos" --spec a=jpeg && "$bags" verify --decode "$dir/photos"
}

python_works() {
    PYTHONPATH=$dir/root/usr/lib/python3/dist-packages /usr/bin/python3 -c "
import bags
reader = bags.DatasetReader('$dir/photos', bags.decoders)
print(reader[0]['a'].shape, bags.__file__)"
}

missing=$(dpkg-checkbuilddeps "$packages/debian/control" 2>&1) || missing=${missing:-dpkg-checkbuilddeps failed}
if ! command -v dpkg-buildpackage >/dev/null || ! command -v dh >/dev/null || [ -n "$missing" ]; then
    echo "skipped the Debian packages: debhelper, or what they need, not found: $missing"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
check 'Debian: the source package' source_tree
check 'Debian: dpkg-buildpackage' built
need lintian 'Debian: lintian' linted
check 'Debian: the files' unpacked
check 'Debian: programs with libbags-dev' library
check 'Debian: the command of bags-tools, and a format' command_works
check 'Debian: the package for Python' python_works
finish
