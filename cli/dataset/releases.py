"""``slicepilot dataset list`` and ``fetch``: data released by the published studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas import datasets as schema
from slicepilot.cli.shared.default_paths import own
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar, say, stderr
from slicepilot.cli.shared.streams import refuse_stdout

if TYPE_CHECKING:
    from rich.progress import TaskID

    from slicepilot.data.studies.releases import Release


def list_releases(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the datasets of published studies with their location and licence.

    Example: slicepilot dataset list
    """
    from slicepilot.data.studies.releases import releases

    if as_json:
        print_json([_document(release) for release in releases()], list[schema.Release])
        return
    table = figures_table("releases", ("release", "status", "files", "size"))
    for release in releases():
        size = "not known" if release.about_bytes is None else shown_bytes(release.about_bytes)
        table.add_row(release.name, release.status, str(len(release.files)), size)
    console.print(table)
    for release in releases():
        console.print(release.name, style="bold", highlight=False)
        for label, text in (
            ("what", release.what),
            ("cite", release.citation),
            ("paper", release.paper),
            ("licence", release.licence or "none known"),
            ("at", release.repository or "not known"),
            ("note", release.note),
        ):
            print_fact(label, text)


def fetch(
    name: Annotated[str, typer.Argument(help="Release to download; see `dataset list`.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Output folder (default: datasets/NAME).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Download a release. Files that are there are kept. Exit code 1: a file could not be downloaded.

    Example: slicepilot dataset fetch moreira
    """
    from slicepilot.data.studies.fetching import FetchError
    from slicepilot.data.studies.fetching import fetch as download
    from slicepilot.data.studies.releases import find

    release = find(name)
    files = release.fetchable()
    refuse_stdout(out, "a folder")
    default = Path("datasets") / name
    folder = own(out or default, default, "out")
    fetched: list[dict[str, Any]] = []
    failed: list[str] = []
    with progress_bar() as progress:
        for file in files:
            task = progress.add_task(file.name.rpartition("/")[2], total=None)

            def show(done: int, total: int | None, task: TaskID = task) -> None:
                progress.update(task, completed=done, total=total)

            try:
                path = folder / file.name
                digest = download(str(file.address), path, show)
                size = path.stat().st_size
                known = release.as_known(path.name, size, digest)
                fetched.append({"path": str(path), "bytes": size, "sha256": digest, "as_known": known})
            except FetchError as error:
                failed.append(str(error))
            progress.remove_task(task)
    if as_json:
        document = {"release": _document(release), "folder": str(folder), "files": fetched, "failed": failed}
        print_json(document, schema.Fetched)
    else:
        for row in fetched:
            say(f"{row['path']}  {shown_bytes(row['bytes'])}")
            say(f"  SHA-256 {row['sha256']}")
            print_known(row["path"], row["as_known"])
        if fetched:
            print_fact("cite", release.citation)
            print_fact("licence", release.licence or "none known")
    for line in failed:
        stderr.print(f"slicepilot: error: {line}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def print_known(name: str, as_known: bool | None) -> None:
    """Print a line about a file of a release: a warning if it differs from the known file, nothing if none is known."""
    if as_known is None:
        return
    if as_known:
        say(f"{name}: this is the release as known")
        return
    line = f"slicepilot: warning: {name}: differs from the known release in size or SHA-256; figures may differ too"
    stderr.print(line, highlight=False, markup=False, soft_wrap=True)


def shown_bytes(count: int) -> str:
    """A size as people read it."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def print_fact(label: str, text: str) -> None:
    """A line with a label, wrapped below its own beginning."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=13)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _document(release: Release) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(release) | {"about_bytes": release.about_bytes}
