#!/usr/bin/env bash
# Runs `go test` with the given arguments in the current folder and prints a short report of it: per package, every
# failure with its output, every skipped test with its reason. -v as the first argument lists every test.
#
# With CALLGATE_SKIPS set, skipped tests are also appended to that file.
set -euo pipefail
tools="$(cd "$(dirname "${BASH_SOURCE[0]}")/tools" && pwd)"

# As the product is built; one setting everywhere also means one set of compiled packages in the cache.
export CGO_ENABLED=0

verbose=()
if [ "${1:-}" = -v ]; then
	verbose=(-v)
	shift
fi

# Built by Go's own cache, in its own module: no dependency outside the standard library is loaded for it.
testsum="$(mktemp -d)"
trap 'rm -rf "$testsum"' EXIT
(cd "$tools" && go build -o "$testsum/testsum" ./testsum)

go test -json "$@" | "$testsum/testsum" "${verbose[@]}"
