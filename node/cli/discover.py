"""``slicepilot node discover``: which UPFs run here."""

from __future__ import annotations

import os
import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from slicepilot.cli.schemas import machine as schema
from slicepilot.cli.shared.output import console, print_json
from slicepilot.cli.shared.streams import STDOUT, require_single, write_out
from slicepilot.configs import ConfigError


def discover(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a draft node configuration to this file.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the node (default: this machine's).")] = None,
    netns: Annotated[
        str | None, typer.Option(help="Only UPFs in network namespaces of such names, for instance 'upf*'.")
    ] = None,
    cgroup: Annotated[
        str | None, typer.Option(help="Only UPFs in CPU cgroups of such paths, for instance '*/core/*'.")
    ] = None,
    upf: Annotated[
        list[str] | None,
        typer.Option(help="Only UPFs of such names, as listed, for instance 'upf-*'; may be repeated."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the evidence for each UPF.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List UPFs that run on this machine, with their processes, namespaces, interfaces and cgroups.

    Needs root and changes nothing. Unclear UPFs are listed with the evidence, but left out of the configuration, and so
    are UPFs of another controller, a testbed or a pod, unless --upf, --netns or --cgroup names them.

    Example: [bold]slicepilot node discover --out node.yaml[/bold]
    """
    from slicepilot.node.find.discover import discover as look
    from slicepilot.node.find.draft import draft

    if os.geteuid() != 0:
        raise ConfigError("must run as root to map sockets to processes")
    require_single(out, as_json)
    if out is not None and out != STDOUT and out.exists():
        raise ConfigError(f"--out = {out}: exists; expected a new file")
    result = [
        item
        for item in look()
        if (netns is None or fnmatchcase(item.netns_name or str(item.netns), netns))
        and (cgroup is None or fnmatchcase(str(item.cgroup or "/"), cgroup))
        and (not upf or any(fnmatchcase(item.name, pattern) for pattern in upf))
    ]
    patterns = [pattern for pattern in (netns, cgroup, *(upf or ())) if pattern is not None]
    named = [item.process.pid for item in result] if any(pattern.strip("*") for pattern in patterns) else []
    if out is not None:
        _write(out, draft(name or socket.gethostname(), result, named))
    if out == STDOUT:
        return
    if as_json:
        print_json([_document(upf) for upf in result], list[schema.DiscoveredUpf])
        return
    _print(result, verbose)
    if out is not None:
        slices = sum(line.startswith("  - name: ") for line in out.read_text().splitlines())
        if not slices:
            console.print(f"{out}: no UPF that is certain and nobody else's; take one by --upf NAME", highlight=False)
            return
        console.print(f"{out}: {slices} slices; say there what they are promised, then:", highlight=False)
        console.print(f"  slicepilot run --node {out} --seconds 10", highlight=False, soft_wrap=True, markup=False)


def _write(path: Path, text: str) -> None:
    if path == STDOUT:
        write_out(path, text.encode())
        return
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"--out = {path}: {error.strerror}; expected a new file in a folder that is there") from error


def _document(upf: Any) -> dict[str, Any]:
    from slicepilot.configs.text import printable

    message = {
        "slice": upf.name,
        "pid": upf.process.pid,
        "process": upf.process.program or upf.process.name,
        "netns": upf.netns_name or str(upf.netns),
        "cgroup": None if upf.cgroup is None else str(upf.cgroup),
        "n3": upf.devices.n3,
        "n6": upf.devices.n6,
        "n4": upf.devices.n4,
        "tun": upf.devices.tun,
        "confidence": upf.confidence,
        "owner": upf.owner,
    }
    shown = {key: printable(value) if isinstance(value, str) else value for key, value in message.items()}
    pools = dict.fromkeys(pool for _, pools in upf.served for pool in pools)
    return shown | {"ue_pools": list(pools), "why": [printable(why) for why in upf.why]}


def _print(result: list[Any], verbose: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from slicepilot.configs.text import printable

    if not result:
        console.print("no UPF found: no process takes GTP-U (port 2152) or PFCP (8805), or runs a known UPF program")
    for upf in result:
        style = "bold" if upf.confidence == "sure" else "yellow"
        line = Text.assemble((upf.name, style), f"  {upf.process}  ")
        where = {"netns": upf.netns_name, "n3": upf.devices.n3, "tun": upf.devices.tun, "n6": upf.devices.n6}
        line.append(printable("  ".join(f"{key} {value or '?'}" for key, value in where.items())))
        line.append(f"  {upf.owner}: not taken unless named" if upf.owner else "", "yellow")
        console.print(line)
        if not verbose and upf.confidence == "sure":
            continue
        message = [printable(f"cgroup {upf.cgroup}")] if upf.cgroup is not None else []
        for text in [*message, *upf.why]:
            console.print(Padding(Text(text), (0, 0, 0, 4)))
