#!/usr/bin/env bash
# Runs a pinned development tool: hack/tool.sh NAME [ARGS...]
#
# The tools are the `tool` lines of hack/tools/go.mod, and those that have a module of their own below it, because their
# dependencies do not go together (hack/tools/helm3, hack/tools/helm4). Each is built once per change of that module or of Go (a linter
# refuses code of a Go newer than the one it was built with) and kept outside the repository, so that a fresh clone on
# the same machine starts in seconds. With no ARGS but `--path` it prints where the binary is.
set -euo pipefail

if [ $# -lt 1 ]; then
	echo "usage: hack/tool.sh NAME [ARGS...]   (or: hack/tool.sh NAME --path)" >&2
	exit 2
fi
name=$1
shift

module="$(cd "$(dirname "${BASH_SOURCE[0]}")/tools" && pwd)"
if [[ $name != */* ]] && [ -f "$module/$name/go.mod" ]; then
	module="$module/$name"
	package="$(cd "$module" && go list tool)"
else
	package="$(cd "$module" && go list tool | grep "/$name\$" || true)"
fi
if [ -z "$package" ]; then
	echo "hack/tool.sh: no tool named $name in hack/tools/go.mod; there are:" >&2
	(cd "$module" && go list tool | sed 's|.*/|  |' && ls -d */go.mod | sed 's|\(.*\)/go.mod|  \1|') >&2
	exit 2
fi

key="$({ cat "$module/go.mod" "$module/go.sum"; cd "$module" && go env GOVERSION GOOS GOARCH; } | sha256sum | cut -c1-16)"
dir="${XDG_CACHE_HOME:-$HOME/.cache}/callgate/tools-$key"
binary="$dir/$name"

if [ ! -x "$binary" ]; then
	mkdir -p "$dir"
	# Two targets of one make -j may want the same tool: the second waits and then finds it.
	exec 9>"$dir/.lock"
	flock 9
	if [ ! -x "$binary" ]; then
		case $name in
		golangci-lint*) echo "building $name (first time only, up to 5 minutes on two cores)" >&2 ;;
		helm*) echo "building $name (first time only, about two minutes on two cores)" >&2 ;;
		*) echo "building $name (first time only, about half a minute)" >&2 ;;
		esac
		# The name appears only when the binary is whole; an interrupted build leaves nothing that looks finished.
		(cd "$module" && GOFLAGS= CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$binary.tmp" "$package")
		mv "$binary.tmp" "$binary"
	fi
	exec 9>&-
fi

if [ "${1:-}" = --path ]; then
	echo "$binary"
	exit 0
fi
exec "$binary" "$@"
