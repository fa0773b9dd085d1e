"""The tables of Mishra and Pandey (2026) out of files of theirs, which ``data/studies/releases.yaml`` names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.arrow import codes_of, values_of
from slicepilot.data.faults import Faults
from slicepilot.data.studies.kinds import Kind, Options, detect, files_below
from slicepilot.data.studies.mishra.figures import load_of
from slicepilot.training.studies.study import Effort, Findings

from .samples import LOADS, SLICES, kept_cell
from .simulated import take_cells

KINDS = {"mishra-forwarding": "forwarding", "mishra-pfcp": "pfcp"}


def read_release(folder: Path, effort: Effort) -> Findings:
    """Read a folder with the study's files, or with files like them, such as those that ``--out`` gets.

    Raises:
        ConfigError: no folder, or one of the six files is missing or twice in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"data = {str(folder)!r}: no folder; ask the authors, `slicepilot dataset list` names them")
    files: dict[str, tuple[Kind, Path]] = {}
    for path in files_below([folder]):
        kind = detect(path)
        if kind is not None and kind.name in KINDS and (load := load_of(path)):
            name = f"o1_{KINDS[kind.name]}_exp_{load}.csv"
            if name in files:
                raise ConfigError(f"data = {str(folder)!r}: {files[name][1]} and {path} are both {name}; keep one")
            files[name] = kind, path
    wanted = [f"o1_{kind}_exp_{load}.csv" for kind in KINDS.values() for load in LOADS]
    if missing := [name for name in wanted if name not in files]:
        raise ConfigError(f"data = {str(folder)!r}: {', '.join(missing)} missing; see docs/datasets.md")
    result = Findings(material={"curves": {}})
    for number, name in enumerate(wanted):
        kind, path = files[name]
        faults = Faults()
        stream = kind.read(path, faults, Options(), lambda share: effort.say(name, (number + share) / len(wanted)))  # noqa: B023
        cells: dict[str, list[np.ndarray]] = {}
        for batch in stream.batches:
            codes, words = codes_of(batch.column(0))
            times_us = values_of(batch.column(1))
            for code, word in enumerate(words):
                own = times_us[codes == code]
                if len(own):
                    cells.setdefault(word if word in SLICES else f"pfcp/{word}", []).append(own)
        take_cells(result, {cell: kept_cell(np.concatenate(t)) for cell, t in cells.items()}, load_of(path), "", effort)
        result.remarks.append(f"release: {path.name}, {faults.total} faults")
    return result
