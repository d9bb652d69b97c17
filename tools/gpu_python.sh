#!/usr/bin/env bash
# Prepares an interpreter that has torch with CUDA for hpcgnn, without a new environment. `make test-gpu` calls it.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tools/gpu_python.sh [-p PYTHON] [-w WHEELS] [-d DIRECTORY]
       tools/gpu_python.sh -f VERSION [-w WHEELS] [NAME ...]

  -p PYTHON     the interpreter, which has torch (default: python3)
  -w WHEELS     where wheels are, or are put (default: build/gpu-wheels)
  -d DIRECTORY  where packages are put that the interpreter lacks (default: build/gpu-packages/VERSION)
  -f VERSION    fetch wheels for a Python of this version (3.12) on Linux with x86-64, those that such interpreters are
                likely to lack, or the named ones; python3's pip fetches

Prints NAME=VALUE lines for `env`: PYTHONPATH, and PATH and LD_LIBRARY_PATH where an MPI came with the wheels. Installs from
WHEELS where any are there, else from the index, in the versions of constraints.txt, and nothing else: no torch, no CUDA.
Native kernels are compiled where there is a C++ compiler; without one, numba's serve on the host.
TEXT
}

fail() {
    echo "gpu_python.sh: $*" >&2
    exit 1
}

# The modules that hpcgnn and its tests import, and their dependencies, with the names of their packages where these differ.
needed=(numpy scipy numba h5py click rich markdown_it=markdown-it-py mdurl pygments=Pygments msgspec tomli_w xxhash mpi4py
    pytest iniconfig pluggy packaging xdist=pytest-xdist execnet hypothesis sortedcontainers)
fetched=(msgspec tomli_w xxhash mpi4py mpich pytest iniconfig pluggy packaging Pygments pytest-xdist execnet hypothesis
    sortedcontainers click rich markdown-it-py mdurl)
platforms=(manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux_2_12 manylinux2010 manylinux1)

root=$(cd "$(dirname "$0")/.." && pwd)
python=python3 wheels=$root/build/gpu-wheels directory='' fetch=''
while getopts :hp:w:d:f: option; do
    case $option in
        h) usage; exit 0 ;;
        p) python=$OPTARG ;;
        w) wheels=$OPTARG ;;
        d) directory=$OPTARG ;;
        f) fetch=$OPTARG ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

# Prints NAME==VERSION from constraints.txt.
pinned() {
    grep -i "^${1//_/[-_]}==" "$root/constraints.txt" || fail "constraints.txt has no version of $1"
}

fetch_wheels() {
    local names=("$@") pins=() flags=() name
    [[ ${#names[@]} -gt 0 ]] || names=("${fetched[@]}")
    [[ $fetch =~ ^3\.[0-9]+$ ]] || fail "-f needs a version of Python such as 3.12, not $fetch"
    for name in "${names[@]}"; do pins+=("$(pinned "$name")"); done
    for name in "${platforms[@]}"; do flags+=(--platform "${name}_x86_64"); done
    mkdir -p "$wheels"
    "$python" -m pip --disable-pip-version-check download -q --only-binary=:all: --no-deps --implementation cp \
        --python-version "$fetch" "${flags[@]}" -d "$wheels" "${pins[@]}"
}

# Prints the packages of the needed modules that the interpreter does not find, one on each line.
missing() {
    PYTHONPATH=$directory "$python" - "${needed[@]}" <<'TEXT'
import importlib.util, sys

for word in sys.argv[1:]:
    module, _, package = word.partition("=")
    if importlib.util.find_spec(module) is None:
        print(package or module)
TEXT
}

has_wheels() { compgen -G "$wheels/*.whl" >/dev/null; }

install_missing() {
    local names pins=() from=() name
    mapfile -t names < <(missing)
    [[ ${#names[@]} -gt 0 ]] || return 0
    for name in "${names[@]}"; do pins+=("$(pinned "$name")"); done
    if has_wheels; then from=(--no-index --find-links "$wheels"); fi
    "$python" -m pip --disable-pip-version-check install -q --no-deps --no-compile "${from[@]}" --target "$directory" \
        "${pins[@]}" >&2 || fail "$python lacks ${names[*]}: fetch wheels with \`make gpu-wheels\`, where there is a network"
}

two_ranks_start() {
    local program='from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.size != 2)'
    PYTHONPATH=$directory:$root timeout 60 "$python" -m hpcgnn launch -n 2 -t 1 -- "$python" -c "$program" </dev/null >/dev/null 2>&1
}

# Unpacks PyPI's mpich if ranks cannot be started otherwise, because pip's --target leaves out a package's lib/.
unpack_mpi() {
    local wheel mpi=$directory/mpi
    wheel=$(compgen -G "$wheels/mpich-*.whl" | head -n 1) || return 0
    if [[ ! -d $mpi ]]; then
        "$python" - "$wheel" "$mpi" <<'TEXT'
import sys, zipfile
from pathlib import Path

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        _, found, inside = name.partition(".data/data/")
        if found and not name.endswith("/"):
            target = Path(sys.argv[2], inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))
            target.chmod(0o755)
TEXT
    fi
    export PATH=$mpi/bin:$PATH LD_LIBRARY_PATH=$mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

build_native() {
    command -v "${CXX:-c++}" >/dev/null || return 0
    if compgen -G "$root/hpcgnn/kernels/_native*.so" >/dev/null; then return 0; fi
    (cd "$root" && PYTHONPATH=$directory "$python" setup.py -q build_ext --inplace) >&2 ||
        echo "gpu_python.sh: the native kernels do not compile here: numba's are used on the host" >&2
}

if [[ -n $fetch ]]; then
    fetch_wheels "$@"
    exit
fi
[[ $# -eq 0 ]] || { usage >&2; exit 2; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$python does not start"
"$python" -c 'import sys, importlib.util; sys.exit(importlib.util.find_spec("torch") is None)' ||
    fail "$python has no torch: name an interpreter with a torch built for CUDA, with PYTHON="
directory=$(realpath -m "${directory:-$root/build/gpu-packages/$version}")
mkdir -p "$directory"
install_missing
two_ranks_start || unpack_mpi
build_native
echo "PYTHONPATH=$directory:$root${PYTHONPATH:+:$PYTHONPATH}"
if [[ :$PATH: == *":$directory/mpi/bin:"* ]]; then
    echo "PATH=$PATH"
    echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
fi
