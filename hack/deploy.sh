#!/usr/bin/env bash
# Installs Callgate into the cluster of $KUBECONFIG, with the images that `make images` built, and waits until it is ready
# to judge calls. Run again it replaces what is there. KEEP_SANDBOXES is the controller's --keep-sandboxes, if set: tests
# look whether everything is gone, and need not wait for logs that nobody reads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source hack/kube.sh

controller="$(image CONTROLLER)"
runner="$(image RUNNER)"
mkdir -p .cluster/deploy
cat >.cluster/deploy/kustomization.yaml <<YAML
# Written by hack/deploy.sh.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
sortOptions:
  order: legacy
resources:
- ../../config/default
images:
- name: callgate.dev/controller
  newName: ${controller%:*}
  newTag: ${controller##*:}
patches:
- target: {kind: Deployment, namespace: callgate-system, name: callgate-controller}
  patch: |
    - {op: test, path: /spec/template/spec/containers/0/args/0, value: "--runner-image=callgate.dev/runner:dev"}
    - {op: replace, path: /spec/template/spec/containers/0/args/0, value: "--runner-image=$runner"}
YAML
if [ -n "${KEEP_SANDBOXES:-}" ]; then
	echo "    - {op: add, path: /spec/template/spec/containers/0/args/-, value: \"--keep-sandboxes=$KEEP_SANDBOXES\"}" \
		>>.cluster/deploy/kustomization.yaml
fi

echo "  controller $controller, runner $runner"
apply .cluster/deploy

echo "  waiting for the controller to be ready"
if ! k -n callgate-system rollout status deployment/callgate-controller --timeout=180s >/dev/null; then
	k -n callgate-system get pods >&2 || true
	k -n callgate-system logs deployment/callgate-controller --tail=30 >&2 || true
	fail "the controller was not ready within 180 s; above are its pods and the end of its log"
fi

wait_for_calls
