#!/bin/bash
# UPFs as an operator's own scripts would start them: network namespaces by ip(8), cgroups by mkdir, programs by exec.
# Nothing of the testbed has a part in it but the programs upf, smf, load and sink.
#
#   foreign.sh up PREFIX COUNT        network, cgroups, UPFs, one PFCP session each
#   foreign.sh upf PREFIX I           start (or start again) UPF I
#   foreign.sh netns PREFIX I         make the network namespace of UPF I, with its links
#   foreign.sh network PREFIX COUNT   network alone, for UPFs that somebody else starts
#   foreign.sh sessions PREFIX COUNT  one PFCP session each
#   foreign.sh load PREFIX COUNT S MBPS   send for S seconds, MBPS into each slice; prints what load and sink counted
#   foreign.sh down PREFIX COUNT
#
# SESSIONS=2 in the environment gives every UPF so many sessions, each of another S-NSSAI and with another UE.
# With HERE=1 radio and data network are where this runs, not in namespaces of their own. KIND=eupf or open5gs starts
# another program, which PROGRAM names, in place of the project's UPF; XDP says how eUPF is attached, native or generic.
# WITHIN is a command that the UPF is started by, such as unshare(1) with its options.
# BYTES is the size of the packets that are sent. GROUP is the CPU cgroup of all UPFs, in place of one for each.
# With TOGETHER=1 all UPFs are in the network namespace of the first, with
# addresses of their own at its N3 and N4, a TUN device each, and one N6.
set -euo pipefail
BIN=${SLICEPILOT_BIN:?folder of the programs} STATE=${STATE:?folder for logs}
SESSIONS=${SESSIONS:-1} TOGETHER=${TOGETHER:-}
what=$1 p=$2

root() { # of the hierarchy with the cpu controller
    awk '$3 == "cgroup" && ("," $4 ",") ~ /,cpu,/ {print $2; exit}' /proc/mounts | grep . ||
        awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts
}
group() { echo "${GROUP:-$(root)/$p/upf$1}"; }
home() { echo "$p-upf${TOGETHER:-$1}"; } # network namespace of UPF $1; then its and the gNB's address, N3 or N4 by $2
upf_at() { if [ "$TOGETHER" ]; then echo "10.$2.1.$(($1 + 1))"; else echo "10.$2.$1.2"; fi; }
gnb_at() { if [ "$TOGETHER" ]; then echo "10.$2.1.250"; else echo "10.$2.$1.1"; fi; }
in_ns() { local ns=$1; shift; if [ "${HERE:-}" ]; then "$@"; else ip netns exec "$ns" "$@"; fi; }
in_ns_alone() { local ns=$1; shift; if [ "${HERE:-}" ]; then exec setsid "$@"; else exec setsid ip netns exec "$ns" "$@"; fi; }

network() {
    local i ns
    for ns in "$p-ran" "$p-dn"; do ip netns add "$ns"; ip -n "$ns" link set lo up; done
    ip -n "$p-dn" link add br0 type bridge
    ip -n "$p-dn" addr add 10.213.0.1/24 dev br0
    ip -n "$p-dn" link set br0 up
    for ((i = 1; i <= (TOGETHER ? 1 : $1); i++)); do namespace "$i"; done
    for ((i = 2; i <= (TOGETHER ? $1 : 0); i++)); do
        ip -n "$p-upf1" addr add "$(upf_at "$i" 210)/24" dev n3
        ip -n "$p-upf1" addr add "$(upf_at "$i" 211)/24" dev n4
        ip -n "$p-dn" route replace "10.61.$i.0/24" via 10.213.0.2
    done
}

namespace() { # of one UPF, with its links
    local i=$1 ns="$p-upf$1" dev
    # A namespace that was removed lives on, with its links, while somebody has a socket in it.
    for _ in $(seq 100); do [ -e "/run/netns/$p-ran" ] && in_ns "$p-ran" ip link show "n3-$i" >/dev/null 2>&1 || break; sleep 0.05; done
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    in_ns "$ns" sh -c 'cd /proc/sys/net/ipv4; echo 1 >ip_forward; echo 0 >conf/all/rp_filter; echo 0 >conf/default/rp_filter'
    ip -n "$ns" link add n3 mtu 1600 type veth peer name "n3-$i" mtu 1600 netns "$p-ran"
    ip -n "$ns" link add n4 type veth peer name "n4-$i" netns "$p-ran"
    ip -n "$ns" link add n6 type veth peer name "n6-$i" netns "$p-dn"
    ip -n "$p-dn" link set "n6-$i" master br0 up
    ip -n "$ns" addr add "$(upf_at "$i" 210)/24" dev n3
    ip -n "$ns" addr add "$(upf_at "$i" 211)/24" dev n4
    ip -n "$ns" addr add "10.213.0.$((i + 1))/24" dev n6
    ip -n "$p-ran" addr add "$(gnb_at "$i" 210)/24" dev "n3-$i"
    ip -n "$p-ran" addr add "$(gnb_at "$i" 211)/24" dev "n4-$i"
    for dev in n3 n4 n6; do ip -n "$ns" link set "$dev" up; done
    for dev in "n3-$i" "n4-$i"; do ip -n "$p-ran" link set "$dev" up; done
    ip -n "$p-dn" route replace "10.61.$i.0/24" via "10.213.0.$((i + 1))"
}

