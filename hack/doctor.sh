#!/usr/bin/env bash
# Runs callgate doctor as a Job in the cluster of $KUBECONFIG, with the images that `make images` built, follows its log,
# removes it and all it made, and exits as it did.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/kube.sh

controller="$(image CONTROLLER)"
runner="$(image RUNNER)"
mkdir -p .cluster
# As docs/doctor.md says it for any cluster.
k kustomize config/doctor |
	sed -e "s,callgate.dev/controller:dev,$controller," -e "s,callgate.dev/runner:dev,$runner," >.cluster/doctor.yaml
! grep ':dev' .cluster/doctor.yaml >&2 || fail "config/doctor names an image that this script does not know"

remove() {
	k delete -f .cluster/doctor.yaml --ignore-not-found --timeout=120s >/dev/null ||
		echo "doctor.sh: namespace callgate-doctor is not gone after 120 s: kubectl delete -k config/doctor" >&2
}
# What a run left that was killed.
remove
trap remove EXIT
k apply -f .cluster/doctor.yaml >/dev/null

n() { k -n callgate-doctor "$@"; }
why() {
	n get pods >&2 || true
	n get events --field-selector=type=Warning >&2 || true
	fail "$1; above are the pods of namespace callgate-doctor and what was said of them"
}
# Started means ready or already over: a Job's pod has no probe.
n wait pod -l job-name=doctor --for=create --timeout=30s >/dev/null || why "the doctor's Job has no pod after 30 s"
for ((until = SECONDS + 120; ; )); do
	case "$(n get pods -l job-name=doctor -o jsonpath='{.items[*].status.phase}')" in
	Running | Succeeded | Failed) break ;;
	esac
	[ $SECONDS -lt $until ] || why "the doctor did not start within 120 s"
	sleep 1
done
# At most as long as the Job may last, and without k's bound on a request.
timeout 620 "$KUBECTL" -n callgate-doctor logs -f job/doctor || why "the doctor's log could not be followed to its end"
for ((until = SECONDS + 60; ; )); do
	code="$(n get pods -l job-name=doctor -o jsonpath='{.items[*].status.containerStatuses[*].state.terminated.exitCode}')"
	[ -z "$code" ] || break
	[ $SECONDS -lt $until ] || why "the doctor did not end within 60 s of its log's end"
	sleep 1
done
exit "$code"
