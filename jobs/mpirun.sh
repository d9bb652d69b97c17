#!/usr/bin/env bash
# A job for plain mpirun that converts a graph, partitions it and trains on all ranks. Run it again to resume a stopped run.
# `hpcgnn launch --print-job mpirun` prints this script.
set -euo pipefail

# -- settings: edit, or set in the environment -------------------------------------------------------------------------
SOURCE=${SOURCE:-digits}                      # source of `hpcgnn convert`: npz:FILE, pyg:NAME, ogb:NAME, rmat:..., digits
CONVERT_FLAGS=${CONVERT_FLAGS:-}              # for example --undirected --split random:0.6,0.2,0.2
RANKS=${RANKS:-4}                             # number of MPI ranks; each has one part
RANKS_PER_NODE=${RANKS_PER_NODE:-$RANKS}      # one rank for each NUMA domain is a good start
THREADS=${THREADS:-}                          # cores of each rank; empty: the cores of the node, divided by its ranks
HOSTFILE=${HOSTFILE:-}                        # file with the nodes, one in each line; empty: this node
DATA=${DATA:-run}                             # folder of the graph and its parts
RUN=${RUN:-run/mpirun}                        # run folder, which belongs to one graph
PARTITION_FLAGS=${PARTITION_FLAGS:-}          # for example --method parmetis --objective volume
PARTITION_RANKS=${PARTITION_RANKS:-1}         # above 1: partition in parallel, for graphs that do not fit into a node
TRAIN_FLAGS=${TRAIN_FLAGS:---epochs 100}      # model, sizes, learning rate: see hpcgnn train --help
GPUS=${GPUS:-0}                               # GPUs of each rank: 0 or 1; RANKS_PER_NODE is then the GPUs of a node
GPU_MPI=${GPU_MPI:-auto}                      # train --gpu-mpi: auto, off, or on for an MPI that accepts GPU memory
HPCGNN=${HPCGNN:-hpcgnn}                      # the command; .venv/bin/hpcgnn after `make env`

# -- the job -----------------------------------------------------------------------------------------------------------
usage() {
    echo "usage: [SETTING=VALUE ...] $0 [-h]"
    echo "Converts a graph, partitions it and trains. Settings and their current values:"
    for name in SOURCE CONVERT_FLAGS RANKS RANKS_PER_NODE THREADS HOSTFILE DATA RUN PARTITION_FLAGS PARTITION_RANKS \
        TRAIN_FLAGS GPUS GPU_MPI HPCGNN; do
        echo "  $name=${!name}"
    done
}

[[ $# -eq 0 ]] || { usage; [[ $1 == -h ]]; exit; }

# Arithmetic of the shell runs a command that stands in place of a number.
check_numbers() { # the smallest value, and the names of settings
    local name least=$1
    for name in "${@:2}"; do
        if [[ ! ${!name:-1} =~ ^(0|[1-9][0-9]{0,8})$ ]] || ((${!name:-1} < least)); then
            printf '%s: %s is %q: set it to a whole number from %s on\n' "$0" "$name" "${!name}" "$least" >&2
            exit 2
        fi
    done
}
check_numbers 1 RANKS RANKS_PER_NODE PARTITION_RANKS

# Commands must not take a folder whose name begins with a hyphen for an option.
[[ $DATA != -* ]] || DATA=./$DATA
[[ $RUN != -* ]] || RUN=./$RUN

# The name of a file contains a digest of everything that it was made from, so that another source, other flags, or a changed
# source file result in another file beside it.
digest() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }
file=${SOURCE#*:}
[[ -e $file ]] || file=${file%%\?*}
state=$([[ ! -f $file ]] || stat -L -c '%s %.Y' -- "$file")
name=$(tr -c 'A-Za-z0-9._\n-' _ <<<"$SOURCE")
graph=$DATA/${name:0:80}-$(digest "$SOURCE" "$CONVERT_FLAGS" "$state").h5
# Parts with many edges between them share a node.
if ((RANKS > RANKS_PER_NODE && RANKS % RANKS_PER_NODE == 0)); then
    PARTITION_FLAGS="--ranks-per-node $RANKS_PER_NODE $PARTITION_FLAGS"
fi
parts=${graph%.h5}-$RANKS-$(digest "$PARTITION_FLAGS").h5

# `hpcgnn launch --bind` gives each rank its own cores, and each thread stays on one of them.
export OMP_PLACES=cores OMP_PROC_BIND=close
launch=("$HPCGNN" launch --bind ${HOSTFILE:+--hostfile "$HOSTFILE"})

# One GPU for each rank, of NVIDIA or AMD. The launcher need not bind GPUs: of those that a rank sees, it uses the one with its
# number within the node. CUDA_VISIBLE_DEVICES (AMD: ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES) may name fewer GPUs, or change
# their order.
device=()
if [[ $GPUS != 0 ]]; then
    device=(--device cuda --gpu-mpi "$GPU_MPI") # torch calls AMD GPUs cuda, too
    # Cray MPICH accepts GPU memory only with this variable. Other MPIs ignore it.
    [[ $GPU_MPI != on ]] || export MPICH_GPU_SUPPORT_ENABLED=1
fi

mkdir -p "$DATA"
# Settings with several flags are split into words on purpose, hence the missing quotation marks.
# shellcheck disable=SC2086
[[ -e $graph ]] || "$HPCGNN" convert "$SOURCE" "$graph" $CONVERT_FLAGS
if [[ ! -e $parts ]]; then
    per_node=$((PARTITION_RANKS < RANKS_PER_NODE ? PARTITION_RANKS : RANKS_PER_NODE))
    # shellcheck disable=SC2086
    "${launch[@]}" -n "$PARTITION_RANKS" --ranks-per-host "$per_node" -- \
        "$HPCGNN" partition "$graph" "$parts" --parts "$RANKS" $PARTITION_FLAGS
fi

resume=()
[[ ! -e $RUN/config.toml ]] || resume=(--resume)
# shellcheck disable=SC2086
"${launch[@]}" -n "$RANKS" --ranks-per-host "$RANKS_PER_NODE" ${THREADS:+-t "$THREADS"} -- \
    "$HPCGNN" train "$parts" --out "$RUN" "${device[@]}" $TRAIN_FLAGS "${resume[@]}"
