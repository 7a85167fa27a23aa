#!/bin/sh
# What `make install` and `make uninstall` run. The environment variables PREFIX, LIBDIR
# and DESTDIR set where.
#
#     formats/install.sh install BUILD COMPILER LIBS COMMAND 'FORMAT:OBJECT...:PACKAGE...'...
#     formats/install.sh uninstall FORMAT...
#
# libbags.a contains bags.h and the formats that need no library, and needs only libc and
# its libm. Each other format is a library of its own, libbags-jpeg.a, so that a
# distribution can package it apart from those that need FFmpeg. BUILD contains the objects.
# There is no shared library for programs. The command opens its own, libbags-jpeg.so.0.9,
# which calls the bags.h of the command.
set -eu

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

what=$1
shift
headers='formats.h codecs.h load/load.h storage/storage.h data/datasets.h import/import.h export/export.h'
prefix=$(absolute "${PREFIX:=${prefix:-/usr/local}}") libdir=$(absolute "${LIBDIR:-$PREFIX/lib}")
to=${DESTDIR:-}$prefix to_lib=${DESTDIR:-}$libdir
version=$(sed -n 's/^.define BAGS_VERSION "\(.*\)"/\1/p' bags.h)
abi=${version%.*}

# The API and the functions that its inline ones call, as a version script.
exports=$(sed 's/^{/{ global:/; s/ };$/ local: *; };/' formats/exports)

# library NAME PACKAGES OBJECT...: static, for pkg-config and, if it is a format, for the
# command.
library() {
    name=$1 packages=$2 requires=
    shift 2
    [ "$name" = bags ] || requires="bags = $version $packages"
    rm -f "$lib/lib$name.a"
    ar rcsD "$lib/lib$name.a" "$@"
    sed "s|@PREFIX@|$prefix|; s|@NAME@|$name|; s|@VERSION@|$version|
        s|@LIBDIR@|$(echo "$libdir" | sed "s|^$prefix/|\${prefix}/|")|
        s|@REQUIRES@|$requires|" \
        formats/bags.pc.in >"$lib/$name.pc"
    install -m 644 "$lib/lib$name.a" "$to_lib"
    install -m 644 "$lib/$name.pc" "$to_lib/pkgconfig"
    echo "installed lib$name"
    [ "$name" != bags ] && [ -n "$command" ] || return 0
    echo "$exports" >"$lib/exports"
    # shellcheck disable=SC2086
    $compiler -shared -Wl,-soname,"lib$name.so.$abi",--version-script,"$lib/exports" \
        -o "$lib/lib$name.so.$abi" "$@" $libs
    install -m 755 "$lib/lib$name.so.$abi" "$to_lib"
}

# For find_package: the headers are found from where the file is, if both are below PREFIX.
cmake_files() {
    include=$prefix/include components=
    case $libdir in
    "$prefix"/*) include=$(echo "${libdir#"$prefix"/}/cmake/bags" | sed 's|[^/][^/]*|..|g')/include ;;
    esac
    for format; do
        case $format in *:) continue ;; esac
        name=$(library_name "${format%%:*}")
        components="$components${components:+;}${name#bags-}:${format##*:}"
    done
    install -d "$to_lib/cmake/bags"
    for file in bagsConfig.cmake bagsConfigVersion.cmake; do
        sed "s|@VERSION@|$version|g; s|@INCLUDEDIR@|$include|; s|@LIBDIR@|../..|; s|@COMPONENTS@|$components|" \
            "formats/$file.in" >"$lib/$file"
        install -m 644 "$lib/$file" "$to_lib/cmake/bags"
    done
}

install_all() {
    build=$1 compiler=$2 libs=$3 command=$4 lib=$1/lib
    shift 4
    mkdir -p "$lib"
    install -d "$to/include/bags" "$to_lib/pkgconfig"
    install -m 644 bags.h "$to/include"
    for header in $headers; do
        install -m 644 "formats/$header" "$to/include/bags"
    done
    core="$build/pic/bags.o $build/formats/import/import.o $build/formats/export/export.o"
    for format; do
        case $format in *:) format=${format%:} core="$core ${format#*:}" ;; esac
    done
    # shellcheck disable=SC2086
    library bags '' $core
    for format; do
        case $format in *:) continue ;; esac
        packages=${format##*:} format=${format%:*}
        # shellcheck disable=SC2086
        library "$(library_name "${format%%:*}")" "$packages" ${format#*:}
    done
    cmake_files "$@"
    [ -n "$command" ] || return 0
    install -d "$to/bin" "$to/share/man/man1"
    install -m 755 "$command" "$to/bin"
    # A command that was built for another system does not run here.
    if "$command" help man >"$build/bags.1"; then
        install -m 644 "$build/bags.1" "$to/share/man/man1"
    else
        echo 'skipped bags.1 and completion: bags does not run here'
        return
    fi
    install -d "$to/share/bash-completion/completions" "$to/share/zsh/site-functions"
    "$command" help bash >"$build/completion"
    install -m 644 "$build/completion" "$to/share/bash-completion/completions/bags"
    "$command" help zsh >"$build/completion"
    install -m 644 "$build/completion" "$to/share/zsh/site-functions/_bags"
    echo 'installed bags, the command'
}

# libbags-import-zarr from import/zarr.
library_name() { echo "bags-$1" | tr / -; }

uninstall() {
    for name in bags "$@"; do
        [ "$name" = bags ] || name=$(library_name "$name")
        rm -f "$to_lib/lib$name.a" "$to_lib/lib$name.so.$abi" "$to_lib/pkgconfig/$name.pc"
    done
    for header in $headers; do
        rm -f "$to/include/bags/${header##*/}"
    done
    rm -f "$to/include/bags.h" "$to/bin/bags" "$to/share/man/man1/bags.1" \
        "$to/share/bash-completion/completions/bags" "$to/share/zsh/site-functions/_bags"
    rm -f "$to_lib/cmake/bags/bagsConfig.cmake" "$to_lib/cmake/bags/bagsConfigVersion.cmake"
    rmdir "$to/include/bags" "$to_lib/cmake/bags" "$to_lib/cmake" 2>/dev/null || :
}

case $what in
install) install_all "$@" ;;
uninstall) uninstall "$@" ;;
esac
