#!/usr/bin/env bash
# One job under plain mpirun: convert a graph, partition it, train on all ranks. Run it again to go on where it stopped.
set -euo pipefail

# -- settings: edit, or set in the environment -------------------------------------------------------------------------
SOURCE=${SOURCE:-digits}                      # what `hpcgnn convert` reads: npz:FILE, pyg:NAME, ogb:NAME, rmat:..., digits
CONVERT_FLAGS=${CONVERT_FLAGS:-}              # such as --undirected --split random:0.6,0.2,0.2
RANKS=${RANKS:-4}                             # MPI ranks, one part each
RANKS_PER_NODE=${RANKS_PER_NODE:-$RANKS}      # one rank per NUMA domain is a good start
THREADS=${THREADS:-}                          # cores of each rank (empty: all cores of the node, shared out)
HOSTFILE=${HOSTFILE:-}                        # the nodes, one a line; empty: this one
DATA=${DATA:-run}                             # folder of the graph and its parts
RUN=${RUN:-run/mpirun}                        # run folder
PARTITION_FLAGS=${PARTITION_FLAGS:-}          # such as --method parmetis --objective volume
PARTITION_RANKS=${PARTITION_RANKS:-1}         # more than one: a distributed partitioner, for graphs larger than a node
TRAIN_FLAGS=${TRAIN_FLAGS:---epochs 100}      # model, sizes, learning rate: hpcgnn train --help
GPUS=${GPUS:-0}                               # of each rank: 1 or, on CPUs, 0; RANKS_PER_NODE: as many as a node has
GPU_MPI=${GPU_MPI:-auto}                      # train --gpu-mpi: auto, off, or on for an MPI that takes memory of GPUs
HPCGNN=${HPCGNN:-hpcgnn}                      # the command; .venv/bin/hpcgnn after `make env`

# -- the job -----------------------------------------------------------------------------------------------------------
usage() {
    echo "usage: [SETTING=VALUE ...] $0 [-h]"
    echo "Converts, partitions and trains. Settings and what they are now:"
    for name in SOURCE CONVERT_FLAGS RANKS RANKS_PER_NODE THREADS HOSTFILE DATA RUN PARTITION_FLAGS PARTITION_RANKS \
        TRAIN_FLAGS GPUS GPU_MPI HPCGNN; do
        echo "  $name=${!name}"
    done
}

[[ $# -eq 0 ]] || { usage; [[ $1 == -h ]]; exit; }

# A name that begins with a hyphen is no option.
[[ $DATA != -* ]] || DATA=./$DATA
[[ $RUN != -* ]] || RUN=./$RUN

# Files are named by what they are made of: another source, other flags, or another file under the source's name are another
# graph, and stand beside it.
digest() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }
file=${SOURCE#*:}
[[ -e $file ]] || file=${file%%\?*}
state=$([[ ! -f $file ]] || stat -L -c '%s %.Y' -- "$file")
name=$(tr -c 'A-Za-z0-9._\n-' _ <<<"$SOURCE")
graph=$DATA/${name:0:80}-$(digest "$SOURCE" "$CONVERT_FLAGS" "$state").h5
# Neighbouring parts share a node.
if ((RANKS > RANKS_PER_NODE && RANKS % RANKS_PER_NODE == 0)); then
    PARTITION_FLAGS="--ranks-per-node $RANKS_PER_NODE $PARTITION_FLAGS"
fi
parts=${graph%.h5}-$RANKS-$(digest "$PARTITION_FLAGS").h5

# Each thread stays on one core of its rank; `hpcgnn launch --bind` gives each rank its own cores.
export OMP_PLACES=cores OMP_PROC_BIND=close
launch=("$HPCGNN" launch --bind ${HOSTFILE:+--hostfile "$HOSTFILE"})

# One GPU a rank, NVIDIA's or AMD's. No launcher has to bind them: of those that it sees, a rank takes the one of its number on
# its node. CUDA_VISIBLE_DEVICES (AMD: ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES) may name fewer, or in another order.
device=()
if [[ $GPUS != 0 ]]; then
    device=(--device cuda --gpu-mpi "$GPU_MPI") # AMD's GPUs, too, are called cuda
    # Cray MPICH takes memory of GPUs only if it is told so. Others ignore this.
    [[ $GPU_MPI != on ]] || export MPICH_GPU_SUPPORT_ENABLED=1
fi

mkdir -p "$DATA"
# Settings with several flags are split into words on purpose.
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
