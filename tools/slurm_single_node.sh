#!/usr/bin/env bash
# Starts a real Slurm on this machine alone, to try the job templates: munged, slurmctld and slurmd, configured in one folder.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tools/slurm_single_node.sh up DIRECTORY [GPUS]   start, wait until the node is idle, print how to use it
       tools/slurm_single_node.sh down DIRECTORY        cancel the jobs, stop the daemons, remove the folder

Needs root and Debian's slurm-wlm and munge (make deps-debian). Keeps keys, configuration, state and logs in DIRECTORY and
leaves the machine's own /etc/slurm and /etc/munge alone. Commands find this Slurm through
SLURM_CONF=DIRECTORY/slurm.conf. Accounting is off: ask `scontrol show job`, not sacct.

Jobs of the partition "urgent" preempt those of "main", which have a grace period of 20 seconds. Requeued jobs
begin again after 16 seconds, where Slurm's default is two minutes.

GPUS: the node claims to have so many, with nothing behind them: ranks find them in their environment, as real ones.
TEXT
}

fail() {
    echo "slurm_single_node.sh: $*" >&2
    exit 1
}

# The number of GPUs that Slurm can assign. It needs a device file for each, but never uses the devices.
write_gpus() {
    mkdir -p "$directory/gpus"
    for ((i = 0; i < gpus; i++)); do
        ln -s /dev/null "$directory/gpus/gpu$i"
        echo "Name=gpu File=$directory/gpus/gpu$i Flags=nvidia_gpu_env,amd_gpu_env"
    done >"$directory/gres.conf"
}

# Finds a free port of 127.0.0.1, so that several Slurms can run at the same time.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

write_configuration() {
    local node cores memory
    node=$(hostname -s)
    cores=$(nproc --all)
    memory=$(awk '/^MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
    mkdir -p "$directory"/{state,spool,log}
    (umask 077 && head -c 1024 /dev/urandom >"$directory/munge.key")
    # Containers often have no cgroups to manage, so processes are tracked without them; task/affinity does the binding.
    cat >"$directory/slurm.conf" <<TEXT
ClusterName=single
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$directory/munge.socket,cred_expire=15
CredType=cred/munge
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/slurmd.pid
SlurmctldLogFile=$directory/log/slurmctld
SlurmdLogFile=$directory/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2
ReturnToService=2
KillWait=10
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory Gres=gpu:$gpus State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP GraceTime=20
PartitionName=urgent Nodes=$node PriorityTier=2 MaxTime=INFINITE State=UP
TEXT
}

start() {
    mkdir -p "$directory" && chmod 755 "$directory"
    [[ ! -e $directory/slurm.conf ]] || fail "$directory already holds a Slurm: take it down first"
    write_gpus
    write_configuration
    munged --force --key-file="$directory/munge.key" --socket="$directory/munge.socket" \
        --pid-file="$directory/munged.pid" --log-file="$directory/log/munged" --seed-file="$directory/munge.seed"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF"
    for ((i = 0; i < 60; i++)); do
        if [[ $(sinfo -h -o %T 2>/dev/null) == idle ]]; then
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep 1
    done
    tail -n 20 "$directory"/log/* >&2
    stop
    fail "the node did not become idle within a minute"
}

stop_daemon() {
    local pid
    pid=$(cat "$directory/$1.pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    for ((i = 0; i < 100; i++)); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
}

stop() {
    timeout 10 scancel --full --state=RUNNING --user=root 2>/dev/null || true
    timeout 10 scancel --user=root 2>/dev/null || true
    for ((i = 0; i < 20; i++)); do
        [[ -n $(timeout 10 squeue -h 2>/dev/null) ]] || break
        sleep 1
    done
    stop_daemon slurmd
    stop_daemon slurmctld
    stop_daemon munged
    rm -rf "$directory"
}

[[ ${1:-} == -h ]] && { usage; exit 0; }
[[ $# -eq 2 && $1 =~ ^(up|down)$ ]] || [[ $# -eq 3 && $1 == up && $3 =~ ^[0-9]+$ ]] || { usage >&2; exit 2; }
[[ $(id -u) -eq 0 ]] || fail "this needs root"
for program in munged slurmctld slurmd sinfo; do
    command -v "$program" >/dev/null || fail "found no $program: make deps-debian"
done
directory=$(realpath -m "$2")
gpus=${3:-0}
export SLURM_CONF=$directory/slurm.conf
if [[ $1 == up ]]; then
    start
else
    [[ -e $SLURM_CONF ]] || fail "there is no Slurm in $directory"
    stop
fi
