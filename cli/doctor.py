"""``slicepilot doctor``: what this machine can run, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slicepilot.configs import ConfigError
from slicepilot.configs.backends import Check, plugins
from slicepilot.configs.compiled import remedy

from .shared.output import console, print_json

MIN_MEMORY_GIB = 4.0
MIN_FREE_DISK_GIB = 2.0


def doctor(
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Check a Kubernetes cluster, and this node in it.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="kubeconfig of the cluster (default: this pod's service account).")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Name of this node in the cluster (default: the host name).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what this machine can run: simulation, training, and a live user plane.

    With --kubernetes, check whether pods can be resized in place, how the kubelet divides CPU time, and whether
    Cilium paces the pods of declared slices. Without a reachable API server, only this node is checked. Exit code
    0: simulation and training can run, or the API server answers; else 1.

    Example: [bold]slicepilot doctor[/bold]
    """
    if not kubernetes and (kubeconfig or node):
        given = "kubeconfig" if kubeconfig else "node"
        raise ConfigError(f"--{given} = {kubeconfig or node}: needs --kubernetes")
    if kubernetes:
        checks = [check for plugin in plugins().values() for check in plugin.call("cluster_checks", kubeconfig, node)]
        needed = {"API server"} if kubeconfig else set[str]()
    else:
        checks = [*_python_checks(), *_machine_checks(), *_kernel_checks()]
        needed = {check.name for check in checks if check.needed_for in {"everything", "simulate", "train"}}
    if as_json:
        print_json([asdict(check) for check in checks], list[Check])
    else:
        from rich.table import Table

        table = Table(box=None, padding=(0, 1))
        for column in ("", "check", "found", "needed for"):
            table.add_column(column)
        for check in checks:
            mark = Text("ok", "green") if check.ok else Text("--", "yellow")
            table.add_row(mark, check.name, check.found, check.needed_for)
        console.print(table)
        hints: dict[str, list[str]] = {}
        for check in checks:
            if not check.ok:
                hints.setdefault(check.hint, []).append(check.name)
        for hint, names in hints.items():
            console.print(Text.assemble((", ".join(names), "yellow"), f": {hint}"))
    if not all(check.ok for check in checks if check.name in needed):
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python_checks() -> list[Check]:
    checks = [Check("python", True, platform.python_version(), "everything")]
    for package, needed_for, extra in (
        ("numpy", "everything", ""),
        ("gymnasium", "everything", ""),
        ("onnxruntime", "everything", ""),
        ("numba", "simulate", ""),
        ("torch", "train", "train"),
        ("stable-baselines3", "train", "train"),
        ("mlflow", "train", "train"),
        ("matplotlib", "train", "train"),
        ("ray", "tune", "train,ray"),
        ("pyroute2", "live", ""),
    ):
        result = _version(package)
        hint = f"pip install 'slicepilot[{extra}]'" if extra else "reinstall slicepilot"
        checks.append(Check(package, result is not None, result or "missing", needed_for, hint))
    return checks


def _machine_checks() -> list[Check]:
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    disk = shutil.disk_usage(Path.cwd()).free / 2**30
    return [
        Check("CPUs", cpus >= 2, str(cpus), "train", "training and demo are sized for two CPUs; one CPU takes longer"),
        Check(
            "memory",
            memory >= MIN_MEMORY_GIB,
            f"{memory:.1f} GiB",
            "train",
            f"the demo needs up to {MIN_MEMORY_GIB:.0f} GiB",
        ),
        Check(
            "free disk here",
            disk >= MIN_FREE_DISK_GIB,
            f"{disk:.1f} GiB",
            "train",
            f"checkpoints and tracking need up to {MIN_FREE_DISK_GIB:.0f} GiB",
        ),
    ]


def _kernel_checks() -> list[Check]:
    from slicepilot.controller.system.bpf.btf import unusable

    version = _cpu_controller()
    btf = unusable()
    return [
        Check("kernel", True, platform.release(), "live"),
        Check("root", os.geteuid() == 0, f"uid {os.geteuid()}", "live", "namespaces, cgroups and BPF need root"),
        Check(
            "cpu cgroup",
            version is not None,
            "none" if version is None else f"v{version}",
            "live",
            "mount the cpu controller of cgroup v1 or v2",
        ),
        Check(
            "kernel BTF",
            btf is None,
            "yes" if btf is None else btf,
            "live",
            "eBPF telemetry needs CONFIG_DEBUG_INFO_BTF",
        ),
        *_confinement_checks(),
        *_program_checks(),
    ]


def _cpu_controller() -> int | None:
    """Version of the mounted hierarchy that has the CPU controller: version 2 may be mounted without it, and version 1
    anywhere."""
    from slicepilot.controller.system.cgroup import CpuHierarchy
    from slicepilot.controller.system.kernel_file import ActuatorError

    try:
        return CpuHierarchy.find().version
    except ActuatorError:
        return None


def _confinement_checks() -> list[Check]:
    """Confinement of the processes of `slicepilot run`, which also runs without it."""
    from slicepilot.controller.system.confinement import landlock_version, without_seccomp

    why, interface = without_seccomp(), landlock_version()
    result = f"version {interface}" if interface else "none"
    return [
        Check("seccomp", not why, why or "yes", "confinement", "a kernel with CONFIG_SECCOMP_FILTER, x86-64 or arm64"),
        Check("Landlock", bool(interface), result, "confinement", "a kernel with CONFIG_SECURITY_LANDLOCK, in lsm="),
    ]


def _program_checks() -> list[Check]:
    """The probe, and what backends need in addition to the kernel."""
    from slicepilot.controller.system.bpf.errors import ProbeError
    from slicepilot.controller.system.bpf.libbpf import BUILD, version

    compiled, clang = sorted(BUILD.parent.glob("*.bpf.o")), shutil.which("clang")
    result = f"{len(compiled)} BPF objects" if compiled else "missing"
    # With compiled objects no compiler is needed.
    checks = [Check("clang", bool(clang or compiled), clang or "missing", "live", "install the package clang")]
    try:
        checks.append(Check("libbpf", True, version(), "live"))
    except ProbeError as error:
        checks.append(Check("libbpf", False, "missing", "live", str(error)))
    checks.append(Check("probe", bool(compiled), result, "live", f"compile the BPF programs: {remedy('live')}"))
    for plugin in plugins().values():
        checks += plugin.call("checks")
    return checks
