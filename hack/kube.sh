# Sourced by hack/deploy.sh and hack/demo.sh, from the repository's root: which cluster, which images, and an apply that
# waits for what an API server needs a few seconds for.

KUBECONFIG="${KUBECONFIG:-$PWD/.cluster/kubeconfig}"
export KUBECONFIG
if [ -z "${KUBECTL:-}" ]; then
	KUBECTL="$PWD/.cluster/bin/kubectl"
	[ -x "$KUBECTL" ] || KUBECTL=kubectl
fi

# k runs kubectl with a bound on each request. Commands that wait have a --timeout of their own instead: a bound on the
# request would cut the watch they wait with.
k() {
	case " $* " in
	*" --timeout="*) "$KUBECTL" "$@" ;;
	*) "$KUBECTL" --request-timeout=30s "$@" ;;
	esac
}

fail() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

[ -s "$KUBECONFIG" ] || fail "there is no $KUBECONFIG: start the local cluster with 'make cluster-up', or set KUBECONFIG to another one"

# image NAME prints the reference of an image that `make images` built.
image() {
	local line
	line="$(grep -s "^$1=" .cluster/images/images.env)" || fail "no image $1 in .cluster/images/images.env: run 'make images' first"
	echo "${line#*=}"
}

# apply DIR applies a kustomization, server-side. Right after a CRD was made or changed the API server does not know its
# kind yet, or answers 503 for a few seconds: only that is tried again, for at most 60 s.
apply() {
	local out until=$((SECONDS + 60))
	while ! out="$(k apply --server-side --force-conflicts --field-manager=callgate-install -k "$1" 2>&1)"; do
		case $out in
		*ServiceUnavailable* | *"no matches for kind"* | *"could not find the requested resource"*)
			[ $SECONDS -lt $until ] || fail "apply $1 did not succeed within 60 s: $out"
			echo "  the API server is not ready for the new kinds yet, trying again in 2 s"
			sleep 2
			;;
		*) fail "apply $1: $out" ;;
		esac
	done
	echo "  $(grep -c " serverside-applied\$" <<<"$out") objects applied"
}

# wait_for_calls waits until calls are taken. The controller refuses those that are not at least 10 s younger than the last
# change of what stamps requesters and approvers: an API server may take that long to follow such a change. Two seconds more, because
# time stamps are whole seconds.
wait_for_calls() {
	local changed left
	changed="$(k get mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings \
		--show-managed-fields -o go-template='{{range .items}}{{if or (eq .metadata.name "callgate-stamp") (eq .metadata.name "callgate-protect") (eq .metadata.name "callgate-stamp-approvals") (eq .metadata.name "callgate-protect-approvals")}}{{.metadata.creationTimestamp}} {{range .metadata.managedFields}}{{.time}} {{end}}{{end}}{{end}}' |
		grep -o '[0-9-]*T[0-9:]*Z' | sort | tail -n 1)"
	[ -n "$changed" ] || fail "the admission policies callgate-stamp and callgate-protect are not in the cluster"
	left=$(($(date -d "$changed" +%s) + 12 - $(date +%s)))
	if [ $left -gt 0 ]; then
		echo "  $left s until calls are taken: who asked must be stamped by a rule that is in force for 10 s"
		sleep "$left"
	fi
}
