#!/bin/sh
# Install what the build and the tests need and this machine lacks:
#
#     tests/deps.sh              what `make demo` and `make test` need
#     tests/deps.sh check        also what `make check` needs
#     tests/deps.sh portability  also what `make portability` and `make lint` need
#     tests/deps.sh bench        only PyTorch, with which `make bench` compares the loader
#
# Each line of `needs` is: a command that succeeds if it is installed | the packages
# that contain it, of which the first that the system knows is installed (names differ
# between Debian and Ubuntu releases).
set -u

needs() {
    if [ "$wanted" = bench ]; then
        cat <<'END'
/usr/bin/python3 -c "import torch"      | python3-torch
/usr/bin/python3 -c "import torchvision" | python3-torchvision
END
        return
    fi
    cat <<'END'
command -v pkg-config                   | pkg-config
[ -x /usr/bin/python3 ]                  | python3
command -v gcc                          | gcc
command -v g++                          | g++
sanitizer gcc address,undefined         | gcc
sanitizer gcc thread                    | gcc
pkg-config --exists cmocka              | libcmocka-dev
pkg-config --exists json-c              | libjson-c-dev
pkg-config --exists libjpeg             | libjpeg-dev
pkg-config --exists libpng              | libpng-dev
pkg-config --exists libwebp             | libwebp-dev
pkg-config --exists libzip              | libzip-dev
pkg-config --exists libcurl             | libcurl4-openssl-dev
pkg-config --exists libarchive          | libarchive-dev
pkg-config --exists libzstd             | libzstd-dev
pkg-config --exists libcrypto           | libssl-dev
pkg-config --exists libxxhash           | libxxhash-dev
pkg-config --exists zlib                | zlib1g-dev
pkg-config --exists msgpack-c || pkg-config --exists msgpack | libmsgpack-c-dev libmsgpack-dev
pkg-config --exists libavformat         | libavformat-dev
pkg-config --exists libavcodec          | libavcodec-dev
pkg-config --exists libswscale          | libswscale-dev
pkg-config --exists libavutil           | libavutil-dev
pkg-config --exists blosc               | libblosc-dev
pkg-config --exists liblz4              | liblz4-dev
pkg-config --exists hdf5                | libhdf5-dev
pkg-config --exists sqlite3             | libsqlite3-dev
pkg-config --exists libmicrohttpd       | libmicrohttpd-dev
[ -f "$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] | python3-dev
command -v mpicc                        | libopenmpi-dev
command -v mpirun                       | openmpi-bin
command -v valgrind                     | valgrind
command -v djpeg                        | libjpeg-turbo-progs
command -v pngcheck                     | pngcheck
/usr/bin/python3 -c "import PIL"        | python3-pil
/usr/bin/python3 -c "import zstandard"  | python3-zstandard
/usr/bin/python3 -c "import msgpack"    | python3-msgpack
/usr/bin/python3 -c "import lmdb"       | python3-lmdb
/usr/bin/python3 -c "import numpy"      | python3-numpy
command -v ffmpeg                       | ffmpeg
command -v zip                          | zip
command -v unzip                        | unzip
command -v bsdtar                       | libarchive-tools
command -v 7z                           | p7zip-full
END
    [ "$wanted" != test ] || return 0
    cat <<'END'
command -v clang                        | clang
sanitizer clang address,undefined,fuzzer-no-link | libclang-rt-dev libclang-rt-@-dev libclang-common-@-dev
command -v strace                       | strace
command -v spin                         | spin
command -v nginx                        | nginx-light
[ -f /usr/lib/nginx/modules/ngx_http_lua_module.so ] | libnginx-mod-http-lua
pkg-config --exists lmdb                | liblmdb-dev
command -v wasm-ld || command -v wasm-ld-14 | lld
[ -d /usr/include/wasm32-wasi ]         | wasi-libc
ls /usr/lib/llvm-*/lib/clang/*/lib/wasi/libclang_rt.builtins-wasm32.a | libclang-rt-@-dev-wasm32 libclang-rt-dev-wasm32
command -v chromium                     | chromium
command -v node                         | nodejs
/usr/bin/python3 -c "import setuptools" | python3-setuptools
/usr/bin/python3 -c "import wheel"      | python3-wheel
/usr/bin/python3 -m pip --version       | python3-pip
/usr/bin/python3 -c "import torch"      | python3-torch
/usr/bin/python3 -c "import torchvision" | python3-torchvision
/usr/bin/python3 -c "import zstandard"  | python3-zstandard
command -v parallel                     | parallel
command -v sbatch                       | slurm-wlm
command -v munged || [ -x /usr/sbin/munged ] | munge
/usr/bin/python3 -c "import distributed" | python3-distributed
pkg-config --exists liburing            | liburing-dev
command -v cmake                        | cmake
command -v meson                        | meson
command -v cargo                        | cargo
command -v rustc                        | rustc
command -v rustdoc                      | rust-doc rustc
command -v go                           | golang-go
command -v npm                          | npm
command -v tsc                          | node-typescript
command -v dpkg-buildpackage             | dpkg-dev
command -v dh                           | debhelper
command -v dh_python3                   | dh-python
command -v lintian                      | lintian
/usr/bin/python3 -c "import build"      | python3-build
command -v ninja                        | ninja-build
command -v mandoc                       | mandoc
command -v zsh                          | zsh
command -v man                          | man-db
to_m32                                  | gcc-%-multilib gcc-12-multilib
[ -f /usr/share/mingw-w64/include/windows.h ] | mingw-w64-x86-64-dev
cross s390x-linux-gnu                   | gcc-%-s390x-linux-gnu gcc-12-s390x-linux-gnu
[ -f /usr/s390x-linux-gnu/include/stdio.h ] | libc6-dev-s390x-cross
cross aarch64-linux-gnu                 | gcc-%-aarch64-linux-gnu gcc-12-aarch64-linux-gnu
[ -f /usr/aarch64-linux-gnu/include/stdio.h ] | libc6-dev-arm64-cross
command -v qemu-s390x-static            | qemu-user-static
END
    [ "$wanted" != check ] || return 0
    cat <<'END'
command -v gcc-11                       | gcc-11
command -v g++-11                       | g++-11
command -v clang-19                     | clang-19
command -v clang-tidy                   | clang-tidy
command -v cppcheck                     | cppcheck
command -v musl-gcc                     | musl-tools
command -v tcc                          | tcc
cross arm-linux-gnueabihf               | gcc-%-arm-linux-gnueabihf gcc-12-arm-linux-gnueabihf
[ -f /usr/arm-linux-gnueabihf/include/stdio.h ] | libc6-dev-armhf-cross
command -v x86_64-w64-mingw32-gcc       | gcc-mingw-w64-x86-64-posix
command -v x86_64-w64-mingw32-g++       | g++-mingw-w64-x86-64-posix
command -v wine                         | wine
[ -e /usr/lib/x86_64-linux-gnu/wine ]   | wine64
END
}

# Cross compilers conflict with gcc-multilib, but not with gcc-12-multilib.
cross() {
    command -v "$1-gcc" || command -v "$1-gcc-$(gcc -dumpversion)" ||
        command -v "$1-gcc-12"
}

to_m32() {
    dir=$(mktemp -d) && echo 'int main(void) { return 0; }' >"$dir/t.c" &&
        gcc -m32 -fsanitize=undefined "$dir/t.c" -o "$dir/t"
    set -- $?
    rm -rf "$dir"
    return "$1"
}

sanitizer() {
    dir=$(mktemp -d) && echo 'int main(void) { return 0; }' >"$dir/t.c" &&
        "$1" -fsanitize="$2" "$dir/t.c" -o "$dir/t" >/dev/null 2>&1
    set -- $?
    rm -rf "$dir"
    return "$1"
}

# The lines of needs whose check fails.
missing() {
    needs | while IFS= read -r line; do
        eval "${line%| *}" >/dev/null 2>&1 </dev/null || printf '%s\n' "$line"
    done
}

# The first package of a line that apt knows. @ stands for clang's version, % for
# gcc's.
choose() {
    version=$(apt-cache depends clang 2>/dev/null |
        sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
    for package in $(echo "${1##*| }" | sed "s/@/$version/g; s/%/$(gcc -dumpversion)/g"); do
        if apt-cache show "$package" 2>/dev/null | grep -q '^Package:'; then
            echo "$package"
            return
        fi
    done
    echo "no package known for:${1##*|}" >&2
}

# harmless PACKAGE...: those that apt-get can install, removing no other that is there.
harmless() {
    for package; do
        if ! simulated=$(apt-get -s install --no-install-recommends "$package" 2>/dev/null); then
            echo "deps: $package is left out: it conflicts with what is installed" >&2
            continue
        fi
        removed=$(echo "$simulated" | sed -n 's/^Remv \([^ ]*\).*/ \1/p' | tr -d '\n')
        if [ -z "$removed" ]; then
            echo "$package"
        else
            echo "deps: $package is left out: it would remove$removed" >&2
        fi
    done
}

install() {
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -q || return
    packages=$(echo "$1" | while IFS= read -r line; do choose "$line"; done |
        sort -u)
    # shellcheck disable=SC2086
    packages=$(harmless $packages)
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086
    $sudo apt-get install -q -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 $packages
}

# The tests for other systems compile cmocka and json-c themselves, and the viewer
# contains the decoder of libzstd.
sources() { [ "$wanted" = test ] || [ "$wanted" = bench ] || tests/portability.sh sources; }

wanted=${1:-test}
lines=$(missing)
if [ -z "$lines" ]; then
    echo 'deps: everything is installed'
    sources
    exit 0
fi

sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
fi
if ! command -v apt-get >/dev/null ||
    { [ -n "$sudo" ] && ! command -v sudo >/dev/null; }; then
    echo 'deps: please install these (Debian names; the first known one a line):'
    echo "$lines" | sed 's/.*| /    /' | sort -u
    echo 'deps: what is missing is left out of the build'
    exit 0
fi

install "$lines" || exit 1
sources
lines=$(missing)
[ -z "$lines" ] && exit 0
echo 'deps: still missing, and left out of the build:'
echo "$lines" | sed 's/ *|.*//; s/^/    /'
