#!/usr/bin/env bash
# The Go module: its tests and the conformance set, under AddressSanitizer, too; a program of
# another module, as the page shows.
. "$(dirname "$0")/common.sh"
module=$packages/go
export GOPROXY=off GOFLAGS=-mod=mod GOTOOLCHAIN=local GOCACHE=$dir/cache GOPATH=$dir/gopath

clean() { (cd "$module" && [ -z "$(gofmt -l .)" ] && go vet ./...); }

tests() { # tests NAME [OPTION...]: of a build, with programs in $dir/NAME
    local to=$dir/$1
    shift
    mkdir -p "$to" && cd "$module" && go test -count=1 "$@" ./... && go build "$@" -o "$to/" ./cmd/...
}

sanitized() {
    export CGO_CFLAGS='-g -O1 -DBAGS_DEBUG -fsanitize=undefined -fno-sanitize-recover=all' CGO_LDFLAGS=-fsanitize=undefined
    tests sanitized -asan && nm "$dir/sanitized/reader" | grep -q __asan_init
}

conforms() { tests/conformance/run.py "$dir/$1/reader"; }

example() {
    "$dir/$1/pets" "$dir/pets $1" >"$dir/said" && diff "$dir/said" - <<END_TEXT
[{label int(4)} {words utf8[]}]
0 7 [a cat]
1 8 []
cat
true $dir/pets $1: datapoint index 2 out of range (length 2)
END_TEXT
    # It does not write into a dataset that exists.
    ! "$dir/$1/pets" "$dir/pets $1" 2>"$dir/said" && grep -q 'exists' "$dir/said"
}

another_module() {
    mkdir "$dir/program" && block "$packages/README.md" go 1 >"$dir/program/main.go" &&
        cp -r "$dir/pets plain" "$dir/program/pets" && cd "$dir/program" && go mod init program &&
        go mod edit -require example.org/bags@v0.0.0 -replace "example.org/bags=$module" &&
        go run . >"$dir/said" && grep -x "bags.h $version: \[a cat\]" "$dir/said"
}

need 'go gofmt gcc' 'Go: the module is formatted and vetted' clean
need 'go gcc' 'Go: the tests of the module' tests plain
need 'go gcc' 'Go: the conformance set' conforms plain
need 'go gcc' 'Go: the example' example plain
need 'go gcc' 'Go: the tests under AddressSanitizer' sanitized
need 'go gcc' 'Go: the conformance set under AddressSanitizer' conforms sanitized
need 'go gcc' 'Go: the example under AddressSanitizer' example sanitized
need 'go gcc' 'Go: a program of another module' another_module
chmod -R u+w "$dir/gopath" 2>/dev/null
finish
