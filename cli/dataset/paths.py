"""Options that commands on datasets share, their outputs, and how they name files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.shared.output import note
from slicepilot.cli.shared.streams import refuse_stdout
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.studies.kinds import Options

KindOption = Annotated[str | None, typer.Option("--kind", help="File type (default: detected).")]
UnitOption = Annotated[
    list[str] | None,
    typer.Option(help="Unit of an Andrade export, such as Mbit/s (default: the plausible unit); may be repeated."),
]
QfiOption = Annotated[int | None, typer.Option(help="QFI of a run of Moreira (default: taken from the folder name).")]
ConditionOption = Annotated[str | None, typer.Option(help="Condition (default: taken from the folder name).")]
UeOption = Annotated[list[str] | None, typer.Option(help="Traffic class of a UE, as ADDRESS=CLASS; may be repeated.")]


def options_of(units: list[str] | None, qfi: int | None, condition: str | None, ues: list[str] | None) -> Options:
    """Facts that files lack; raises ConfigError for unknown units and classes that are not ADDRESS=CLASS."""
    from slicepilot.data.studies.andrade.units import COLLECTIONS, unit_of
    from slicepilot.data.studies.kinds import Options

    for collection in COLLECTIONS:
        unit_of(collection, units or [])

    classes = {}
    for text in ues or []:
        address, equals, name = text.partition("=")
        if not (address and equals and name):
            raise ConfigError(f"ue = {text!r}: expected ADDRESS=CLASS, for instance 10.1.0.44=multimedia")
        classes[address] = name
    return Options(tuple(units or ()), qfi, condition, classes)


def require_files(paths: Sequence[Path]) -> None:
    """Raises ConfigError for a path that leads to no regular file."""
    from slicepilot.data.files import what_else

    for path in paths:
        if path.is_dir():
            raise ConfigError(f"path = {str(path)!r}: a folder; expected files")
        if problem := what_else(path):
            raise ConfigError(f"path = {str(path)!r}: {problem}; expected a regular file")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Makes a folder if it is not there; raises ConfigError where that, or what is read or written inside, fails."""
    refuse_stdout(folder, "a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        why, out = error.strerror or error, folder.absolute()
        at = Path(error.filename).absolute() if isinstance(error.filename, str) else out
        if out != at and out not in at.parents and at not in out.parents:
            raise ConfigError(f"path = {str(at)!r}: {why}; expected a readable and writable path") from error
        raise ConfigError(f"out = {str(folder)!r}: {why}; expected a writable folder") from error


def report_unusable(problems: Sequence[str]) -> None:
    """Print a line for each unusable file, but raise ConfigError for the last."""
    for line in problems[:-1]:
        note(f"slicepilot: error: {line}")
    if problems:
        raise ConfigError(problems[-1])


def print_left_out(path: Path) -> None:
    """A line on standard error that names the files of a folder of episodes that hold none."""
    from slicepilot.data.episodes.files import files_in
    from slicepilot.training.recording.reading import what_is

    if path.is_dir() and what_is(path) in {"episodes", "folder"} and (others := files_in(path)[1]):
        note(f"left out, no episodes: {shown_few(others)}")


def shown_few(files: Sequence[Path]) -> str:
    """Number of files, and names of the first three."""
    return f"{len(files)} files ({', '.join(file.name for file in files[:3])}{', ...' if len(files) > 3 else ''})"


def check_episodes_out(out: Path) -> None:
    """Check, before anything is recorded or asked for, that episodes can be written; raises ConfigError."""
    if out.suffix != ".parquet":
        from slicepilot.training.recording.minari_files import check_new

        check_new(out)
    elif out.is_dir():
        raise ConfigError(f"out = {str(out)!r}: a folder; expected a file NAME.parquet")
    with writing_to(out.parent):
        pass  # the folder is all that is needed yet


def write_any_episodes(episodes: EpisodeSet, out: Path) -> None:
    """Write episodes as NAME.parquet, or to a new folder as a Minari dataset."""
    if out.suffix == ".parquet":
        from slicepilot.data.episodes.files import write_episodes

        write_episodes(episodes, out)
    else:
        from slicepilot.training.recording.minari_files import write_minari

        write_minari(episodes, out)


def with_provenance(episodes: EpisodeSet) -> EpisodeSet:
    """The same episodes with this command, machine and time among their facts."""
    from slicepilot.training.evaluation.results import Provenance

    provenance = asdict(Provenance.here(shlex.join(["slicepilot", *sys.argv[1:]])))
    return replace(episodes, facts={**episodes.facts, **provenance})
