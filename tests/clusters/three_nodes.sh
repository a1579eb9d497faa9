#!/usr/bin/env bash
# A real Slurm of three nodes on one machine: n1, n2, n3, each a network namespace with an address of its own, and the host
# "login" with the controller. Nothing is installed: ROOT holds Debian's packages, unpacked. Run as root by slurm_nodes.py:
#
#   unshare --mount --net --pid --uts --fork --kill-child --mount-proc bash three_nodes.sh ROOT WORK [SHARED FOLDER …]
#
# Prints "ready" and stays until it is killed, with everything that it has started.
set -Eeuo pipefail
ROOT=$1 WORK=$2
export SHARED="${*:2}" # WORK, and other folders that are on a disk which all nodes see
LIBRARIES=$ROOT/usr/lib/$(uname -m)-linux-gnu
export LD_LIBRARY_PATH=$LIBRARIES/slurm-wlm:$LIBRARIES PATH=$ROOT/usr/bin:$ROOT/usr/sbin:$PATH
export SLURM_CONF=$WORK/slurm.conf

# Hosts: a bridge, and a pair of interfaces for each node. A name resolves only where some interface is not the loopback.
network() {
    local i
    mount -t tmpfs tmpfs /run
    mkdir /run/netns
    printf '127.0.0.1 localhost\n10.77.0.254 login\n10.77.0.1 n1\n10.77.0.2 n2\n10.77.0.3 n3\n' >"$WORK/hosts"
    mount --bind "$WORK/hosts" /etc/hosts
    hostname login
    ip link set lo up
    ip link add cluster type bridge
    ip addr add 10.77.0.254/24 dev cluster
    ip link set cluster up
    for i in 1 2 3; do
        ip netns add "n$i"
        ip link add "to_n$i" type veth peer name eth0 netns "n$i"
        ip link set "to_n$i" master cluster up
        ip -n "n$i" addr add "10.77.0.$i/24" dev eth0
        ip -n "n$i" link set eth0 up
        ip -n "n$i" link set lo up
    done
}

settings() {
    cat >"$SLURM_CONF" <<CONF
ClusterName=toy
SlurmctldHost=login(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$WORK/munge.socket
CredType=cred/munge
PluginDir=$LIBRARIES/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=20
KillWait=15
SlurmctldTimeout=30
SchedulerParameters=sched_interval=1,batch_sched_delay=1
StateSaveLocation=$WORK/state
SlurmdSpoolDir=$WORK/spool-%n
SlurmdPidFile=$WORK/slurmd-%n.pid
SlurmctldPidFile=$WORK/slurmctld.pid
SlurmdLogFile=$WORK/slurmd-%n.log
SlurmctldLogFile=$WORK/slurmctld.log
NodeName=n[1-3] CPUs=4 RealMemory=16000 State=UNKNOWN
PartitionName=toy Nodes=n[1-3] Default=YES MaxTime=60 State=UP OverSubscribe=NO
CONF
}

# own_folders: a node's /tmp and /dev/shm are its own; what all nodes share is seen through.
own_folders() {
    local shared
    mkdir -p /run/shared
    for shared in $SHARED; do
        mkdir -p "/run/shared$shared"
        mount --bind "$shared" "/run/shared$shared"
    done
    mount -t tmpfs tmpfs /tmp
    mount -t tmpfs tmpfs /dev/shm
    for shared in $SHARED; do
        mkdir -p "$shared"
        mount --bind "/run/shared$shared" "$shared"
    done
}

# modules: a function `module` in login shells, where clusters have theirs; proxy/default sets the proxy, as on clusters whose
# nodes reach the outside by one. The proxy answers every request with 403, as it does for hosts of the cluster.
modules() {
    cp -r /etc/profile.d "$WORK/profile.d"
    cat >"$WORK/profile.d/modules.sh" <<'CONF'
module() {
    case $2 in
    proxy/default) export http_proxy=http://10.77.0.254:3128 HTTP_PROXY=http://10.77.0.254:3128 ;;
    toy/*) export TOY_MODULE=$2 ;;
    *) echo "ERROR: Unable to locate a modulefile for '$2'" >&2 && return 0 ;; # as older ones do
    esac
    export LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}$2
}
CONF
    mount --bind "$WORK/profile.d" /etc/profile.d
    python3 -c 'import http.server
class Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_error(403)
    do_POST = do_CONNECT = do_GET
http.server.ThreadingHTTPServer(("10.77.0.254", 3128), Proxy).serve_forever()' 2>"$WORK/proxy.log" &
}

# clients: sbatch and the others as they are where Slurm is installed: they find their libraries by themselves.
clients() {
    local program
    mkdir "$WORK/bin"
    for program in "$ROOT"/usr/bin/s*; do
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$LD_LIBRARY_PATH" "$program" >"$WORK/bin/${program##*/}"
        chmod +x "$WORK/bin/${program##*/}"
    done
}

daemons() {
    local i
    head -c 1024 /dev/urandom >"$WORK/munge.key"
    chmod 400 "$WORK/munge.key"
    munged --force --foreground --num-threads 4 --socket "$WORK/munge.socket" --key-file "$WORK/munge.key" \
        --pid-file "$WORK/munge.pid" --log-file "$WORK/munge.log" --seed-file "$WORK/munge.seed" &
    until [[ -S $WORK/munge.socket ]]; do sleep 0.05; done
    slurmctld-wlm -D >"$WORK/slurmctld.out" 2>&1 &
    until scontrol ping 2>/dev/null | grep -q UP; do sleep 0.1; done
    for i in 1 2 3; do
        # Not `ip netns exec`: it mounts another /sys, and slurmd's plugin for cgroups fails there.
        nsenter "--net=/run/netns/n$i" unshare --uts --mount bash -Eeuo pipefail -c "$(declare -f own_folders)
            own_folders; hostname n$i; exec slurmd-wlm -D -N n$i -d $ROOT/usr/sbin/slurmstepd-wlm" >"$WORK/slurmd-n$i.out" 2>&1 &
    done
    until [[ $(sinfo --noheader --states idle --format %D 2>/dev/null) == 3 ]]; do sleep 0.1; done
}

mkdir -p "$WORK/state" "$WORK"/spool-n{1,2,3}
chmod 700 "$WORK"
network
settings
modules
clients
daemons
printf 'ready\n'
wait
