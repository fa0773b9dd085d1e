#!/bin/bash
# A machine within this machine: namespaces of its own, and systemd as their first process. See machine.py.
#
#   machine.sh boot STATE NAME     systemd's cgroups are those below NAME; ends when systemd does
#
# What systemd does to a machine as it boots stays in here: it sets kernel parameters, mounts controllers that nobody has
# mounted, makes the tmpfs of cgroup version 1 read-only, and starts whatever units it finds.
set -euo pipefail

boot() { # from outside
    local point kind options file
    while read -r _ point kind options _; do
        if [[ $kind == cgroup && ! ,$options, =~ ,(name=systemd|cpu|cpuacct), ]]; then
            mkdir "$point/$2" # for runtimes of containers
            for file in cpuset.cpus cpuset.mems; do [[ ! -e $point/$file ]] || cat "$point/$file" >"$point/$2/$file"; done
        elif [[ $kind == cgroup2 || $kind == cgroup ]]; then
            mkdir "$point/$2"
            if grep -qw cpu "$point/cgroup.controllers" 2>/dev/null; then echo +cpu >"$point/cgroup.subtree_control"; fi
            echo 0 >"$point/$2/cgroup.procs"
        fi
    done </proc/mounts
    exec unshare --pid --mount --net --ipc --uts --fork --kill-child=SIGKILL bash "$0" init "$1"
}

init() { # within
    local state=$1 point kind options device
    mount --make-rprivate /
    mount -t proc proc /proc
    mount --bind /proc/sys /proc/sys
    mount --bind /proc/sys/net /proc/sys/net # of this network namespace
    mount -o remount,bind,ro /proc/sys

    mkdir "$state"/{dev,cgroup,units,docker,containerd,empty}
    mount -t tmpfs -o mode=755 tmpfs "$state/dev"
    for device in null zero full random urandom tty net/tun; do
        mkdir -p "$(dirname "$state/dev/$device")"
        touch "$state/dev/$device"
        mount --bind "/dev/$device" "$state/dev/$device"
    done
    mkdir "$state"/dev/{pts,shm}
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$state/dev/pts"
    mount -t tmpfs tmpfs "$state/dev/shm"
    ln -s pts/ptmx "$state/dev/ptmx"
    ln -s /proc/self/fd "$state/dev/fd"
    for device in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${device#*:}" "$state/dev/${device%:*}"; done
    mount --rbind "$state/dev" /dev

    mount --rbind /sys/fs/cgroup "$state/cgroup"
    mount -t sysfs sysfs /sys
    if [[ $(stat -f -c %T "$state/cgroup") == tmpfs ]]; then # version 1: one mount below it for each hierarchy
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
        while read -r _ point kind options _; do
            [[ $kind == cgroup* && $point == "$state/cgroup/"* ]] || continue
            mkdir "/sys/fs/cgroup/${point##*/}"
            mount --bind "$point" "/sys/fs/cgroup/${point##*/}"
        done </proc/mounts
        awk 'NR == 1 || $2 > 0' /proc/cgroups >"$state/controllers" # or systemd would mount the others
        mount --bind "$state/controllers" /proc/cgroups
    else
        mount --rbind "$state/cgroup" /sys/fs/cgroup
    fi
    umount -l "$state/cgroup"

    for point in etc var usr/local; do
        mkdir -p "$state/upper/$point" "$state/scratch/$point"
        mount -t overlay -o "lowerdir=/$point,upperdir=$state/upper/$point,workdir=$state/scratch/$point" overlay "/$point"
    done
    rm -rf /etc/systemd/system /var/lib/{docker,containerd} /etc/{docker,containerd,cni}
    mkdir -p /etc/systemd/system /var/lib/{docker,containerd}
    for point in docker containerd; do # overlayfs does not stand on overlayfs
        mount --bind "$state/$point" "/var/lib/$point"
    done
    mount -t tmpfs -o mode=755 tmpfs /run

    # None of the units that are installed, only targets that units name by default.
    printf '[Unit]\nDefaultDependencies=no\n' | tee "$state"/units/{sysinit,basic,shutdown}.target >/dev/null
    printf '[Unit]\nRequires=basic.target\nAfter=basic.target\n' >"$state/units/multi-user.target"
    mount --bind "$state/units" /usr/lib/systemd/system
    for point in generators environment-generators; do
        mount --bind "$state/empty" "/usr/lib/systemd/system-$point"
    done
    hostname slicepilot-test
    ip link set lo up
    export container=test
    exec /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=null --show-status=no
}

"$@"
