#!/usr/bin/env bash
# The program of five lines in CMake and Meson, in each way that the page shows; the archive
# of a release; the recipes of package managers.
. "$(dirname "$0")/common.sh"

release() {
    URL=file://$dir/dist examples/packages/release.sh "$dir/dist" none &&
        (cd "$dir/dist" && sha256sum -c --quiet SHA256SUMS && ls) &&
        cmp bags.h "$dir/dist/bags.h" && tar xzf "$dir/dist/bags-$version.tar.gz" -C "$dir" &&
        tar xzf "$dir/dist/bags-packages-$version.tar.gz" -C "$dir" &&
        ! grep -r '@[A-Z0-9]*@' "$dir/bags-packages-$version"
}

same_files() {
    diff <(cd "$dir/bags-$version" && find . -type f | sort) <(git ls-files -z | tr '\0' '\n' | sed 's,^,./,' | sort)
}

# From a copy in another place, with other times and modes.
same_archive() {
    local copy="$dir/copy"
    cp -r "$dir/bags-$version" "$copy" && chmod -R go-rwx "$copy" &&
        find "$copy" -exec touch -d '2001-02-03 04:05' {} + && cd "$copy" && git init -q && git add -A -f &&
        git -c user.name=a -c user.email=a@b commit -q -m copy &&
        SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct) URL=file://$dir/dist \
            examples/packages/release.sh "$dir/other dist" none &&
        cmp "$dir/dist/SHA256SUMS" "$dir/other dist/SHA256SUMS" &&
        cmp "$dir/dist/bags-$version.tar.gz" "$dir/other dist/bags-$version.tar.gz" && git branch -M main
}

# project NAME N [SED]: a directory with the program, and block N of a page.
project() {
    mkdir "$dir/$1" && cp "$packages/hello.c" "$dir/$1/main.c" &&
        block "${6:-$packages/README.md}" "${4:-cmake}" "$2" | sed "${3:-}" >"$dir/$1/${5:-CMakeLists.txt}"
}

cmake_works() { # cmake_works NAME [OPTION...]
    local to=$dir/$1
    shift
    cmake -S "$to" -B "$to/build" "$@" && cmake --build "$to/build" -j2 && greets "$to/build/program"
}

with_git() {
    project git 1 "s|https://example.org/bags.git|file://$dir/copy|; s|bags::bags|bags::bags bags::png|" &&
        cmake_works git
}

with_archive() {
    project archive 1 "s|GIT_REPOSITORY.*|URL $dir/dist/bags-$version.tar.gz URL_HASH SHA256=$(sha256sum <"$dir/dist/bags-$version.tar.gz" | cut -d' ' -f1)|" &&
        cmake_works archive
}

with_readme() { project readme 1 '' cmake CMakeLists.txt README.md && ln -s "$dir/bags-$version" "$dir/readme/bags" && cmake_works readme; }
with_directory() { project directory 2 && ln -s "$dir/bags-$version" "$dir/directory/bags" && cmake_works directory; }

format_is_required() {
    ! cmake -S "$packages/cmake" -B "$dir/required" -DBAGS_FORMATS='png;gif' >"$dir/said" 2>&1 &&
        grep 'no format "gif"' "$dir/said"
    ! PKG_CONFIG_LIBDIR=/none PKG_CONFIG_PATH="" cmake -S "$packages/cmake" -B "$dir/required 2" -DBAGS_FORMATS=png >"$dir/said" 2>&1 &&
        grep 'format png: pkg-config does not find libpng' "$dir/said"
}

installed_by_make() { make install PREFIX="$dir/make" FORMATS='jpeg png' CFLAGS=-O0; }
installed_by_cmake() {
    cmake -S "$packages/cmake" -B "$dir/cmake build" -DBAGS_FORMATS=jpeg -DCMAKE_INSTALL_PREFIX="$dir/cmake" &&
        cmake --build "$dir/cmake build" -j2 && cmake --install "$dir/cmake build"
}

# found NAME PREFIX [SED]: the directory may move after the installation.
found() {
    mv "$dir/$2" "$dir/moved $2" && project "$1" 3 "${3:-}" && cmake_works "$1" -DCMAKE_PREFIX_PATH="$dir/moved $2" &&
        mv "$dir/moved $2" "$dir/$2"
}

# A version or component that does not exist is an error.
refuses() {
    local name=$1
    project "$name" 3 "s/bags REQUIRED COMPONENTS jpeg/$2/" && ! cmake_works "$name" -DCMAKE_PREFIX_PATH="$dir/make" >"$dir/said" 2>&1 &&
        cat "$dir/said" && grep -q "$3" "$dir/said"
}

with_version() { found version make "s/bags REQUIRED/bags ${version%.*} REQUIRED/"; }

# The wrap reads the archive from the cache of packages, without a network.
with_wrap() {
    project wrap 1 '' meson meson.build && cd "$dir/wrap" && mkdir -p subprojects/packagecache &&
        cp -r "$dir/bags-packages-$version/meson/." subprojects && cp "$dir/dist/bags-$version.tar.gz" subprojects/packagecache &&
        sed -i "s/executable.*/executable('program', 'main.c', dependencies: [bags, dependency('bags-png')])/" meson.build &&
        PKG_CONFIG_PATH="" meson setup build && meson compile -C build && greets build/program && [ -d "subprojects/bags-$version" ]
}

