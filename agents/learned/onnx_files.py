"""A policy in ONNX, of whatever origin, as a bundle: the file's bytes stay as they are.

Its input are observations, (lanes, slices * 20) as the Gymnasium environment gives them or (lanes, slices, 20), its
output actions, (lanes, slices * 3) or (lanes, slices, 3), of 32-bit floats. Further outputs, such as values, are not
computed. The wider tables of the project's own codings are recognised by their widths.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from slicepilot.agents.runtime.allowed import MOST_MODEL_BYTES, OnnxError
from slicepilot.agents.runtime.session import Ports, open_session, ports_of
from slicepilot.configs import ConfigError
from slicepilot.configs.reading import read_file
from slicepilot.env.slices import SliceSet

from .bundle import CODINGS, MAX_SLICES, MIN_SLICES, Coding, PolicyBundle, TrainingRecord

USUAL_SLICES = "five-video"
"""Slice set of the environment's default scenario."""


def read_onnx(path: Path, what: str, name: str, slices: SliceSet | None = None) -> PolicyBundle:
    """A model's file as a bundle; arguments and errors as `bundle_of`, and ConfigError for a file that is not there."""
    model = read_file(path, MOST_MODEL_BYTES, what)
    source = f"{path.name}, SHA-256 {hashlib.sha256(model).hexdigest()}"
    return bundle_of(model, what, TrainingRecord(algorithm=f"onnx:{name}", seed=0, source=source), slices)


def bundle_of(model: bytes, what: str, record: TrainingRecord, slices: SliceSet | None = None) -> PolicyBundle:
    """A model as a bundle that serves as many slices as its network takes.

    Args:
        model: serialised.
        what: begins errors.
        record: where it comes from.
        slices: that it was trained for; None: it is not known, and `USUAL_SLICES` stand for them.

    Raises:
        ConfigError: a model that is not accepted, or is for another number of slices.
    """
    coding, ports = _coding_of(model, what)
    count = ports.num_slices
    if count is not None and not MIN_SLICES <= count <= MAX_SLICES:
        raise ConfigError(f"{what}: is for {count} slices; expected {MIN_SLICES} to {MAX_SLICES}")
    if slices is not None and count not in (None, len(slices)):
        raise ConfigError(f"{what}: is for {count} slices; expected {len(slices)}, those of the scenario")
    if slices is None:
        usual = SliceSet.from_yaml(USUAL_SLICES)
        slices = usual if count in (None, len(usual)) else usual.repeated(count or len(usual))
    return PolicyBundle(slices, model, record, coding=coding, transfers=True if count is None else "same-number")


def _coding_of(model: bytes, what: str) -> tuple[Coding, Ports]:
    """A model's coding and ports; if no coding fits, the error is that of the plain coding."""
    refused = OnnxError("")
    for coding, (columns, actions, _) in CODINGS.items():
        try:
            return coding, ports_of(open_session(model, columns, actions), columns, actions)
        except OnnxError as error:
            refused = refused if str(refused) else error
    raise ConfigError(f"{what}: {refused}") from refused
