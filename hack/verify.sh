#!/usr/bin/env bash
# Says whether what is generated, pinned or formatted is what it should be. Every check runs, whatever fails first; the
# state of git matters only in so far as generating must change nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
# Not in a process substitution: there a failure would look like a repository without modules.
modules="$(hack/modules.sh --all)"

fail() {
	echo "FAIL: $1" >&2
	status=1
}

# The content of what is generated, committed or not.
generated() {
	{ find api config charts -name 'zz_generated.*' -o -path 'config/crd/bases/*.yaml' -o -path 'charts/*' -type f; } | sort | while read -r file; do
		sha256sum "$file"
	done
}

echo "verify generated files"
before="$(generated)"
if make -s generate manifests chart; then
	after="$(generated)"
	if [ "$before" != "$after" ]; then
		diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]*  /  /p' | sort -u >&2
		fail "these were not up to date; they are now: commit them"
	fi
	# In a clean clone a file that was generated but never committed shows up only here.
	missing="$(git ls-files -o --exclude-standard -- api config charts)"
	if [ -n "$missing" ]; then
		echo "${missing//$'\n'/$'\n'  }" >&2
		fail "these files are not in git"
	fi
else
	fail "make generate manifests chart"
fi

echo "verify CRD sizes"
# Client-side apply stores the whole object in an annotation, and all annotations together may have 256 KiB.
for file in config/crd/bases/*.yaml; do
	size=$(stat -c %s "$file")
	[ "$size" -lt 262144 ] || fail "$file has $size bytes, the limit is 262143: shorten its descriptions or set maxDescLen"
done

echo "verify modules"
while read -r dir; do
	(cd "$dir" && go mod verify >/dev/null) || fail "go mod verify in $dir: the module cache holds something else than go.sum says"
	(cd "$dir" && go mod tidy -diff) || fail "$dir/go.mod or go.sum is not tidy: run 'go mod tidy' in $dir"
done <<<"$modules"

echo "verify formatting"
unformatted="$(git ls-files -co --exclude-standard -- '*.go' | while read -r file; do
	[ -f "$file" ] && gofmt -l "$file" 2>&1
done || true)"
if [ -n "$unformatted" ]; then
	echo "$unformatted" >&2
	fail "gofmt: run 'make fmt'"
fi

echo "verify scripts"
while read -r file; do
	bash -n "$file" || fail "$file does not parse"
done < <(git ls-files -co --exclude-standard -- '*.sh' .ci/run)
hack/test-report_test.sh || fail "hack/test-report_test.sh"

exit $status
