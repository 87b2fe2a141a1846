#!/usr/bin/env bash
# Lints and renders charts/callgate with Helm 3 and Helm 4, and compares what they render with config/default. Needs the
# kubectl that hack/cluster builds, for its kustomize; no cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
chart=charts/callgate
KUBECTL="${KUBECTL:-$(cd hack/cluster && go run . assets)/kubectl}"
[ -x "$KUBECTL" ] || {
	echo "chart-test.sh: there is no $KUBECTL: build it with '(cd hack/cluster && go run . build)', or set KUBECTL" >&2
	exit 1
}
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# Helm must neither read nor write what the user's own Helm has.
export HELM_CACHE_HOME=$work/cache HELM_CONFIG_HOME=$work/config HELM_DATA_HOME=$work/data
status=0

fail() {
	echo "FAIL: $helm: $*" >&2
	status=1
}

# normal FOLDER PATCH... prints the objects of a kustomization in one order and one form, changed by JSON patches and without
# the Namespace: with Helm that is the user's.
normal() {
	local folder=$1 file
	file="$work/$(basename "$folder")/kustomization.yaml"
	mkdir -p "$(dirname "$file")"
	# kustomize reads only what is below the folder, or a folder with a kustomization.
	cat >"$file" <<-YAML
		apiVersion: kustomize.config.k8s.io/v1beta1
		kind: Kustomization
		sortOptions: {order: legacy}
		resources: [$(realpath --relative-to="$(dirname "$file")" "$folder")]
		patches: $2
	YAML
	"$KUBECTL" kustomize "$(dirname "$file")"
}

# template ARGS... renders the chart as a cluster of the oldest version that it accepts would get it.
template() { "$binary" template callgate "$chart" --kube-version 1.36.0 "$@"; }

# renders WHAT PATTERN ARGS...: with these arguments, a rendered line is the pattern (grep -x -E).
renders() {
	local what=$1 pattern=$2 rendered
	shift 2
	if ! rendered="$(template --namespace callgate-system "$@" 2>&1)"; then
		fail "$what: $rendered"
	elif ! grep -qxE -e " *$pattern" <<<"$rendered"; then
		fail "$what: no line is $pattern"
	fi
}

want="$(normal config/default '[{patch: "{apiVersion: v1, kind: Namespace, metadata: {name: callgate-system}, $patch: delete}"}]')"
for helm in helm3 helm4; do
	binary="$(hack/tool.sh "$helm" --path)"
	echo "$helm: $("$binary" version --template '{{.Version}}')"
	"$binary" lint --strict --quiet --kube-version 1.36.0 "$chart" || fail "lint"

	mkdir -p "$work/$helm/objects"
	if ! template --namespace callgate-system >"$work/$helm/objects/objects.yaml"; then
		fail "template"
		continue
	fi
	printf 'resources: [objects.yaml]\n' >"$work/$helm/objects/kustomization.yaml"
	got="$(normal "$work/$helm/objects" '[{target: {kind: CustomResourceDefinition}, patch: "- {op: remove, path: /metadata/annotations/helm.sh~1resource-policy}"}]')"
	if ! diff <(echo "$want") <(echo "$got") >"$work/diff"; then
		sed -n 1,40p "$work/diff" >&2
		fail "with default values the chart (>) is not what config/default (<) is: run 'make chart'"
	else
		echo "  with default values: the $(grep -c '^kind: ' <<<"$got") objects of config/default"
	fi

	# The namespace of the release, and no other.
	if ! other="$(template --namespace some-where)"; then
		fail "template in another namespace"
	elif grep -n callgate-system <<<"$other" >&2; then
		fail "rendered for the namespace some-where, it names callgate-system"
	elif [ "$(sed 's/some-where/callgate-system/' <<<"$other")" != "$(cat "$work/$helm/objects/objects.yaml")" ]; then
		fail "another namespace changes more than the namespace"
	fi

	digest=sha256:$(printf '%064d' 7)
	renders "a tag" 'image: "callgate.dev/controller:1.2"' --set controller.image.tag=1.2
	renders "a tag of digits" 'image: "callgate.dev/controller:12"' --set controller.image.tag=12
	renders "another registry" 'image: "registry.example:5000/callgate:dev"' --set controller.image.repository=registry.example:5000/callgate
	renders "a digest wins over a tag" "image: \"callgate.dev/controller@$digest\"" --set controller.image.digest=$digest,controller.image.tag=1.2
	renders "the runner's tag" '- "--runner-image=callgate.dev/runner:1.2"' --set runner.image.tag=1.2
	renders "the runner's digest" "- \"--runner-image=callgate.dev/runner@$digest\"" --set runner.image.digest=$digest
	renders "one limit changes, the others stay (the changed one)" 'memory: 1Gi' --set controller.resources.limits.memory=1Gi
	renders "one limit changes, the others stay (another one)" 'cpu: 50m' --set controller.resources.limits.memory=1Gi
	renders "pull secrets" '- name: registry' --set 'imagePullSecrets[0].name=registry'
	renders "a node selector" 'disk: ssd' --set nodeSelector.disk=ssd
	renders "tolerations" '- key: gpu' --set 'tolerations[0].key=gpu'

	if "$binary" template callgate "$chart" --kube-version 1.35.9 >"$work/old" 2>&1; then
		fail "it renders for Kubernetes 1.35, which it does not work on"
	elif ! grep -q "1.36" "$work/old"; then
		fail "for Kubernetes 1.35 it does not say what it needs: $(cat "$work/old")"
	fi
	"$binary" template callgate "$chart" --kube-version v1.37.1-provider.1400 >/dev/null || fail "a provider's version is refused"
done
exit $status
