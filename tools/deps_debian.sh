#!/usr/bin/env bash
# Installs the optional system parts of hpcgnn on Debian, and the compiler. Run as root; running it again changes nothing.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tools/deps_debian.sh [-h]

Installs with apt-get, as root and without questions: a C++ compiler, venv, OpenMPI, PT-Scotch, ParMETIS,
Slurm with munge for trying the job templates on one machine, iproute2 for virtual hosts, a compiler and an
emulator for ARM, on which the native kernels are tested, and SimGrid (200 MB, of which 140 are Boost's headers),
against which the cost model's network is checked.

ParMETIS is in Debian's non-free component (its licence allows research only). If that component is not enabled,
it is added as /etc/apt/sources.list.d/hpcgnn-non-free.list, from the mirror that this machine already uses.
TEXT
}

fail() {
    echo "deps_debian.sh: $*" >&2
    exit 1
}

# Base address of the repository that serves this release's main component, whichever file or format declares it.
mirror_of() {
    # shellcheck disable=SC2016  # apt-get fills in these names
    apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$1" '$1 == release && $2 == "main" { sub("/+$", "", $3); if (!found++) print $3 }'
}

has_candidate() {
    apt-cache policy "$1" | grep -q 'Candidate: [^(]'
}

enable_non_free() {
    local codename mirror
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    mirror=$(mirror_of "$codename")
    [[ -n $mirror ]] || fail "found no apt source for $codename main to take the mirror from"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $codename non-free" \
        >/etc/apt/sources.list.d/hpcgnn-non-free.list
    apt-get update -q
}

[[ ${1:-} == -h ]] && { usage; exit 0; }
[[ $# -eq 0 ]] || { usage >&2; exit 2; }
[[ $(id -u) -eq 0 ]] || fail "needs root: sudo make deps-debian"
command -v apt-get >/dev/null || fail "this is not a Debian system (no apt-get)"

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
has_candidate libparmetis-dev || enable_non_free
apt-get install -y -q --no-install-recommends \
    g++ make python3-venv \
    openmpi-bin libopenmpi-dev \
    libparmetis-dev libptscotch-dev \
    slurm-wlm munge \
    iproute2 \
    g++-aarch64-linux-gnu qemu-user \
    libsimgrid-dev
