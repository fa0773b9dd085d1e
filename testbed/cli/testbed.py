"""``slicepilot testbed``: a local 5G user plane of real UPF processes, up and down."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from slicepilot.cli.schemas import machine as schema
from slicepilot.cli.shared.output import console, print_json, progress_bar, stderr
from slicepilot.cli.shared.streams import STDOUT, require_single, write_out
from slicepilot.configs import ConfigError

NameOption = Annotated[str, typer.Option(help="Name of the testbed: the prefix of everything that it creates.")]


def up(
    config: Annotated[
        str, typer.Option("-c", "--config", help="Testbed configuration: a shipped name or a YAML file.")
    ] = "default",
    slices: Annotated[str | None, typer.Option(help="Slice set (default: from the configuration).")] = None,
    burn_us: Annotated[float | None, typer.Option(help="CPU time per packet in addition to forwarding.")] = None,
    uplink_mbps: Annotated[float | None, typer.Option(help="Rate of the shared N6 uplink.")] = None,
    ues: Annotated[int | None, typer.Option(help="Number of PDU sessions per slice.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the testbed: the prefix of everything that it creates.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Start one UPF process per slice, each in its own namespace and CPU cgroup, with PFCP sessions.

    Needs root. A packet is sent through each slice in both directions; if none arrives, the command fails.

    Example: [bold]slicepilot testbed up --burn-us 50[/bold]
    """
    from slicepilot.testbed.lifecycle.carrying import NotCarriedError
    from slicepilot.testbed.lifecycle.spec import TestbedSpec
    from slicepilot.testbed.lifecycle.testbed import Testbed

    spec = TestbedSpec.from_yaml(config).override(
        slices=slices, burn_us=burn_us, uplink_mbps=uplink_mbps, ues=ues, name=name
    )
    started = time.monotonic()
    try:
        made = Testbed.up(spec)
    except NotCarriedError as error:
        for line in str(error).splitlines():
            typer.echo(f"slicepilot: error: {line}", err=True)
        raise typer.Exit(1) from error
    took_s = time.monotonic() - started
    if as_json:
        document = {"name": spec.name, "up_s": round(took_s, 3), "slices": [_plain(s) for s in made.status()]}
        print_json(document, schema.TestbedUp)
        return
    console.print(Text.assemble("testbed ", (spec.name, "bold"), f": {len(made.slices)} slices up in {took_s:.2f} s"))
    _print_status(spec.name)


def down(
    name: NameOption = "sp",
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all testbeds, including those that a crash has left.")
    ] = False,
) -> None:
    """Remove everything that a testbed has created, also after a crash.

    Example: [bold]slicepilot testbed down --all[/bold]
    """
    from slicepilot.testbed.lifecycle.removal import running, take_down

    names = running() if everything else [name]
    if not everything and name not in running():
        raise ConfigError(f"testbed {name!r} is not up; running: {', '.join(running()) or 'none'}")
    for each in names:
        take_down(each)
        console.print(f"testbed {each}: down")
    if not names:
        console.print("no testbed is up")


def status(
    name: Annotated[str | None, typer.Option(help="Name of the testbed (default: all).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show running testbeds and the state of their UPFs.

    Example: [bold]slicepilot testbed status --json[/bold]
    """
    from slicepilot.testbed.lifecycle.removal import running
    from slicepilot.testbed.lifecycle.testbed import Testbed

    names = running() if name is None else [name]
    if as_json:
        documents = [{"name": each, "slices": [_plain(s) for s in Testbed.attach(each).status()]} for each in names]
        print_json(documents, list[schema.TestbedStatus])
        return
    for each in names:
        _print_status(each)
    if not names:
        console.print("no testbed is up")


def identify(
    config: Annotated[
        str, typer.Option("-c", "--config", help="Testbed configuration: a shipped name or a YAML file.")
    ] = "default",
    out: Annotated[Path, typer.Option(help="Output file with the hardware parameters (YAML).")] = Path(
        "testbed-hardware.yaml"
    ),
    segments: Annotated[int, typer.Option(min=4, help="Number of 4.4 s segments to fit.")] = 24,
    unseen: Annotated[int, typer.Option(min=2, help="Number of segments to validate with.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the schedules.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit the simulator's hardware parameters to this machine, and report the errors on other loads.

    Scenarios and training mixtures can name the resulting file as their hardware.

    Example: [bold]slicepilot testbed identify --out mine.yaml[/bold]
    """
    import yaml

    from slicepilot.testbed.backend.backend import TestbedBackend
    from slicepilot.testbed.lifecycle.spec import TestbedSpec
    from slicepilot.testbed.lifecycle.testbed import Testbed
    from slicepilot.training.calibration import fitting
    from slicepilot.training.calibration import identify as method

    require_single(out, as_json)
    spec = TestbedSpec.from_yaml(config).override(name="spid")
    start = method.first_guess(spec.burn_us, spec.uplink_mbps, spec.uplink_queue_ms, spec.quota_period_ms)
    fitted_on, judged_on = (
        method.draw_schedule(spec.slices, start, count, seed + i) for i, count in enumerate((segments, unseen))
    )
    slices = spec.slice_set()
    backend = TestbedBackend(Testbed.up(spec, owned=True), fitted_on[0].scenario, owned=True)
    try:
        with progress_bar() as progress:
            task = progress.add_task("playing on the testbed", total=segments + 2 * unseen)
            seen = method.observe(fitted_on, backend, seed, lambda: progress.advance(task))
            new = method.observe(judged_on, backend, seed + 1000, lambda: progress.advance(task))
            again = method.observe(judged_on, backend, seed + 2000, lambda: progress.advance(task))
    finally:
        backend.close()
    with progress_bar() as progress:
        task = progress.add_task("fitting", total=fitting.GENERATIONS)
        hardware = method.fit(fitted_on, seen, slices, start, on_generation=lambda _: progress.advance(task))
    figures = {
        kind: fitting.compare(observed, method.simulate(schedule, slices, hardware, seed)).summary()
        for kind, schedule, observed in (("fitted", fitted_on, seen), ("unseen", judged_on, new))
    }
    # The difference between two runs of the same schedule bounds the accuracy of a model.
    figures["repeated"] = fitting.compare(new, again).summary()
    document = method.hardware_document(hardware, figures["unseen"], f"burn_us {spec.burn_us:g}")
    write_out(out, yaml.safe_dump(document, sort_keys=False, width=120).encode())
    if as_json:
        print_json({"hardware": str(out), **figures}, schema.Identified)
        return
    shown = stderr if out == STDOUT else console
    for kind, figure in figures.items():
        shown.print(kind, style="bold")
        for key, value in figure.items():
            shown.print(f"  {key:<28}{value:8.2f}", highlight=False)
    shown.print(f"written to {out}")


def _plain(status: object) -> dict[str, object]:
    return {key: value if isinstance(value, int | bool) else str(value) for key, value in asdict(status).items()}  # type: ignore[call-overload]


def _print_status(name: str) -> None:
    from rich.table import Table

    from slicepilot.testbed.lifecycle.testbed import Testbed

    table = Table(box=None, padding=(0, 1))
    for column in ("slice", "UPF", "pid", "sessions", "namespace"):
        table.add_column(column)
    for each in Testbed.attach(name).status():
        state = Text("runs", "green") if each.alive else Text("gone", "red")
        table.add_row(each.name, state, str(each.pid), str(each.sessions), each.netns)
    console.print(table)
