"""``slicepilot testbed``: a local 5G user plane of real UPF processes, up and down."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ...configs import ConfigError
from .output import console, print_json

testbed = typer.Typer(help="A local 5G user plane: UPFs, SMF and load in network namespaces.", no_args_is_help=True)

NameOption = Annotated[str, typer.Option(help="Which testbed: the prefix of everything it makes.")]


@testbed.callback()
def about() -> None:
    """A local 5G user plane: UPFs, SMF and load in network namespaces."""


@testbed.command()
def up(
    config: Annotated[
        str, typer.Option("-c", "--config", help="What it consists of: a name or a YAML file.")
    ] = "default",
    slices: Annotated[str | None, typer.Option(help="Slice set, in place of the configuration's.")] = None,
    burn_us: Annotated[float | None, typer.Option(help="CPU time per packet beside forwarding.")] = None,
    uplink_mbps: Annotated[float | None, typer.Option(help="Rate of the shared N6 uplink.")] = None,
    ues: Annotated[int | None, typer.Option(help="PDU sessions per slice.")] = None,
    name: Annotated[str | None, typer.Option(help="Prefix of everything it makes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring up one UPF process per slice, each in its own namespace and CPU cgroup, with PFCP sessions.

    Needs root. Example: [bold]slicepilot testbed up --burn-us 50[/bold]
    """
    from ...testbed.spec import TestbedSpec
    from ...testbed.testbed import Testbed

    spec = TestbedSpec.from_yaml(config).override(
        slices=slices, burn_us=burn_us, uplink_mbps=uplink_mbps, ues=ues, name=name
    )
    started = time.monotonic()
    made = Testbed.up(spec)
    took_s = time.monotonic() - started
    if as_json:
        print_json({"name": spec.name, "up_s": round(took_s, 3), "slices": [_plain(s) for s in made.status()]})
        return
    console.print(f"testbed [bold]{spec.name}[/bold]: {len(made.slices)} slices up in {took_s:.2f} s")
    _print_status(spec.name)


@testbed.command()
def down(
    name: NameOption = "sp",
    everything: Annotated[bool, typer.Option("--all", help="All testbeds, those left by a crash included.")] = False,
) -> None:
    """Remove what a testbed has made, also after a crash, and nothing else.

    Example: [bold]slicepilot testbed down --all[/bold]
    """
    from ...testbed.removal import running, take_down

    names = running() if everything else [name]
    if not everything and name not in running():
        raise ConfigError(f"testbed {name!r} is not up; accepted: {', '.join(running()) or 'none is'}")
    for each in names:
        take_down(each)
        console.print(f"testbed {each}: down")
    if not names:
        console.print("no testbed is up")


@testbed.command()
def status(
    name: Annotated[str | None, typer.Option(help="Which testbed; all without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which testbeds are up and how their UPFs are.

    Example: [bold]slicepilot testbed status --json[/bold]
    """
    from ...testbed.removal import running
    from ...testbed.testbed import Testbed

    names = running() if name is None else [name]
    if as_json:
        print_json([{"name": each, "slices": [_plain(s) for s in Testbed.attach(each).status()]} for each in names])
        return
    for each in names:
        _print_status(each)
    if not names:
        console.print("no testbed is up")


def _plain(status: object) -> dict[str, object]:
    return {key: value if isinstance(value, int | bool) else str(value) for key, value in asdict(status).items()}  # type: ignore[call-overload]


def _print_status(name: str) -> None:
    from rich.table import Table

    from ...testbed.testbed import Testbed

    table = Table(box=None, padding=(0, 1))
    for column in ("slice", "UPF", "pid", "sessions", "namespace"):
        table.add_column(column)
    for each in Testbed.attach(name).status():
        state = "[green]runs[/green]" if each.alive else "[red]gone[/red]"
        table.add_row(each.name, state, str(each.pid), str(each.sessions), each.netns)
    console.print(table)
