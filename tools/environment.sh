#!/usr/bin/env bash
# Builds a virtual environment with an editable installation of hpcgnn and exactly one MPI. `make env` calls it.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tools/environment.sh [-p PYTHON] [-x EXTRAS | -b BASE] [-m auto|system|mpich] DIRECTORY

  -p PYTHON   the interpreter to build from, 3.11 or later (default: python3)
  -x EXTRAS   extras of setup.cfg, separated by commas (default: none)
  -m auto     the system's MPI if two ranks can be started with it, else PyPI's mpich (default)
  -m system   the system's MPI, or an error
  -m mpich    PyPI's mpich
  -b BASE     another environment of this script, from which all packages are taken but hpcgnn, mpi4py and the MPI: a second
              environment with another MPI needs neither the downloads nor the disk of the first (not with -x)

Installs the versions in constraints.txt, torch first. pip's own variables choose where from; for example
PIP_EXTRA_INDEX_URL with the index of PyTorch's CPU builds spares the CUDA libraries.
TEXT
}

fail() {
    echo "environment.sh: $*" >&2
    exit 1
}

python=python3 extras='' base='' mpi=auto
while getopts :hp:x:m:b: option; do
    case $option in
        h) usage; exit 0 ;;
        p) python=$OPTARG ;;
        x) extras=[$OPTARG] ;;
        m) mpi=$OPTARG ;;
        b) base=$OPTARG ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[[ $# -eq 1 && ( -z $base || -z $extras ) && $mpi =~ ^(auto|system|mpich)$ ]] || { usage >&2; exit 2; }
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

create() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "needs Python 3.11 or later, and $python is $("$python" --version 2>&1): name another one with PYTHON="
    "$python" -m venv "$venv" || fail "$python cannot build virtual environments (Debian: apt-get install python3-venv)"
}

install_package() {
    local torch
    torch=$(grep '^torch==' "$root/constraints.txt")
    echo "installing $torch"
    pip install -q "$torch"
    echo "installing hpcgnn$extras and its dependencies"
    pip install -q -c "$root/constraints.txt" setuptools wheel
    # Editable, so that edited files take effect; not isolated, so that the build needs no second download.
    pip install -q -c "$root/constraints.txt" --no-build-isolation -e "$root$extras"
}

# mpi4py finds the MPI that lies beside it, so the second environment has one of its own.
layer_over_base() {
    local other own
    other=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    [[ $(basename "$(dirname "$other")") == $(basename "$(dirname "$own")") ]] || fail "$base has another Python than $venv"
    echo "installing hpcgnn over the packages of $base"
    echo "$other" >"$own/base.pth"
    pip install -q -c "$root/constraints.txt" --no-deps --upgrade setuptools wheel
    pip install -q -c "$root/constraints.txt" --no-deps --ignore-installed mpi4py
    pip install -q --no-build-isolation --no-deps -e "$root"
}

two_ranks_start() {
    timeout 60 "$venv/bin/hpcgnn" launch -n 2 -- "$venv/bin/python" -c \
        'from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.size != 2)' </dev/null
}

install_mpi() {
    # mpi4py prefers an mpich inside its environment, which the system's launcher cannot start: keep exactly one MPI.
    pip uninstall -q -y mpich 2>/dev/null || true
    if [[ $mpi != mpich ]] && two_ranks_start >/dev/null 2>&1; then
        return
    fi
    [[ $mpi != system ]] || fail "found no system MPI that mpi4py can load and that starts two ranks"
    echo "installing PyPI's mpich"
    pip install -q -c "$root/constraints.txt" --ignore-installed mpich
    two_ranks_start || fail "two ranks do not start with PyPI's mpich"
}

[[ -x $venv/bin/python ]] || create
if [[ -n $base ]]; then layer_over_base; else install_package; fi
install_mpi
"$venv/bin/python" -c 'from mpi4py import MPI; print("MPI:", MPI.Get_library_version().splitlines()[0].rstrip("\0"))'