# The port, by functions of the same names, in CMake itself: without vcpkg.
port_runs() {
    local port=$dir/bags-packages-$version/vcpkg/bags
    cat >"$dir/port.cmake" <<END_CMAKE
function(vcpkg_download_distfile out)
    cmake_parse_arguments(PARSE_ARGV 1 a "" "URLS;FILENAME;SHA512" "")
    file(DOWNLOAD \${a_URLS} "$dir/port.tar.gz" EXPECTED_HASH SHA512=\${a_SHA512})
    set(\${out} "$dir/port.tar.gz" PARENT_SCOPE)
endfunction()
function(vcpkg_extract_source_archive out)
    cmake_parse_arguments(PARSE_ARGV 1 a "" "ARCHIVE" "")
    file(ARCHIVE_EXTRACT INPUT \${a_ARCHIVE} DESTINATION "$dir/port")
    set(\${out} "$dir/port/bags-$version" PARENT_SCOPE)
endfunction()
function(vcpkg_find_acquire_program out)
    find_program(\${out} pkg-config)
endfunction()
function(vcpkg_cmake_configure)
    cmake_parse_arguments(PARSE_ARGV 0 a "" "SOURCE_PATH" "OPTIONS")
    execute_process(COMMAND \${CMAKE_COMMAND} -S \${a_SOURCE_PATH} -B "$dir/port build"
        "-DCMAKE_INSTALL_PREFIX=\${CURRENT_PACKAGES_DIR}" \${a_OPTIONS} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_install)
    execute_process(COMMAND \${CMAKE_COMMAND} --build "$dir/port build" --target install -j2 COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_install_copyright)
    cmake_parse_arguments(PARSE_ARGV 0 a "" "" "FILE_LIST")
    file(INSTALL \${a_FILE_LIST} DESTINATION "\${CURRENT_PACKAGES_DIR}/share/\${PORT}")
endfunction()
set(CURRENT_PACKAGES_DIR "$dir/port prefix")
set(PORT bags)
set(FEATURES core png)
include("$port/portfile.cmake")
END_CMAKE
    cmake -P "$dir/port.cmake" && project ported 3 's/jpeg/png/' && cmake_works ported -DCMAKE_PREFIX_PATH="$dir/port prefix" &&
        [ -f "$dir/port prefix/share/bags/LICENSE" ]
}

# A feature is a format that needs a library. All but importers and exporters are features.
port_features() {
    /usr/bin/python3 -c 'import json, re, sys
port = json.load(open(sys.argv[1]))
assert port["version"] == sys.argv[2], port["version"]
formats = re.findall(r"^PKG_([a-z0-9_/]+) := ", open("formats/packages.mk").read(), re.M)
unknown = set(port["features"]) - {name.replace("/", "-") for name in formats}
missing = {name for name in formats if "/" not in name} - set(port["features"])
assert not unknown and not missing, (unknown, missing)' "$dir/bags-packages-$version/vcpkg/bags/vcpkg.json" "$version"
}

conan_parses() {
    /usr/bin/python3 -c 'import ast, sys
for name in sys.argv[1:]: ast.parse(open(name).read(), name)' "$packages"/conan/conanfile.py "$packages"/conan/test_package/conanfile.py
}

# Braces, brackets and parentheses of Zig match, outside of strings and comments.
zig_parses() {
    /usr/bin/python3 -c 'import re, sys
text = re.sub(r"//[^\n]*|\"(?:\\.|[^\"\\])*\"", "", open(sys.argv[1]).read())
stack = []
for mark in re.findall(r"[][(){}]", text):
    if mark in "([{": stack.append(mark)
    else: assert stack and stack.pop() + mark in ("()", "[]", "{}"), mark
assert not stack' "$packages/zig/build.zig"
}

check 'make release: an archive, the header and the recipes' release
check 'the archive has the tracked files' same_files
check 'two archives have the same bytes' same_archive
need cmake 'CMake: FetchContent of a repository, and a format' with_git
need cmake 'CMake: FetchContent of an archive' with_archive
need cmake 'CMake: as README.md shows' with_readme
need cmake 'CMake: add_subdirectory' with_directory
need cmake 'CMake: a format that cannot be built is an error' format_is_required
check 'make install with two formats' installed_by_make
need cmake 'CMake: find_package after make install' found make_found make
need cmake 'CMake: find_package of a version' with_version
need cmake 'CMake: another version is refused' refuses other_version 'bags 9.1 REQUIRED' 'requested version "9.1"'
need cmake 'CMake: a component that was not installed is refused' refuses component 'bags REQUIRED COMPONENTS zstd' 'no component zstd was installed'
need cmake 'CMake: install by CMake' installed_by_cmake
need cmake 'CMake: find_package after it' found cmake_found cmake
need 'meson ninja' 'Meson: a wrap with its patch directory' with_wrap
need cmake 'vcpkg: the port, by functions of the same names' port_runs
check 'vcpkg: the features are formats' port_features
check 'Conan: the recipe is valid Python' conan_parses
check 'Zig: the marks of build.zig match' zig_parses
echo 'not run: vcpkg, Conan and Zig'
finish
