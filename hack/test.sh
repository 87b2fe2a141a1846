#!/usr/bin/env bash
# Runs every suite, whatever fails first, and prints a report at the end. What it writes is in bin/test: results.tsv
# (suite, result, seconds, budget in minutes), skips.tsv (suite, package, test, reason) and a log per suite.
#
# A running cluster is used and stays; one that this starts is taken down at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/bin/test
# As in the Makefile: a KUBECONFIG of the user's means a cluster of the user's.
export KUBECONFIG="${KUBECONFIG:-$PWD/.cluster/kubeconfig}"
rm -rf "$out"
mkdir -p "$out"

# NAME|BUDGET in minutes|WHAT|COMMAND, in this order. The budgets are for two cores; they add up to what CI has.
# A suite that is not listed here does not exist; nothing else may be reported as passed.
suites=(
	"build|16|tools, Kubernetes and images from source (first time only, then seconds)|first_build"
	"lint+verify|4|linters; generated files, modules and formatting|make -k lint verify"
	"unit+fuzz|6|unit tests and a short run of every fuzz target|make unit"
	"envtest|8|API, admission policies and reconcilers against a real API server and etcd|make envtest"
	"chart|2|the Helm chart with Helm 3 and 4 is what config/ is|make chart-test"
	"e2e|10|Callgate on a real cluster, and what its doctor says of that|on_cluster make e2e doctor"
	"faults|12|whatever can fail fails, on a real cluster|on_cluster make test-faults"
	"abuse|12|hostile tools, under runc and gVisor|on_cluster make test-abuse"
	"demo+docs|8|the demo's calls, the commands of README and docs as written, and an install by the chart|on_cluster make docs-check chart-check"
)

first_build() {
	for tool in controller-gen golangci-lint golangci-lint-kube-api-linter helm3 helm4; do
		hack/tool.sh "$tool" --path
	done
	(cd hack/cluster && go run . build)
	(cd hack/samples && go run ./images)
}

# on_cluster COMMAND...: with the cluster up and this checkout's Callgate in it. The file tells the end of this script who
# started the cluster; it is written before the attempt, so that half a cluster is taken down too.
on_cluster() {
	if [ "$KUBECONFIG" = "$PWD/.cluster/kubeconfig" ] && ! make -s cluster-status >/dev/null 2>&1; then
		touch "$CALLGATE_OUT/started-cluster"
	fi
	KEEP_SANDBOXES=2s make cluster-up images deploy
	"$@"
}
# By a name that no script uses for something larger: an exported variable goes to every program they start.
export CALLGATE_OUT=$out
export -f first_build on_cluster

for suite in "${suites[@]}"; do
	IFS='|' read -r name budget _ <<<"$suite"
	printf '%s\t%s\n' "$name" "$budget"
done >"$out/suites.tsv"

running=
finish() {
	status=$?
	trap - EXIT INT TERM
	if [ -n "$running" ]; then
		kill -TERM "$running" 2>/dev/null || true
		wait "$running" 2>/dev/null || true
	fi
	if [ -e "$out/started-cluster" ]; then
		echo
		echo "taking down the cluster that this run started"
		make cluster-down || status=1
	fi
	hack/test-report.sh "$out" || status=1
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

number=0
for suite in "${suites[@]}"; do
	IFS='|' read -r name budget what command <<<"$suite"
	number=$((number + 1))
	echo
	echo "[$number/${#suites[@]}] $name: $what"
	started=$SECONDS
	result=passed
	export CALLGATE_SKIPS=$out/skips.tmp
	: >"$CALLGATE_SKIPS"
	# A hanging suite must not take the time of all others: twice its budget ends it. In the background, because bash
	# acts on a signal only between foreground commands.
	timeout --kill-after=30 $((2 * budget))m bash -euo pipefail -c "$command" > >(tee "$out/$name.log") 2>&1 &
	running=$!
	wait "$running" || result="FAILED ($?)"
	running=
	[ "$result" != "FAILED (124)" ] || result="FAILED (ended after $((2 * budget)) min)"
	printf '%s\t%s\t%s\t%s\n' "$name" "$result" $((SECONDS - started)) "$budget" >>"$out/results.tsv"
	sed "s|^|$name\t|" "$CALLGATE_SKIPS" >>"$out/skips.tsv"
	echo "[$number/${#suites[@]}] $name: $result in $((SECONDS - started)) s"
done
rm -f "$out/skips.tmp"
