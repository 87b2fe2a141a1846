#!/usr/bin/env bash
# Runs the commands of README and docs as they are written, on the cluster with the samples of the demo in it, and compares
# what they print with the block that follows them, where there is one. The make targets that the pages name are the other
# suites; docs/install.md and docs/doctor.md need a registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/kube.sh
PATH="$(dirname "$KUBECTL"):$PATH"
export PATH

# blocks LANGUAGE FILE [HEADING] prints the code blocks of a language, of the whole file or of one section.
blocks() {
	awk -v language="$1" -v heading="${3:-}" '
		BEGIN {inside = heading == ""}
		/^## / && heading != "" {inside = $0 == "## " heading}
		/^```/ {if (open) {open = 0} else {open = 1; match_ = $0 == "```" language; next}}
		inside && open && match_' "$2"
}

clean() {
	k -n agents delete toolcall shout-1 ship-1 ship-2 pack-1 pack-2 --ignore-not-found --timeout=60s >/dev/null
	rm -f .cluster/intern-agent
	k -n tools delete tool,toolpolicy shout --ignore-not-found --timeout=60s >/dev/null
	k -n agents delete toolcall refund-1 refund-2 refund-3 --ignore-not-found --timeout=60s >/dev/null
	k -n agents delete toolcallapproval refund-3-frida --ignore-not-found --timeout=60s >/dev/null
	k -n agents delete rolebinding finance --ignore-not-found --timeout=60s >/dev/null
	k -n tools delete tool whisper --ignore-not-found --timeout=60s >/dev/null
	k -n tools delete tool/refund toolpolicy/refunds --ignore-not-found --timeout=60s >/dev/null
	k -n tools delete toolpolicy one-a-minute --ignore-not-found --timeout=60s >/dev/null
	# What the rate limit of the page has counted before.
	leases="$(k -n callgate-system get leases -o name | grep /callgate-rate- || true)"
	[ -z "$leases" ] || xargs "$KUBECTL" -n callgate-system delete --timeout=60s >/dev/null <<<"$leases"
	k delete namespace team-tools team-agents --ignore-not-found --timeout=60s >/dev/null
}
clean
trap clean EXIT

# run NAME SCRIPT runs a script and prints what it printed; its failure is ours.
run() {
	echo "  $1"
	[ -n "$2" ] || fail "$1 has no commands: were the headings renamed?"
	if ! printed="$(bash -euo pipefail -c "$2" 2>&1)"; then
		fail "$1: its commands failed: $printed"
	fi
}

run "README.md, write a tool of your own" "$(blocks sh README.md "Write a tool of your own")"
want="$(blocks "" README.md "Write a tool of your own")"
[ "$(tail -n 1 <<<"$printed")" = "$want" ] || fail "README.md promises $want, its commands printed: $printed"

go build -o bin/ ./cmd/kubectl-callgate
export PATH="$PWD/bin:$PATH"
run "docs/open-a-namespace.md" "$(blocks sh docs/open-a-namespace.md)"
k auth can-i create jobs -n team-tools --as=system:serviceaccount:callgate-system:callgate-controller >/dev/null ||
	fail "docs/open-a-namespace.md did not let the controller in"
k auth can-i create toolcalls.callgate.dev -n team-agents --as=system:serviceaccount:team-agents:support-agent >/dev/null ||
	fail "docs/open-a-namespace.md did not let the agent call"

run "docs/call-a-tool.md" "$(blocks sh docs/call-a-tool.md)"
grep -q '^{"data":{.*"words":16}.*"ok":true' <<<"$printed" || fail "docs/call-a-tool.md: kubectl printed no good result: $printed"
grep -q '^{"ok":true,"data":{.*"words":3}' <<<"$printed" || fail "docs/call-a-tool.md: the program printed no good envelope: $printed"

for page in docs/duplicates-and-limits.md docs/approvals.md; do
	run "$page" "$(blocks sh "$page")"
	while read -r line; do
		grep -qxF -- "$line" <<<"$printed" || fail "$page promises $line, its commands printed: $printed"
	done < <(blocks "" "$page")
done

run "docs/warm-pools.md" "$(blocks sh docs/warm-pools.md)"
run "docs/gitops.md" "$(blocks sh docs/gitops.md)"

run "docs/reliability.md" "$(blocks sh docs/reliability.md)"
k -n callgate-system get deployment callgate-controller -o jsonpath='{.spec.template.spec.containers[0].args}' | grep -q unfinished-before &&
	fail "docs/reliability.md left --unfinished-before on the controller"
true
