#!/usr/bin/env bash
# Unit tests of every module, then each fuzz target for a short time, in seconds: hack/unit.sh [FUZZTIME]
# Fuzz targets are found, not listed. All of it runs, whatever fails first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
fuzztime=${1:-10}
status=0
# As the product is built; one setting everywhere also means one set of compiled packages in the cache.
export CGO_ENABLED=0
# Not in a process substitution: there a failure would look like a repository without modules.
modules="$(hack/modules.sh)"

# The packages of a module that hold unit tests. In the root those of controllers/ and test/ need an API server or a
# cluster and are suites of their own.
packages() {
	if [ "$1" = . ]; then
		for dir in api cmd internal; do
			[ ! -d "$dir" ] || echo "./$dir/..."
		done
	else
		echo ./...
	fi
}

while read -r dir; do
	echo "unit tests in $dir"
	mapfile -t list < <(packages "$dir")
	(cd "$dir" && "$root/hack/gotest.sh" -timeout 5m "${list[@]}") || status=1
done <<<"$modules"

# show_input PACKAGE_FOLDER TARGET LOG prints the input that a target failed on, because the clone that holds the file may
# be gone when somebody reads this, and what a run with it alone says: the output of the worker, with the stack of an
# endless loop, is lost.
show_input() {
	local file rerun
	file="$(sed -n 's/^ *Failing input written to //p' "$3" | tail -1)"
	[ -f "$1/$file" ] || return 0
	echo "  the failing input, $file ($(wc -c <"$1/$file") bytes, 4096 at most are shown):"
	head -c 4096 "$1/$file"
	echo
	echo "  a run of it alone, ended after 30 s (8192 bytes at most are shown):"
	rerun="$(mktemp)"
	(cd "$1" && go test -run "^$2\$/^${file##*/}\$" -timeout 30s .) >"$rerun" 2>&1 || true
	head -c 8192 "$rerun"
	echo
	rm -f "$rerun"
}

# fuzz PACKAGE_FOLDER TARGET
fuzz() {
	local log seconds=$fuzztime
	# What other people write and Callgate compiles gets six times as long.
	case $2 in FuzzCompile | FuzzValidate | FuzzCondition) seconds=$((6 * fuzztime)) ;; esac
	log="$(mktemp)"
	if (cd "$1" && go test -run '^$' -fuzz "^$2\$" -fuzztime "${seconds}s" -timeout 5m .) >"$log" 2>&1; then
		echo "  $2 in $1: $(grep -o 'execs: [0-9]*' "$log" | tail -1)"
	elif [ "$(grep -A1 '^--- FAIL' "$log" | sed -n 2p)" = "    context deadline exceeded" ] &&
		! grep -q 'Failing input' "$log"; then
		# Go before 1.27 reports the end of -fuzztime as a failure now and then (golang/go#75804). A real finding
		# always comes with the input that caused it.
		echo "  $2 in $1: $(grep -o 'execs: [0-9]*' "$log" | tail -1) (ended by golang/go#75804, no failing input)"
	else
		echo "  $2 in $1: FAIL" >&2
		tail -50 "$log" >&2
		show_input "$1" "$2" "$log" >&2
		status=1
	fi
	rm -f "$log"
}

while IFS=: read -r file line; do
	[ -n "$file" ] || continue
	target="$(sed -E 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/' <<<"$line")"
	[ -n "${fuzzed:-}" ] || echo "fuzzing, ${fuzztime} s each, three of them six times as long"
	fuzzed=yes
	fuzz "$(dirname "$file")" "$target"
done < <(git ls-files -co --exclude-standard -- '*_test.go' | xargs -r grep -sE '^func Fuzz[A-Za-z0-9_]*\(' /dev/null || true)

exit $status
