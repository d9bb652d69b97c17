#!/usr/bin/env bash
# Starts MPI ranks with the flags that the MPI at hand needs. Used by the Makefile, the tests and jobs/mpirun.sh.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tools/mpiexec.sh -n RANKS [-t THREADS] [-N RANKS_PER_NODE] [-f HOSTFILE] [-V] COMMAND [ARGUMENT ...]

  -n RANKS            how many ranks
  -t THREADS          OpenMP threads of each rank (default: OMP_NUM_THREADS, else the cores divided by the ranks)
  -N RANKS_PER_NODE   the nodes belong to this job: place so many ranks on each and bind each to THREADS cores.
                      Without -N nothing is bound, because two bound runs on a shared machine would fight for the
                      same cores.
  -f HOSTFILE         the nodes, one a line, for a run on several of them (same as this one; needs -N)
  -V                  onto the hosts of tools/virtual_cluster, which calls this: Open MPI alone can do that

The launcher is $MPIEXEC if set, else the `mpiexec` beside COMMAND (PyPI's mpich in COMMAND's virtual environment), else
the one on PATH: it must belong to the library that mpi4py loads, and mpi4py prefers its own environment's.
Open MPI and MPICH (Hydra) are known. More flags: OMPI_MCA_* or HYDRA_* in the environment.
TEXT
}

fail() {
    echo "mpiexec.sh: $*" >&2
    exit 2
}

is_count() { [[ $1 =~ ^[1-9][0-9]*$ ]]; }

# Physical cores that this process may use. `nproc` alone would answer with OMP_NUM_THREADS where that is set.
count_cores() {
    local allowed physical
    allowed=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
    physical=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l) || physical=$allowed
    echo $((physical > 0 && physical < allowed ? physical : allowed))
}

find_launcher() {
    local program directory
    program=$(command -v "$1") || fail "there is no command $1"
    directory=$(dirname "$program")
    if [[ -n ${MPIEXEC:-} ]]; then
        echo "$MPIEXEC"
    elif [[ -x $directory/mpiexec && ! $directory/mpiexec -ef $(command -v mpiexec) ]]; then
        echo "$directory/mpiexec"
    else
        command -v mpiexec || command -v mpirun || fail "found no mpiexec: install an MPI, or 'pip install mpich'"
    fi
}

# Prints Open MPI's flags, one a line.
open_mpi_flags() {
    [[ $(id -u) -ne 0 ]] || echo --allow-run-as-root
    [[ -z $hostfile ]] || printf '%s\n' --hostfile "$hostfile"
    local cores_each=''
    if [[ $bind == yes ]]; then
        cores_each=:PE=$threads
        printf '%s\n' --bind-to core
    else
        printf '%s\n' --bind-to none
    fi
    [[ -z $per_node ]] || printf '%s\n' --map-by "ppr:$per_node:node$cores_each"
    # A rank that waits for a message would otherwise spin on the core that the sender needs.
    [[ $crowded == no ]] || printf '%s\n' --oversubscribe --mca mpi_yield_when_idle 1
    # Called by its full path, Open MPI would put its own folder before a virtual environment's on the ranks' PATH.
    [[ $virtual == no ]] || echo --noprefix
    local name
    for name in "${!OMP_@}" "${!HPCGNN_@}"; do printf '%s\n' -x "$name"; done
}

# Prints Hydra's flags, one a line; it hands on the environment by itself.
hydra_flags() {
    [[ -z $hostfile ]] || printf '%s\n' -f "$hostfile" -ppn "$per_node"
    [[ $bind == no ]] || printf '%s\n' -bind-to "core:$threads"
}

ranks='' threads=${OMP_NUM_THREADS:-} per_node='' hostfile='' virtual=no
while getopts :hn:t:N:f:V option; do
    case $option in
        h) usage; exit 0 ;;
        n) ranks=$OPTARG ;;
        t) threads=$OPTARG ;;
        N) per_node=$OPTARG ;;
        f) hostfile=$OPTARG ;;
        V) virtual=yes ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
is_count "$ranks" || fail "-n wants a number of ranks"
[[ $# -gt 0 ]] || fail "no command given"
[[ -z $per_node ]] || is_count "$per_node" || fail "-N wants a number of ranks"
[[ -z $hostfile || -n $per_node ]] || fail "-f needs -N"

cores=$(count_cores)
here=${per_node:-$ranks}
threads=${threads:-$((cores > here ? cores / here : 1))}
is_count "$threads" || fail "-t wants a number of threads"
crowded=no bind=no
if ((here * threads > cores)); then
    crowded=yes
    [[ -z $per_node ]] || echo "mpiexec.sh: $here ranks of $threads threads on $cores cores: not binding" >&2
elif [[ -n $per_node ]]; then
    bind=yes
fi

export OMP_NUM_THREADS=$threads
launcher=$(find_launcher "$1")
version=$("$launcher" --version 2>&1) || fail "$launcher --version does not work: $version"
[[ $virtual == no || $version == *Open\ MPI* || $version == *OpenRTE* ]] ||
    fail "$launcher is not Open MPI's, and only Open MPI can start ranks on a virtual cluster"
case $version in
    *Open\ MPI* | *OpenRTE* | *open-mpi*) mapfile -t flags < <(open_mpi_flags) ;;
    *HYDRA*) mapfile -t flags < <(hydra_flags) ;;
    *) flags=() ;;
esac
exec "$launcher" "${flags[@]}" -n "$ranks" "$@"
