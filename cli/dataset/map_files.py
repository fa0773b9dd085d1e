"""``slicepilot dataset map``: propose a map to import files of any tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.datasets import ProposedMap
from slicepilot.cli.shared.output import print_json, progress_bar, say
from slicepilot.cli.shared.streams import STDOUT, require_single

from .paths import require_files, writing_to

if TYPE_CHECKING:
    from slicepilot.data.own.propose import Proposal


def map_files(
    paths: Annotated[list[Path], typer.Argument(help="Files that belong together.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Output: the map, a YAML file; - prints it.")] = Path("map.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at your own files and propose the map for `dataset import --map`, with what is unsure as comments.

    Reads CSV and Parquet (wide and long), answers of Prometheus and exports of Grafana, Netdata, reports of iperf3,
    logs of ping, and captures of N3 and N6 (pcap, pcapng). An earlier map at the same path becomes NAME.old.

    Example: slicepilot dataset map measurements.csv --out map.yaml
    """
    require_single(out, as_json, "out")
    from slicepilot.data.files import replace_file
    from slicepilot.data.own.propose import propose

    require_files(paths)
    with progress_bar() as progress:
        progress.add_task("looking", total=None)
        proposal = propose(paths)
    if out == STDOUT:
        sys.stdout.write(proposal.text)
        return
    data = proposal.text.encode()
    with writing_to(out.parent):
        if out.is_file() and out.read_bytes() != data:
            out.replace(out.with_name(f"{out.name}.old"))
        replace_file(out, data)
    if as_json:
        print_json(_document(out, paths, proposal), ProposedMap)
    else:
        _print(out, paths, proposal)


def _document(out: Path, paths: list[Path], proposal: Proposal) -> dict[str, object]:
    return {
        "out": str(out),
        "files": [str(path) for path in paths],
        "formats": [proposal.formats[path] for path in paths],
        "rows": proposal.rows,
        "quantities": list(proposal.quantities),
        "unsure": list(proposal.unsure),
        "missing_for_episodes": list(proposal.missing),
    }


def _print(out: Path, paths: list[Path], proposal: Proposal) -> None:
    say(f"{out}: {proposal.rows:,} rows with {', '.join(proposal.quantities)}")
    for text in proposal.unsure:
        say(f"  unsure: {text}")
    if proposal.missing:
        say(f"  Fine as a table. For offline training it also lacks: {'; '.join(proposal.missing)}")
    say(f"next: slicepilot dataset import --map {out} {' '.join(map(str, paths))} --out FOLDER")
