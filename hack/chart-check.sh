#!/usr/bin/env bash
# Installs the Helm chart on the local cluster, runs one call, upgrades and uninstalls: hack/chart-check.sh [helm3|helm4]
#
# CRDs and admission policies exist once in a cluster. So this removes the Callgate that is there, with all Tools, calls and
# policies, and at its end, whatever comes before, installs it again, with the samples if they were there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/kube.sh
helm=${1:-helm4}
[ "$KUBECONFIG" = "$PWD/.cluster/kubeconfig" ] ||
	fail "this removes all that Callgate has in a cluster, so it runs on the local one only: unset KUBECONFIG"

binary="$(hack/tool.sh "$helm" --path)"
controller="$(image CONTROLLER)"
runner="$(image RUNNER)"
tool="$(image BUSYBOX)"
# Another name than config/ has: the install ID must be the release's namespace.
release=callgate-chart
tools=callgate-chart-tools
agent=(--as="system:serviceaccount:$tools:agent" --as-group="system:serviceaccounts:$tools" --as-group=system:serviceaccounts --as-group=system:authenticated)

work="$(mktemp -d)"
# Helm must neither read nor write what the user's own Helm has.
export HELM_CACHE_HOME=$work/cache HELM_CONFIG_HOME=$work/config HELM_DATA_HOME=$work/data

step=0
say() {
	step=$((step + 1))
	echo "[$step/6] $*"
}

crds() { k get crd -o name | grep '\.callgate\.dev$' || true; }

k get namespace default >/dev/null || fail "the local cluster does not answer: start it with 'make cluster-up'"

samples=
put_back() {
	local status=$?
	trap - EXIT
	if [ $status -ne 0 ]; then
		k -n $release get pods,events >&2 || true
		k -n $release logs deployment/callgate-controller --tail=30 >&2 || true
	fi
	say "putting back what was there"
	# Each may be gone already.
	"$binary" uninstall callgate --namespace $release --wait --timeout 60s >/dev/null 2>&1 || true
	crds | xargs -r "$KUBECTL" delete --timeout=120s >/dev/null || status=1
	k delete namespace $release $tools --ignore-not-found --timeout=120s >/dev/null || status=1
	hack/deploy.sh || status=1
	[ -z "$samples" ] || (apply .cluster/samples) || status=1
	rm -rf "$work"
	exit $status
}

# deploy COMMAND: installs or upgrades the chart, and waits until the controller is ready.
deploy() {
	"$binary" "$1" callgate charts/callgate --namespace $release --wait --timeout 180s "${@:2}" \
		--set "controller.image.repository=${controller%:*}" --set-string "controller.image.tag=${controller##*:}" \
		--set "runner.image.repository=${runner%:*}" --set-string "runner.image.tag=${runner##*:}" >/dev/null
}

[ ! -e .cluster/samples/kustomization.yaml ] || [ -z "$(k get tools -A -o name 2>/dev/null)" ] || samples=yes
trap put_back EXIT

say "removing Callgate from the local cluster"
k delete -k config/default --ignore-not-found --timeout=180s >/dev/null
left="$(crds)"
[ -z "$left" ] || fail "these are still there: $left"

say "$helm install in namespace $release, controller $controller, runner $runner"
deploy install --create-namespace
k -n $release get lease callgate-controller >/dev/null || fail "the controller keeps its lease in another namespace than the release's"

say "a namespace for tools, opened as the chart's notes say, with a tool and who may call it"
k create namespace $tools >/dev/null
k label namespace $tools callgate.dev/tools=enabled >/dev/null
k -n $tools create rolebinding callgate --clusterrole=callgate-tool-namespace --serviceaccount=$release:callgate-controller >/dev/null
k -n $tools create serviceaccount agent >/dev/null
k -n $tools create rolebinding agent --clusterrole=callgate-agent --serviceaccount=$tools:agent >/dev/null
k -n $tools apply -f - >/dev/null <<YAML
apiVersion: callgate.dev/v1alpha1
kind: Tool
metadata: {name: repeat}
spec:
  inputSchema: {type: object, properties: {text: {type: string}}, required: [text], additionalProperties: false}
  sideEffects: None
  container: {image: "$tool", command: [cat]}
---
apiVersion: callgate.dev/v1alpha1
kind: ToolPolicy
metadata: {name: agent}
spec:
  subjects: [{kind: ServiceAccount, namespace: $tools, name: agent}]
  rules: [{name: repeat, effect: Allow, tools: {names: [repeat]}}]
YAML
k -n $tools wait tool repeat --for=condition=Ready --timeout=60s >/dev/null ||
	fail "the Tool is not Ready: $(k -n $tools get tool repeat -o jsonpath='{.status.conditions[?(@.type=="Ready")].message}')"

# call NAME makes one call as the agent and checks its answer.
call() {
	local ok
	k -n $tools "${agent[@]}" create -f - >/dev/null <<-YAML
		{apiVersion: callgate.dev/v1alpha1, kind: ToolCall, metadata: {name: $1}, spec: {toolRef: {name: repeat}, args: {text: $1}}}
	YAML
	k -n $tools "${agent[@]}" wait toolcall "$1" --for=condition=Complete --timeout=60s >/dev/null || fail "the call $1 did not complete within 60 s"
	ok="$(k -n $tools get toolcall "$1" -o jsonpath='{.status.result.ok} {.status.result.data.text}')"
	[ "$ok" = "true $1" ] || fail "the call $1 should have repeated its text: $(k -n $tools get toolcall "$1" -o jsonpath='{.status.result}')"
	echo "  $(k -n $tools get toolcall "$1" -o jsonpath='{.spec.requester.username}: {.status.result}')"
}

say "one call, as an agent"
wait_for_calls
call installed

say "$helm upgrade, a call, and uninstall: what was registered and called stays"
deploy upgrade --set-string controller.resources.limits.memory=600Mi --set 'controller.args={--max-finished-calls=9000,--require-network-isolation=true}'
k -n $release get deployment callgate-controller -o jsonpath='{.spec.template.spec.containers[0].args}' | grep -q '"--max-finished-calls=9000","--require-network-isolation=true"' ||
	fail "controller.args did not become arguments of the controller"
wait_for_calls # an upgrade writes the admission policies again
call upgraded
"$binary" uninstall callgate --namespace $release --wait --timeout 120s >/dev/null
[ "$(k -n $tools get tools,toolcalls -o name | wc -l)" -eq 3 ] || fail "uninstall took Tools or calls with it"
[ -z "$(k get mutatingadmissionpolicies,clusterroles -o name | grep '/callgate-' || true)" ] || fail "uninstall left policies or roles"
