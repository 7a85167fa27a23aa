#!/usr/bin/env bash
# The Rust crate: its tests and the conformance set, under AddressSanitizer, too; a program of
# another crate, as the page shows.
. "$(dirname "$0")/common.sh"
crate=$packages/rust
export CARGO_HOME=$dir/cargo CARGO_NET_OFFLINE=true

tests() { # tests NAME: of a build, below $dir/NAME
    export CARGO_TARGET_DIR=$dir/$1
    (cd "$crate" && cargo test --locked --examples --tests && cargo build --locked --examples)
}

# The C code is compiled with the sanitizers. NULL + 0 is no fault.
sanitized() {
    local flags='-fsanitize=address,undefined -fno-sanitize=pointer-overflow -fno-sanitize-recover=all'
    export CC=clang CFLAGS="$flags -g -O1 -DBAGS_DEBUG" RUSTFLAGS='-C linker=clang -C link-arg=-fsanitize=address,undefined'
    tests sanitized && nm "$dir/sanitized/debug/examples/reader" | grep -q __asan_init
}

doctests() { cd "$crate" && CARGO_TARGET_DIR=$dir/plain cargo test --locked --doc; }
conforms() { tests/conformance/run.py "$dir/$1/debug/examples/reader"; }

example() {
    "$dir/$1/debug/examples/pets" "$dir/pets $1" >"$dir/said" && diff "$dir/said" - <<END_TEXT
label: int(4)
words: utf8[]
Uint(7), 2 words
Uint(8), 3 words
Uint(9), 0 words
cat
$dir/pets $1: datapoint index 3 out of range (length 3)
END_TEXT
    # It does not write into a dataset that exists.
    ! "$dir/$1/debug/examples/pets" "$dir/pets $1" 2>"$dir/said" && grep -q 'exists' "$dir/said"
}

another_crate() {
    mkdir -p "$dir/program/src" && block "$packages/README.md" rust 1 >"$dir/program/src/main.rs" &&
        cp -r "$dir/pets plain" "$dir/program/pets" && cat >"$dir/program/Cargo.toml" <<END_TOML && cd "$dir/program" &&
[package]
name = "program"
version = "0.1.0"
edition = "2021"
[dependencies]
bags = { path = "$crate" }
END_TOML
        CARGO_TARGET_DIR=$dir/plain cargo run --offline >"$dir/said" && grep -x "bags.h $version: cat" "$dir/said"
}

need cargo 'Rust: the tests of the crate' tests plain
need 'cargo rustdoc' 'Rust: the examples of its pages; views that outlive their row do not compile' doctests
need cargo 'Rust: the conformance set' conforms plain
need cargo 'Rust: the example' example plain
need 'cargo clang' 'Rust: the tests under AddressSanitizer' sanitized
need 'cargo clang' 'Rust: the conformance set under AddressSanitizer' conforms sanitized
need 'cargo clang' 'Rust: the example under AddressSanitizer' example sanitized
need cargo 'Rust: a program of another crate' another_crate
finish
