#!/usr/bin/env bash
# Prints the folders of this repository's Go modules, one per line, the root as ".".
#
#   hack/modules.sh          the modules with code of ours
#   hack/modules.sh --all    also those below hack/cluster and hack/tools: they only pin and wrap programs of others
#                            (Kubernetes, etcd, Helm …), and compiling them a second time for a linter or a test would
#                            take minutes and find nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Not yet committed modules count; a deleted one that is still in the index does not.
git ls-files -co --exclude-standard -- go.mod '*/go.mod' | sort -u | while read -r file; do
	[ -f "$file" ] || continue
	dir="$(dirname "$file")"
	case $dir in
	hack/cluster/* | hack/tools/*) [ "${1:-}" = --all ] || continue ;;
	esac
	echo "$dir"
done
