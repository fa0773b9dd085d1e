"""Who may call what, once started; found by ``tests/system_calls.py``, which makes these lists again.

Rules are inherited: what the controller starts later, publisher and supervisor among it, has its own rules on top of
the controller's, so those hold what a Python process needs to start.
"""

from __future__ import annotations

import dataclasses
import socket

from slicepilot.controller.system.bpf.pinned import ELEMENTS

from .seccomp import Only, Rules

CLONE_NEWNET = 0x40000000
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW*: uts, ipc, user, pid, net, cgroup, mount, time
_CLONE_THREAD = 0x00010000

# What any Python process with threads does: memory, files by descriptor, waiting, time, ending.
_RUNNING = """
    brk mmap munmap mremap mprotect madvise mlock munlock membarrier
    read write readv writev pread64 pwrite64 lseek close dup dup2 dup3 fcntl ioctl pipe pipe2 fstat newfstatat statx
    open openat openat2 access faccessat faccessat2 readlink readlinkat stat lstat getcwd getdents64 umask
    statfs fstatfs fsync fdatasync ftruncate fadvise64
    poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2
    futex set_robust_list get_robust_list set_tid_address rseq sched_yield restart_syscall
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack tgkill
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times
    getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid
    getrusage getrlimit prlimit64 sysinfo uname getrandom getcpu capget
    sched_getaffinity sched_getparam sched_getscheduler getpriority
    exit exit_group
"""
# Sockets that there are; which new ones there may be is a condition.
_SOCKETS = """
    bind connect getsockname getpeername getsockopt setsockopt sendto sendmsg recvfrom recvmsg shutdown
"""
_CHANGING_FILES = "unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir fchmod chmod fchmodat utimensat"
# Names of threads and of memory, and whether a capability is in the bounding set.
_PRCTL = Only(0, (15, 16, 23, 0x53564D41))


def _calls(*lists: str) -> frozenset[str]:
    return frozenset(name for words in lists for name in words.split())


def _sockets(*families: socket.AddressFamily) -> Only:
    return Only(0, tuple(int(family) for family in families))


# Never by a library's attempt, nor by an accident: whoever calls these is not the publisher any more.
_FATAL = _calls(
    "execve execveat fork vfork ptrace process_vm_readv process_vm_writev pidfd_getfd",
    "mount umount2 move_mount open_tree fsopen fsmount fspick pivot_root chroot unshare setns",
    "bpf perf_event_open userfaultfd io_uring_setup init_module finit_module delete_module kexec_load kexec_file_load",
    "open_by_handle_at add_key request_key keyctl iopl ioperm reboot swapon swapoff acct",
    "setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset",
)

PUBLISHER = Rules(
    _calls(_RUNNING, _SOCKETS, _CHANGING_FILES, "accept4 accept listen"),
    {
        "clone": Only(0, (_CLONE_THREAD,), _NEW_NAMESPACES | _CLONE_THREAD),  # threads alone
        "socket": _sockets(socket.AF_UNIX),  # libc asks a name service, if there is one, who is in a group
        "socketpair": _sockets(socket.AF_UNIX),
        "prctl": _PRCTL,
    },
    _FATAL,
)
"""It talks to everybody, so it is ended for what it never does, and started again; the rest fails with EPERM."""

ASKER = Rules(
    _calls(_RUNNING, _SOCKETS, "sendmmsg recvmmsg setitimer getitimer"),
    {
        "clone": Only(0, (_CLONE_THREAD,), _NEW_NAMESPACES | _CLONE_THREAD),
        # Netlink: libc orders addresses by what this machine has.
        "socket": _sockets(socket.AF_UNIX, socket.AF_NETLINK, socket.AF_INET, socket.AF_INET6),
        "socketpair": _sockets(socket.AF_UNIX),
        "prctl": _PRCTL,
    },
    _FATAL,
)
"""What asks a Prometheus server: it takes answers of anybody, so it is ended for what it never does."""

SUPERVISOR = Rules(
    _calls(
        _RUNNING,
        _SOCKETS,
        _CHANGING_FILES,
        "flock pidfd_open pidfd_send_signal name_to_handle_at mlockall sched_setscheduler setpriority",
    ),
    {
        "clone": Only(0, (_CLONE_THREAD,), _NEW_NAMESPACES | _CLONE_THREAD),
        "setns": Only(1, (CLONE_NEWNET,)),
        "socket": _sockets(socket.AF_UNIX, socket.AF_NETLINK),
        "prctl": _PRCTL,
    },
)
"""Nothing ends it: a supervisor that is killed restores nothing. All else fails with EPERM."""

SUPERVISOR_OF_MAPS = dataclasses.replace(SUPERVISOR, conditions={**SUPERVISOR.conditions, "bpf": Only(0, ELEMENTS)})
"""One that has maps of Cilium open: it may read and write elements of what it has, and open, make or load nothing."""

CONTROLLER = Rules(
    _calls(
        _RUNNING,
        _SOCKETS,
        _CHANGING_FILES,
        # Its children: started, given another user and a place in the schedule, confined, waited for.
        "execve fork vfork wait4 waitid kill setsid setpgid chdir fchdir close_range arch_prctl",
        "symlink symlinkat link linkat",
        "prctl seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
        "setuid setgid setresuid setresgid setgroups capset chown fchown fchownat lchown",
        "sched_setscheduler sched_setparam sched_setattr sched_getattr sched_setaffinity setpriority setrlimit",
        # The supervisor, inherited.
        "flock pidfd_open pidfd_send_signal name_to_handle_at mlockall munlockall accept4 accept listen",
        # Programs of the probe, attached anew; counters in memory that is shared with the kernel.
        "bpf",
        "memfd_create mincore msync sendfile copy_file_range splice sync_file_range fallocate truncate",
        "get_mempolicy set_mempolicy mbind timerfd_create timerfd_settime signalfd4 eventfd inotify_init1",
        "getitimer setitimer alarm pause rt_sigpending sendmmsg recvmmsg getxattr lgetxattr fgetxattr listxattr",
        "utime utimes futimesat",
    ),
    {
        "clone": Only(0, (0,), _NEW_NAMESPACES),
        "setns": Only(1, (CLONE_NEWNET,)),
        "socket": _sockets(socket.AF_UNIX, socket.AF_NETLINK, socket.AF_INET, socket.AF_INET6),
        "socketpair": _sockets(socket.AF_UNIX),
    },
)
"""Wider than it would be alone, since its children inherit it. It loads bundles of many kinds; what it never does is
debugging others, changing mounts, making namespaces, loading modules, keys, io_uring. All else fails with EPERM: a
controller that is killed moves no knobs."""

REMOVING_A_TESTBED = frozenset({"umount2"})
"""Named network namespaces are mounts."""