upf() {
    local ns="$p-upf$1" group folder
    group=$(group "$1")
    mkdir -p "$group"
    if [ -e "$group/cgroup.controllers" ]; then # version 2 hands controllers down one level at a time
        for folder in "$(root)" "$(root)/$p"; do echo +cpu >"$folder/cgroup.subtree_control"; done
    fi
    local command=()
    program "$1"
    (
        cd "$STATE"
        echo 0 >"$group/cgroup.procs"
        exec setsid ip netns exec "$(home "$1")" ${WITHIN:-} "${command[@]}" >>"$STATE/$ns.out" 2>>"$STATE/$ns.log" </dev/null
    ) &
    echo $! >"$STATE/$ns.pid"
}

program() { # what to run, into "command"
    case ${KIND:-} in
    eupf) # pins its maps, in a file system that is seen by nobody else
        command=(sh -c 'mount -t bpf bpf /sys/fs/bpf && exec "$@"' sh "$PROGRAM" --iface n3 --iface n6 --attach "${XDP:-native}"
            --n3addr "10.210.$1.2" --paddr "10.211.$1.2:8805" --nodeid "10.211.$1.2" --aaddr 127.0.0.1:8080 --maddr 127.0.0.1:9090)
        ;;
    open5gs) # which wants its TUN device made, and these keys from 2.7 on
        local ns="$p-upf$1"
        ip -n "$ns" tuntap add name ogstun mode tun
        ip -n "$ns" addr add "10.61.$1.1/24" dev ogstun
        ip -n "$ns" link set ogstun up
        cat >"$STATE/$ns.yaml" <<-END
		logger: {level: info}
		global: {max: {ue: 64}}
		upf:
		  pfcp: {server: [{address: 10.211.$1.2}]}
		  gtpu: {server: [{address: 10.210.$1.2}]}
		  session: [{subnet: 10.61.$1.0/24, gateway: 10.61.$1.1, dnn: internet, dev: ogstun}]
		END
        command=("$PROGRAM" -c "$STATE/$ns.yaml")
        ;;
    *) command=("$BIN/upf" --n4 "$(upf_at "$1" 211)" --n3 "$(upf_at "$1" 210)" --tun "tun${TOGETHER:+$1}" --ue-pool "10.61.$1.0/24" --burn-ns "${BURN_NS:-0}") ;;
    esac
}

sessions() {
    local i k list=()
    for ((i = 1; i <= $1; i++)); do
        list+=(--upf "$(upf_at "$i" 211)")
        for ((k = 0; k < SESSIONS; k++)); do
            list+=(--session "upf=$(upf_at "$i" 211),ue=10.61.$i.$((k + 2)),teid=$((i + 100 * k)),n3=$(upf_at "$i" 210),gnb=$(gnb_at "$i" 210),gnb-teid=$((i + 100 * k)),qfi=$((9 - k)),sst=1,sd=000${k}0$i")
        done
    done
    in_ns_alone "$p-ran" "$BIN/smf" --n4 0.0.0.0:8805 "${list[@]}" >"$STATE/smf.out" 2>"$STATE/smf.log" </dev/null &
    echo $! >"$STATE/smf.pid"
    for _ in $(seq 100); do
        [ "$(grep -c '"op":"establish".*"ok":true' "$STATE/smf.out")" -ge "$(($1 * SESSIONS))" ] && return
        sleep 0.05
    done
    echo "no sessions: $(tail -n 3 "$STATE/smf.out" "$STATE/smf.log")" >&2
    return 1
}

load() {
    local i k list=()
    for ((i = 1; i <= $1; i++)); do
        for ((k = 0; k < SESSIONS; k++)); do
            list+=(--flow "kind=cbr,rate=$3,from=$(gnb_at "$i" 210),to=$(upf_at "$i" 210),teid=$((i + 100 * k)),qfi=$((9 - k)),ue=10.61.$i.$((k + 2)),dst=10.213.0.1:6000,name=slice$i-$k${BYTES:+,bytes=$BYTES}")
        done
    done
    # --foreground: who ends this process group ends the sink with it, which would be in the next one's way.
    in_ns "$p-dn" timeout --foreground -s INT "$(($2 + 1))" "$BIN/sink" --listen 10.213.0.1:6000 --json >"$STATE/sink.out" 2>"$STATE/sink.log" &
    in_ns "$p-ran" "$BIN/load" "${list[@]}" --duration "$2s" --json >"$STATE/load.out" 2>"$STATE/load.log"
    wait
}

down() {
    local i file
    for file in "$STATE"/*.pid; do [ -e "$file" ] && kill "$(cat "$file")" 2>/dev/null || true; done
    sleep 0.3
    for file in "$STATE"/*.pid; do [ -e "$file" ] && kill -9 "$(cat "$file")" 2>/dev/null || true; done
    for ((i = 1; i <= $1; i++)); do
        ip netns del "$p-upf$i" 2>/dev/null || true
        rmdir "$(group "$i")" 2>/dev/null || true
    done
    for i in ran dn; do ip netns del "$p-$i" 2>/dev/null || true; done
    rmdir "$(root)/$p" 2>/dev/null || true
}

case $what in
up)
    network "$3"
    for ((i = 1; i <= $3; i++)); do upf "$i"; done
    sessions "$3"
    ;;
network) network "$3" ;;
sessions) sessions "$3" ;;
upf) upf "$3" ;;
netns) namespace "$3" ;;
load) load "$3" "$4" "$5" ;;
down) down "$3" ;;
esac
