#!/usr/bin/env bash
# Runs commands one after the other and says where it is: hack/steps.sh TITLE COMMAND [TITLE COMMAND]...
# Stops at the first that fails.
set -euo pipefail

count=$(($# / 2))
number=0
while [ $# -ge 2 ]; do
	number=$((number + 1))
	echo
	echo "[$number/$count] $1"
	started=$SECONDS
	if ! bash -c "$2"; then
		echo "[$number/$count] $1: FAILED after $((SECONDS - started)) s: $2" >&2
		exit 1
	fi
	echo "[$number/$count] $1: done in $((SECONDS - started)) s"
	shift 2
done
