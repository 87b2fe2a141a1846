#!/usr/bin/env bash
# Checks hack/test-report.sh: what it says and whether it fails, for a run as hack/test.sh leaves it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
bad=0

# check REASON WANTED_STATUS TEXT...: every TEXT must be in the report; one that begins with ! must not.
check() {
	local reason=$1 want=$2 got=0 report
	shift 2
	report="$(./test-report.sh "$dir" 2>&1)" || got=$?
	[ "$got" = "$want" ] || { echo "status $got, want $want: $reason" >&2; bad=1; }
	for text in "$@"; do
		if [ "${text#!}" != "$text" ]; then
			! grep -qF -- "${text#!}" <<<"$report" || { echo "has '${text#!}': $reason" >&2; bad=1; }
		else
			grep -qF -- "$text" <<<"$report" || { echo "lacks '$text': $reason" >&2; bad=1; }
		fi
	done
}

check "nothing ran" 1 "no suite ran"

printf 'unit\t6\ne2e\t10\n' >"$dir/suites.tsv"
printf 'unit\tpassed\t90\t6\n' >"$dir/results.tsv"
check "a planned suite that did not run is a failure" 1 "NOT RUN" "1.5" "!over budget"

printf 'unit\tpassed\t90\t6\ne2e\tpassed\t660\t10\n' >"$dir/results.tsv"
check "all passed; over budget is told but is no failure" 0 "11.0" "over budget" "!SKIPPED" "!end of the log"

printf 'unit\tcallgate.dev/x\tTestA\tneeds root: uid is 1000\n' >"$dir/skips.tsv"
check "skipped tests are loud, with suite and reason" 0 "SKIPPED TESTS: 1" "unit: TestA in callgate.dev/x: needs root: uid is 1000"

printf 'unit\tpassed\t90\t6\ne2e\tFAILED (2)\t60\t10\n' >"$dir/results.tsv"
seq 1 200 >"$dir/e2e.log"
check "a failed suite shows the end of its log" 1 "FAILED (2)" "end of the log of e2e" "200" "!end of the log of unit"

exit $bad
