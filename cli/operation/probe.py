"""``slicepilot probe``: delays and rates of any UPF's packets on this machine, measured in the kernel."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.explaining import Probed
from slicepilot.cli.shared.output import console, print_json, stderr
from slicepilot.cli.shared.streams import STDOUT, require_single
from slicepilot.configs import ConfigError, FailureError
from slicepilot.configs.backends import plugin
from slicepilot.configs.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from slicepilot.controller.system.signals import StopRequest
    from slicepilot.controller.telemetry.discover import Upf
    from slicepilot.controller.telemetry.pfcp import PfcpProbe
    from slicepilot.controller.telemetry.report.export import PacketFile, PfcpFile
    from slicepilot.controller.telemetry.source import KernelSource

IDLE_S = 60.0  # a flow without a packet for so long may be evicted
DRAIN_S = 0.05  # between two looks at the events: a ring buffer holds 32,000


def probe(
    netns: Annotated[list[str] | None, typer.Option(help="Network namespace of a UPF; may be repeated.")] = None,
    node: Annotated[
        str | None, typer.Option(help="Node configuration, for all its UPFs: a name or a YAML file of `node discover`.")
    ] = None,
    pid: Annotated[list[int] | None, typer.Option(help="Process id of a UPF; may be repeated.")] = None,
    container: Annotated[list[str] | None, typer.Option(help="Container id of a UPF; may be repeated.")] = None,
    n3: Annotated[str | None, typer.Option(help="N3 interface (GTP-U) (default: n3, or the only interface).")] = None,
    tun: Annotated[str | None, typer.Option(help="TUN device of the UPF (default: the first).")] = None,
    n6: Annotated[str | None, typer.Option(help="N6 interface (default: n6, if it exists).")] = None,
    n6_netns: Annotated[
        str | None, typer.Option(help="Network namespace of the far end of N6, to measure behind a shared uplink.")
    ] = None,
    n4: Annotated[str | None, typer.Option(help="N4 interface (PFCP) (default: n4, if it exists).")] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between tables.")] = 1.0,
    duration: Annotated[
        float | None, typer.Option(min=0.1, help="Duration in seconds (default: until Ctrl-C).")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write sampled packets to this CSV file.")] = None,
    sample: Annotated[int, typer.Option(min=1, max=1 << 20, help="Write one in this many packets to --csv.")] = 100,
    pfcp_csv: Annotated[Path | None, typer.Option(help="Write PFCP transactions to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print totals as JSON at the end instead of tables.")] = False,
) -> None:
    """Measure each packet of running UPFs from N3 to N6, by slice and flow, without changing the UPFs.

    Needs root. Works with any UPF that receives GTP-U on one interface and passes IP packets to the kernel. Select
    UPFs by network namespace, process, container, or node configuration.

    Example: [bold]slicepilot probe --netns sp-upf-embb --n6-netns sp-dn --duration 10[/bold]
    """
    from slicepilot.controller.system.bpf.errors import ProbeError
    from slicepilot.controller.telemetry.discover import Devices, by_container, by_netns, by_pid, points_of

    require_single(csv, as_json, "--csv")
    require_single(pfcp_csv, as_json, "--pfcp-csv")
    if csv == pfcp_csv == STDOUT:
        raise ConfigError("--csv, --pfcp-csv: both are -; expected at most one on standard output")
    upfs = [*map(by_netns, netns or ()), *map(by_pid, pid or ()), *map(by_container, container or ())]
    devices = Devices(n3, tun, n6, n6_netns, n4)
    if node is None and not upfs:
        raise ConfigError("no UPF is given; use --netns, --pid, --container or --node")
    if node is not None and (upfs or devices != Devices()):
        raise ConfigError(f"--node = {node}: accepted alone: its configuration says which UPFs and interfaces")
    try:
        with contextlib.ExitStack() as stack:
            from slicepilot.controller.system.signals import StopRequest
            from slicepilot.controller.telemetry.pfcp import PfcpProbe
            from slicepilot.controller.telemetry.source import KernelSource

            points = [points_of(upf, devices) for upf in _distinct(upfs)]
            if node is not None:
                points = plugin("node").call("points", node)
            stop = stack.enter_context(StopRequest())
            source = stack.enter_context(
                KernelSource(points, report_every=sample if csv else 0, timed_per_s=0, by_flow=True)
            )
            pfcp = None
            if any(point.n4 for point in points):
                pfcp = stack.enter_context(PfcpProbe(points, report=pfcp_csv is not None))
            elif pfcp_csv is not None:
                raise ConfigError("--pfcp-csv: no interface with PFCP; name it with --n4")
            files = [stack.enter_context(contextlib.closing(file)) for file in _files(csv, pfcp_csv, source, pfcp)]
            _watch(
                stop, source, pfcp, files, interval, duration, as_json, stderr if STDOUT in {csv, pfcp_csv} else console
            )
    except ProbeError as error:
        raise FailureError(str(error)) from error


def _distinct(upfs: list[Upf]) -> list[Upf]:
    """Refuse a UPF that was named twice: its packets would be counted for the first only."""
    seen: dict[int, str] = {}
    for upf in upfs:
        inode = upf.netns.stat().st_ino
        if inode in seen:
            raise ConfigError(f"{upf.name}: the same network namespace as {seen[inode]}; name each UPF once")
        seen[inode] = upf.name
    return upfs


def _files(
    csv: Path | None, pfcp_csv: Path | None, source: KernelSource, pfcp: PfcpProbe | None
) -> list[PacketFile | PfcpFile]:
    from slicepilot.controller.telemetry.report.export import PacketFile, PfcpFile

    files: list[PacketFile | PfcpFile] = []
    if csv is not None:
        files.append(PacketFile(csv, source.packets))
    if pfcp_csv is not None and pfcp is not None:
        files.append(PfcpFile(pfcp_csv, pfcp))
    return files


def _watch(
    stop: StopRequest,
    source: KernelSource,
    pfcp: PfcpProbe | None,
    files: list[PacketFile | PfcpFile],
    interval: float,
    duration: float | None,
    as_json: bool,
    shown_on: Console,
) -> None:
    """Show a table per interval until the time is over, the user stops it, or the UPFs have gone."""
    from rich.live import Live

    from slicepilot.controller.system.bpf.errors import ProbeError
    from slicepilot.controller.telemetry.flows import IdleFlows
    from slicepilot.controller.telemetry.report.summary import summary

    idle, swept = IdleFlows(source.packets), time.monotonic()
    started = swept
    end = float("inf") if duration is None else started + duration
    shown = started
    gone: list[str] = []
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        live = None
        if shown_on.is_terminal and not as_json:
            live = stack.enter_context(Live(console=shown_on, auto_refresh=False))
        while not stop.requested and (now := time.monotonic()) < end and not gone:
            pause = min(shown + interval, end) - now
            if pause > 0:
                time.sleep(min(pause, DRAIN_S) if files else pause)
            for file in files:
                file.write()
            if time.monotonic() < min(shown + interval, end):
                continue
            shown += interval
            if shown - swept > IDLE_S:
                swept = shown
                idle.free()
            said, gone = _check(source, pfcp, said)
            if not as_json:
                table = _table(source, pfcp)
                live.update(table, refresh=True) if live else shown_on.print(table)
    if as_json:
        print_json(summary(source, pfcp, time.monotonic() - source.counts_since_s), Probed)
    if gone:
        raise ProbeError(f"stopped measuring: {gone[0]}")


def _check(source: KernelSource, pfcp: PfcpProbe | None, said: list[str]) -> tuple[list[str], list[str]]:
    """What is not measured, which is said where it was not, and what of it ends the measurement: that no UPF is left to
    measure. What comes back is attached again."""
    missing = source.check()
    if pfcp is not None:
        lost = pfcp.hooks.heal()
        missing += [text for text in (*lost.values(), *pfcp.hooks.renewed.values()) if text]
    if not source.reachable:
        return missing, missing
    for text in missing:
        if text not in said:
            stderr.print(f"not measured: {printable(text)}", highlight=False, markup=False, soft_wrap=True)
    return missing, []


def _table(source: KernelSource, pfcp: PfcpProbe | None) -> Table:
    from rich.table import Table
    from rich.text import Text

    from slicepilot.controller.telemetry.histogram import quantiles_us
    from slicepilot.controller.telemetry.layout import PFCP_KINDS
    from slicepilot.env.telemetry import SLICE_FIELDS

    telemetry = source.measure()
    table = Table(box=None, padding=(0, 1), caption=_caption(source), caption_justify="left")
    table.add_column("slice", overflow="ellipsis", no_wrap=True, max_width=20)
    for heading in ("N3\nMbit/s", "out\nMbit/s", "loss\n%", "p50\nus", "p99\nus", "CPU\nmcpu", "wait\nus", "PFCP\nus"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, point in enumerate(source.packets.points):
        if not telemetry.valid[index, 0]:
            table.add_row(Text(point.name), *["-"] * 8)
            continue
        seen = dict(zip(SLICE_FIELDS, telemetry.slices[:, index, 0].tolist(), strict=True))
        latency = math.nan
        if pfcp is not None:
            [latency] = quantiles_us(pfcp.transactions[index, PFCP_KINDS.index("modification")]["latency"], (0.5,))
        table.add_row(
            Text(point.name),  # a process chooses its name
            f"{seen['offered_mbps']:.1f}",
            f"{seen['carried_mbps']:.1f}",
            f"{100 * seen['loss_ratio']:.1f}",
            f"{seen['delay_p50_us']:.0f}",
            f"{seen['delay_p99_us']:.0f}",
            f"{seen['cpu_use_mcpu']:.0f}" if point.cgroup else "-",
            f"{seen['runqueue_delay_us']:.0f}" if point.cgroup else "-",
            "-" if math.isnan(latency) else f"{latency:.0f}",
        )
    return table


def _caption(source: KernelSource) -> str:
    last = "N6" if source.packets.points[0].n6 else "TUN"
    return f"delay from N3 to {last}; wait: on a run queue; PFCP: median of session modifications"
