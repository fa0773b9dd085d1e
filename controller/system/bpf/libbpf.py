"""libbpf through ctypes: open an object file, set it up, load it, attach its tracing programs, read its maps.

Nothing is pinned: programs and maps live as long as the object, and a program as long as something it is attached to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import re
from collections.abc import Callable, Iterator
from ctypes import byref, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path

from slicepilot.configs.compiled import PACKAGE, remedy

from . import libbpf_abi as abi
from .errors import ProbeError
from .libc import bpf

LIBRARY = "libbpf.so.1"
BUILD = PACKAGE / "controller" / "telemetry" / "bpf" / "build.sh"


@dataclass(frozen=True)
class RunStats:
    """Cost of a program while statistics were on (`count_run_time`)."""

    runs: int = 0
    run_time_ns: int = 0

    def __add__(self, other: RunStats) -> RunStats:
        return RunStats(self.runs + other.runs, self.run_time_ns + other.run_time_ns)


def run_stats(program: int) -> RunStats:
    """Runs of a program, by its descriptor, since it was loaded; raises OSError."""
    info = _program_info(program)
    return RunStats(info.run_cnt, info.run_time_ns)


def program_id(program: int) -> int:
    """The kernel's number of a program, by its descriptor; raises OSError."""
    return int(_program_info(program).id)


def program_name(number: int) -> str | None:
    """The name of a program by its number, at most 15 characters; None if it has gone.

    Raises:
        OSError: not permitted (CAP_SYS_ADMIN).
    """
    fd: int = _library().c.bpf_prog_get_fd_by_id(number)
    if fd == -errno.ENOENT:
        return None
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    try:
        return str(_program_info(fd).name.decode(errors="replace"))
    finally:
        os.close(fd)


def _program_info(program: int) -> abi.ProgramInfo:
    info, size = abi.ProgramInfo(), c_uint32(ctypes.sizeof(abi.ProgramInfo))
    _check(_library().c.bpf_obj_get_info_by_fd(program, byref(info), byref(size)))
    return info


class _Library:
    """The shared library, loaded once, with its messages collected instead of printed."""

    def __init__(self) -> None:
        try:
            self.c = ctypes.CDLL(LIBRARY, use_errno=True)
        except OSError as error:
            raise ProbeError(f"{LIBRARY} is missing: install libbpf 1.x (Debian and Ubuntu: libbpf1)") from error
        for name, (result, arguments) in abi.SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.messages: list[str] = []
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [c_void_p]

        def collect(level: int, template: bytes, arguments: int) -> int:
            text = c_void_p()  # as long as it has to be: a verifier's log may be of megabytes
            if level == abi.LIBBPF_WARN and libc.vasprintf(byref(text), template, c_void_p(arguments)) >= 0:
                self.messages.append(ctypes.string_at(text.value or 0).decode(errors="replace").rstrip())
                libc.free(text)
            return 0

        self._collect = abi.PRINT(collect)  # kept: libbpf calls it as long as it is loaded
        self.c.libbpf_set_print(self._collect)


@functools.cache
def _library() -> _Library:
    return _Library()


def version() -> str:
    """Version of the machine's libbpf, such as v1.3; raises ProbeError if there is none."""
    return str(_library().c.libbpf_version_string().decode())


def _check(code: int) -> None:
    if code:
        raise OSError(-code, os.strerror(-code))


