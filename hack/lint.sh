#!/usr/bin/env bash
# Lints every module with .golangci.yaml and the API types with hack/tools/kube-api-linter.yaml. All of it runs, whatever
# fails first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
linter="$(hack/tool.sh golangci-lint --path)"
api_linter="$(hack/tool.sh golangci-lint-kube-api-linter --path)"
status=0
# As the product is built; one setting everywhere also means one set of compiled packages in the cache.
export CGO_ENABLED=0
# Not in a process substitution: there a failure would look like a repository without modules.
modules="$(hack/modules.sh)"

while read -r dir; do
	echo "lint $dir"
	(cd "$dir" && "$linter" run --config "$root/.golangci.yaml" ./...) || status=1
done <<<"$modules"

echo "lint api (Kubernetes API conventions)"
"$api_linter" run --config hack/tools/kube-api-linter.yaml ./api/... || status=1

exit $status
