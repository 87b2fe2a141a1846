#!/usr/bin/env bash
# Prints what hack/test.sh left in a folder: hack/test-report.sh [FOLDER]
# Each suite with its result and time against its budget, every skipped test with its reason, and the end of the log of
# each suite that failed. Fails unless every planned suite ran and passed.
set -euo pipefail
out=${1:-bin/test}
status=0

[ -s "$out/suites.tsv" ] || {
	echo "no suite ran: $out/suites.tsv is not there" >&2
	exit 1
}
touch "$out/results.tsv" "$out/skips.tsv"

minutes() { # SECONDS as minutes with one decimal
	printf '%d.%d' $(($1 / 60)) $(($1 % 60 / 6))
}

echo
echo "=== suites"
printf '%-14s %-32s %12s %12s\n' suite result "took (min)" "budget (min)"
while IFS=$'\t' read -r name budget; do
	line="$(awk -F'\t' -v name="$name" '$1 == name' "$out/results.tsv")"
	result="NOT RUN" seconds=0 note=
	[ -z "$line" ] || IFS=$'\t' read -r _ result seconds _ <<<"$line"
	[ "$result" = passed ] || status=1
	[ "$seconds" -le $((budget * 60)) ] || note="  over budget"
	printf '%-14s %-32s %12s %12s%s\n' "$name" "$result" "$(minutes "$seconds")" "$budget" "$note"
done <"$out/suites.tsv"

count=$(wc -l <"$out/skips.tsv")
if [ "$count" -gt 0 ]; then
	echo
	echo "=== SKIPPED TESTS: $count. They did not run, so they prove nothing"
	while IFS=$'\t' read -r suite package test reason; do
		echo "  $suite: $test in $package: $reason"
	done <"$out/skips.tsv"
fi

while IFS=$'\t' read -r name result _; do
	[ "$result" != passed ] || continue
	echo
	echo "=== end of the log of $name ($result); all of it: $out/$name.log"
	tail -n 80 "$out/$name.log" 2>/dev/null || echo "(no log)"
done <"$out/results.tsv"

exit $status