class Map:
    """One map of a loaded object."""

    def __init__(self, handle: int) -> None:
        c = _library().c
        self.fd: int = c.bpf_map__fd(handle)
        self.max_entries: int = c.bpf_map__max_entries(handle)
        self.value_bytes: int = c.bpf_map__value_size(handle)

    def memory(self, writable: bool = False) -> mmap.mmap:
        """An array made with BPF_F_MMAPABLE, as the programs see it; values stand at multiples of eight bytes."""
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        size = self.max_entries * (-(-self.value_bytes // 8) * 8)
        page = mmap.PAGESIZE
        return mmap.mmap(self.fd, -(-size // page) * page, mmap.MAP_SHARED, access)

    def update(self, key: bytes, value: bytes) -> None:
        _check(_library().c.bpf_map_update_elem(self.fd, key, value, 0))

    def delete(self, key: bytes) -> None:
        """Take an element out, if it is there; raises OSError."""
        if (code := _library().c.bpf_map_delete_elem(self.fd, key)) and -code != errno.ENOENT:
            _check(code)


class Program:
    """One program of a loaded object."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.fd: int = _library().c.bpf_program__fd(handle)
        self.name: str = _library().c.bpf_program__name(handle).decode()
        self.section: str = _library().c.bpf_program__section_name(handle).decode()

    def test_run(self, packet: bytes, repeat: int = 1) -> int:
        """Run a ``tc`` program on a made-up packet; returns what it returned; raises OSError."""
        options = abi.RunOptions(sz=ctypes.sizeof(abi.RunOptions), repeat=repeat, data_size_in=len(packet))
        data = ctypes.create_string_buffer(packet, len(packet))
        options.data_in = ctypes.addressof(data)
        _check(_library().c.bpf_prog_test_run_opts(self.fd, byref(options)))
        return int(options.retval)


class BpfObject:
    """A compiled object, loaded into the kernel.

    Args:
        path: the file clang wrote.
        constants: contents of read-only sections by name, e.g. ``{".rodata.packets": bytes}``.
        max_entries: sizes of maps by name, where they differ from the source's.

    Raises:
        ProbeError: the file, libbpf, the permission or a kernel feature is missing, or the verifier refuses a program.
    """

    def __init__(
        self,
        path: Path,
        constants: dict[str, bytes] | None = None,
        max_entries: dict[str, int] | None = None,
    ) -> None:
        self._library, self._name = _library(), path.name
        self._links: list[int] = []
        self._handle: int | None = None
        if not path.exists():
            raise ProbeError(f"{path.name} has not been compiled: {remedy('bpf')}, or run {BUILD}")
        self._library.messages.clear()
        self._handle = self._call(lambda: self._library.c.bpf_object__open_file(os.fsencode(path), None), path.name)
        try:
            for name, value in (constants or {}).items():
                self._set_constants(name, value)
            for name, entries in (max_entries or {}).items():
                self._library.c.bpf_map__set_max_entries(self._map(name), entries)
            if code := self._library.c.bpf_object__load(self._handle):
                raise ProbeError(self._explain(path.name, -code))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> BpfObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach the tracing programs and unload; safe to repeat."""
        while self._links:
            self._library.c.bpf_link__destroy(self._links.pop())
        if self._handle is not None:
            self._library.c.bpf_object__close(self._handle)
            self._handle = None

    def map(self, name: str) -> Map:
        """A map by its name, or a data section by its own (".bss.name"); raises ProbeError where there is none."""
        return Map(self._map(name))

    def program(self, name: str) -> Program:
        """A program by its function's name; raises ProbeError where the object has none."""
        handle = self._library.c.bpf_object__find_program_by_name(self._handle, name.encode())
        if not handle:
            raise self.other_sources(f"no program {name}")
        return Program(handle)

    def programs(self) -> list[Program]:
        """All programs of the object."""
        result, handle = [], self._library.c.bpf_object__next_program(self._handle, None)
        while handle:
            result.append(Program(handle))
            handle = self._library.c.bpf_object__next_program(self._handle, handle)
        return result

    def attach_all(self) -> None:
        """Attach every tracepoint program where its section says; raises ProbeError."""
        attach = self._library.c.bpf_program__attach
        for program in self.programs():
            if program.section.startswith("tp_btf/"):
                self._library.messages.clear()
                self._links.append(self._call(functools.partial(attach, program.handle), program.name))

    def other_sources(self, what: str) -> ProbeError:
        """The object was compiled before its sources changed; ``what`` it has."""
        return ProbeError(
            f"{self._name} was compiled from other sources (it has {what}): {remedy('bpf')}, or run {BUILD}"
        )

    def _map(self, name: str) -> int:
        handle = self._library.c.bpf_object__find_map_by_name(self._handle, name.encode())
        if not handle:
            raise self.other_sources(f"no map {name}")
        return int(handle)

    def _set_constants(self, section: str, value: bytes) -> None:
        size = c_size_t()
        target = self._library.c.bpf_map__initial_value(self._map(section), byref(size))
        if size.value != len(value):
            raise self.other_sources(f"{section} of {size.value} bytes, expected {len(value)}")
        ctypes.memmove(target, value, len(value))

    def _call(self, function: Callable[[], int | None], what: str) -> int:
        ctypes.set_errno(0)
        result = function()
        if not result:
            raise ProbeError(self._explain(what, ctypes.get_errno()))
        return result

    def _explain(self, what: str, code: int) -> str:
        """One line from libbpf's messages: the reason, and the verifier's last words where it had any."""
        if code in (errno.EPERM, errno.EACCES) and not any("BEGIN PROG LOAD LOG" in m for m in self._library.messages):
            return (
                f"{what}: the kernel refuses BPF (EPERM): run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
            )
        if code == errno.ENOSYS:
            return f"{what}: this kernel has no bpf() system call (CONFIG_BPF_SYSCALL)"
        text = "\n".join(self._library.messages)
        if log := re.search(r"-- BEGIN PROG LOAD LOG --\n(.*?)-- END PROG LOAD LOG --", text, re.DOTALL):
            lines = [
                line for line in log[1].splitlines() if line and not line.startswith(("processed", "verification time"))
            ]
            return f"{what}: the kernel's verifier refuses it: {' | '.join(lines[-3:])}"
        reasons = [message.removeprefix("libbpf: ") for message in self._library.messages]
        return f"{what}: {os.strerror(code)}" + (f" ({reasons[0]})" if reasons else "")


class TcxLink:
    """A program on a TCX hook (Linux 6.6), before what is there. It goes with this object, or with the last process
    that has its descriptor.

    Make it on a thread that is inside the device's network namespace; afterwards the namespace does not matter.

    Raises:
        OSError: EINVAL where the kernel has no TCX.
    """

    def __init__(self, program: int, ifindex: int, direction: str) -> None:
        options = abi.LinkOptions(sz=ctypes.sizeof(abi.LinkOptions), flags=abi.BPF_F_BEFORE)
        self._fd: int = _library().c.bpf_link_create(program, ifindex, _TCX_TYPES[direction], byref(options))
        if self._fd < 0:
            raise OSError(-self._fd, os.strerror(-self._fd))
        _links.add(self._fd)
        for listener in (*link_listeners,):  # others come and go meanwhile
            listener(self._fd)

    def attached(self) -> bool:
        info, size = abi.LinkInfo(), c_uint32(ctypes.sizeof(abi.LinkInfo))
        return _library().c.bpf_obj_get_info_by_fd(self._fd, byref(info), byref(size)) == 0 and info.ifindex != 0

    def close(self) -> None:
        """Take the program away; safe to repeat."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _links.discard(fd)
            _library().c.bpf_link_detach(fd)
            os.close(fd)


@dataclass(frozen=True)
class TcxChain:
    """Programs on a TCX hook.

    Attributes:
        programs: their numbers, in the order in which packets pass.
        revision: of the chain, which the kernel counts up with each change (kernel/bpf/mprog.c).
    """

    programs: tuple[int, ...] = ()
    revision: int = 0


def tcx_chain(ifindex: int, direction: str) -> TcxChain:
    """The programs attached to an interface of this thread's network namespace (BPF_PROG_QUERY).

    Raises:
        OSError: EINVAL where the kernel has no TCX; ENODEV where there is no such interface.
    """
    numbers = (c_uint32 * abi.MOST_PROGRAMS)()
    query = abi.Query(ifindex, _TCX_TYPES[direction], prog_ids=ctypes.addressof(numbers), count=abi.MOST_PROGRAMS)
    try:
        bpf(abi.BPF_PROG_QUERY, query)
    except FileNotFoundError:  # nothing was ever attached there
        return TcxChain()
    return TcxChain(tuple(numbers[: query.count]), query.revision)


_TCX_TYPES = {"ingress": abi.BPF_TCX_INGRESS, "egress": abi.BPF_TCX_EGRESS}
_links: set[int] = set()
link_listeners: list[Callable[[int], None]] = []
"""Called with the descriptor of each new link, by the thread that makes it."""


@contextlib.contextmanager
def links_held() -> Iterator[list[int]]:
    """Descriptors of all links that there are, for another process to inherit inside of the block.

    What a process that was killed has attached is taken off as it ends, each under the kernel's lock of network
    interfaces for tens of milliseconds. Who has to change interfaces then had better have them, too, until he is done.
    """
    with contextlib.ExitStack() as undo:
        held = []
        for fd in list(_links):
            with contextlib.suppress(OSError):  # closed meanwhile, by another thread
                held.append(os.dup(fd))
                undo.callback(os.close, held[-1])
        yield held


@contextlib.contextmanager
def count_run_time() -> Iterator[None]:
    """Inside the block the kernel counts every BPF program's runs and run time, which costs some 40 ns a run.

    Raises:
        ProbeError: it refuses.
    """
    fd: int = _library().c.bpf_enable_stats(abi.BPF_STATS_RUN_TIME)
    if fd < 0:
        raise ProbeError(f"the kernel refuses BPF statistics: {os.strerror(-fd)}")
    try:
        yield
    finally:
        os.close(fd)
