#!/usr/bin/env bash
# Registers the sample tools and policies of config/samples, makes the sample calls as the sample agents, and shows and
# checks what came of each. `make demo` runs it last; it needs Callgate in the cluster of $KUBECONFIG.
#
#   hack/demo.sh         the demo; fails when an outcome is not the expected one
#   hack/demo.sh down    removes samples and Callgate from the cluster
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/kube.sh

if [ "${1:-}" = down ]; then
	echo "removing the samples and Callgate from the cluster of $KUBECONFIG"
	k delete -k config/samples --ignore-not-found --timeout=180s >/dev/null
	k delete -k config/default --ignore-not-found --timeout=180s >/dev/null
	exit 0
fi

# What is shown: the call's file | the agent that makes it | the outcome | a part of the data or message | what it shows
calls='
update-order      | support-agent | ok                | "updated":true             | an order is shipped, through the API of the shop
run-python        | analyst-agent | ok                | "mean":308.2               | Python that a model wrote, under gVisor
word-stats        | intern-agent  | ok                | "words":16                 | a shell pipeline over text
invalid-arguments | support-agent | invalid_arguments | /status                    | a status that the schema does not know
tool-not-found    | support-agent | tool_not_found    | delete_all_orders          | a tool that does not exist
tool-not-allowed  | intern-agent  | tool_not_allowed  | interns                    | a policy denies it
tool-timeout      | analyst-agent | tool_timeout      | 2                          | an endless loop, ended after 2 s
tool-failed       | analyst-agent | tool_failed       | KeyError: '"'tea pot'"'        | a Python traceback
network-refused   | analyst-agent | ok                | "connected":[]             | no network from the sandbox
forged-requester  | intern-agent  | tool_not_allowed  | interns                    | an intern claims to be the support agent
'
agents='support-agent analyst-agent intern-agent'
order=4821

steps=6
step=0
say() {
	step=$((step + 1))
	echo "[$step/$steps] $*"
}

work="$(mktemp -d)" # holds tokens
trap 'rm -rf "$work"' EXIT

say "sample tools, policies, agents and the shop (config/samples)"
mkdir -p .cluster/samples
cp config/samples/tool-images.yaml .cluster/samples/
{
	cat <<-YAML
		# Written by hack/demo.sh.
		apiVersion: kustomize.config.k8s.io/v1beta1
		kind: Kustomization
		sortOptions:
		  order: legacy
		resources:
		- ../../config/samples
		configurations:
		- tool-images.yaml
		images:
	YAML
	for name in orders run-python busybox; do
		ref="$(image "$(tr a-z- A-Z_ <<<$name)")"
		printf -- '- {name: callgate.dev/samples/%s, newName: %s, newTag: %s}\n' "$name" "${ref%:*}" "${ref##*:}"
	done
} >.cluster/samples/kustomization.yaml
apply .cluster/samples

say "waiting for the shop and the tools to be ready"
k -n shop rollout status deployment/orders --timeout=180s >/dev/null || {
	k -n shop get pods,events >&2 || true
	fail "the shop's Deployment was not ready within 180 s; above are its pods and events"
}
if ! k -n tools wait tool --all --for=condition=Ready --timeout=120s >/dev/null; then
	k -n tools get tools -o custom-columns='TOOL:.metadata.name,READY:.status.conditions[?(@.type=="Ready")].status,MESSAGE:.status.conditions[?(@.type=="Ready")].message' >&2 || true
	fail "not all Tools were Ready within 120 s; above is what they say"
fi
k -n tools get tools

say "a kubeconfig for each agent, with its own token and no other right"
umask 077
for agent in $agents; do
	k -n agents create token "$agent" --duration=1h >"$work/$agent.token"
	k config view --raw --minify --flatten >"$work/$agent"
	for change in "unset users" "set users.agent.tokenFile $work/$agent.token" "set-context --current --user=agent --namespace=agents"; do
		# shellcheck disable=SC2086 # the words of a change are words
		"$KUBECTL" --kubeconfig "$work/$agent" config $change >/dev/null
	done
	name="$(k --kubeconfig "$work/$agent" auth whoami -o jsonpath='{.status.userInfo.username}')"
	[ "$name" = "system:serviceaccount:agents:$agent" ] || fail "the kubeconfig made for $agent logs in as $name"
	echo "  $name"
done

row() { k -n shop exec deployment/orders -- orders-server show $order; }
before="$(row)"

total="$(grep -c '|' <<<"$calls")"
say "$total calls, each made by its agent (config/samples/calls)"
number=0
while IFS='|' read -r file agent want part shows; do
	read -r file <<<"$file" && read -r agent <<<"$agent" && read -r want <<<"$want" && read -r part <<<"$part" && read -r shows <<<"$shows"
	[ -n "$file" ] || continue
	number=$((number + 1))
	printf '  %2d/%d %-18s as %-14s' "$number" "$total" "$file" "$agent"
	started=$EPOCHREALTIME
	call="$(k --kubeconfig "$work/$agent" create -f "config/samples/calls/$file.yaml" -o jsonpath='{.metadata.name}')"
	k --kubeconfig "$work/$agent" wait toolcall "$call" --for=condition=Complete --timeout=150s >/dev/null ||
		fail "the call $call did not complete within 150 s: see 'kubectl -n agents describe toolcall $call'"
	seconds="$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}')"
	echo "$seconds s"
	k --kubeconfig "$work/$agent" get toolcall "$call" -o json >"$work/call.json"
	printf '%s\t%s\t%s\t%s\t%s\n' "$call" "$agent" "$want" "$part" "$shows" >>"$work/expected.tsv"
	printf '{"seconds":%s,"call":%s}\n' "$seconds" "$(cat "$work/call.json")" >>"$work/calls.json"
	if [ "$file" = forged-requester ]; then
		stamped="$(k --kubeconfig "$work/$agent" get toolcall "$call" -o jsonpath='{.spec.requester.username}')"
		echo "        sent:    $(sed -n 's/^ *username: /requester /p' "config/samples/calls/$file.yaml")"
		echo "        stamped: requester $stamped"
	fi
done <<<"$calls"

say "what came of them (seconds: from create to the answer in kubectl, two starts of kubectl included)"
(cd hack/samples && go build -o "$work/report" ./report)
"$work/report" "$work/expected.tsv" <"$work/calls.json" || failed=yes

say "the changed row, read from the shop's SQLite file"
after="$(row)"
echo "  before: $before"
echo "  after:  $after"
if [ "$before" = "$after" ] || [[ $after != *'"status":"shipped"'* ]]; then
	fail "order $order was to be shipped, with a new updated_at"
fi
[ -z "${failed:-}" ] || fail "at least one call did not end as expected; the lines marked DIFFERENT above say which"
echo
echo "All $total calls ended as expected. More: kubectl -n agents get toolcalls"
