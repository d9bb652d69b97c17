#!/usr/bin/env bash
# Open MPI's remote shell on a virtual cluster: called as `AGENT HOST COMMAND`, where HOST is a network namespace.
set -euo pipefail
host=$1
shift
# `ip netns exec` makes a mount namespace of its own, so this /dev/shm belongs to the virtual host, and disappears with its
# last process.
# shellcheck disable=SC2016  # the inner shell expands these
exec ip netns exec "$host" unshare --uts bash -c '
    mount -t tmpfs -o "size=$VIRTUAL_CLUSTER_SHARED_MEMORY" tmpfs /dev/shm && hostname "$0" && eval "$*"' "$host" "$@"
