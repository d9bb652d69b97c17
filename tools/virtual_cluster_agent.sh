#!/usr/bin/env bash
# Open MPI's remote shell on a virtual cluster: called as `AGENT HOST COMMAND`, where HOST is a network namespace.
set -euo pipefail
host=$1
shift
# shellcheck disable=SC2016  # the inner shell expands these
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && eval "$*"' "$host" "$@"
