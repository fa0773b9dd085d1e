"""The policy bundle: a folder that holds a trained policy and everything needed to run it as it was trained.

``policy.onnx`` (the deterministic policy, dynamic in lanes and slices), ``bundle.yaml`` (slices, encoder layout,
decoder, training run, versions) and ``SHA256SUMS`` (as ``sha256sum`` writes it). `PolicyBundle.load` checks all three
and refuses what does not fit, naming file, field, value and what is accepted. No training package is needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field

from slicepilot.agents.runtime.allowed import OnnxError, check_model
from slicepilot.agents.runtime.session import OnnxNetwork, open_session, ports_of
from slicepilot.configs import ConfigError, validate
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.data.files import replace_folder
from slicepilot.env.encoding import (
    CPU_AXIS_PER_THREAD_MCPU,
    EGRESS_AXIS_MBPS,
    KNOB_FEATURES,
    NICE_AXIS,
    NONE_ABOVE,
    NUM_FEATURES,
    encoder_layout,
)
from slicepilot.env.knobs import NUM_KNOBS, NiceScope
from slicepilot.env.slices import SliceSet

from .deep_sets import DeepSets
from .files import DESCRIPTION_FILE, MODEL_FILE, SUMS_FILE, BundleFiles
from .guide import NUM_GUIDED, corrections_layout, guided_layout
from .guide_kernels import NUM_CORRECTIONS
from .shares import NUM_INPUTS, shares_layout

if TYPE_CHECKING:
    import onnxruntime as ort

FORMAT_VERSION = 1
Coding = Literal["plain", "shares", "guided"]
"""A policy's observation: telemetry and knobs alone (plain), with each slice's shares of the node
(`slicepilot.agents.learned.shares`), or with a rule's decision, which its actions correct
(`slicepilot.agents.learned.guide`)."""
CODINGS: dict[Coding, tuple[int, int, Callable[[], dict[str, Any]]]] = {
    "plain": (NUM_FEATURES, NUM_KNOBS, encoder_layout),
    "shares": (NUM_INPUTS, NUM_KNOBS, shares_layout),
    "guided": (NUM_GUIDED, NUM_CORRECTIONS, guided_layout),
}
"""Columns of observations and of actions, and what the former are."""
Transfers = bool | Literal["same-number"]
"""Whether a policy can serve other slices than those that it was trained for: any, none, or as many others."""
MIN_SLICES, MAX_SLICES = 2, 64
MOST_SHOWN = 200  # characters of unknown names in an error

_STRICT = ConfigDict(extra="forbid")
NonNegativeInt = Annotated[int, Field(ge=0)]


def decoder_layout(coding: Coding = "plain") -> dict[str, Any]:
    """The meaning of an action's columns: a bundle stores it, and refuses a runtime whose decoder differs."""
    corrections = corrections_layout() if coding == "guided" else {}
    return {
        "knobs": list(KNOB_FEATURES),
        "none_above": round(float(NONE_ABOVE), 6),
        "cpu_axis_per_thread_mcpu": list(CPU_AXIS_PER_THREAD_MCPU),
        "nice_axis": float(NICE_AXIS),
        "egress_axis_mbps": list(EGRESS_AXIS_MBPS),
        **corrections,
    }


@dataclass(frozen=True)
class TrainingRecord:
    """Where a policy comes from.

    Attributes:
        algorithm: for instance ``ppo``; it is shown wherever an agent is named, and some of printable ASCII.
        run_id: MLflow run, or none if it was not tracked.
        seed: of the training run.
        env_steps: control periods it has seen, over all lanes.
        train_s: wall-clock seconds of training.
        source: what the runs were drawn from, for instance ``scenario andrade-ramp``.
        git_revision: of the code, or none outside a checkout.
        versions: packages that made it.
        config: the training configuration.
    """

    __pydantic_config__ = _STRICT
    algorithm: Annotated[str, Field(pattern=r"^[ -~]{1,64}$")]
    seed: int
    env_steps: NonNegativeInt = 0
    train_s: Annotated[float, Field(ge=0)] = 0.0
    source: str = ""
    run_id: str | None = None
    git_revision: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreement:
    """How far the exported policy and the trained network differ: the largest difference in an action."""

    __pydantic_config__ = _STRICT
    max_abs_error: Annotated[float, Field(ge=0)]
    observations: NonNegativeInt
    slice_counts: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """Contents of ``bundle.yaml``."""

    __pydantic_config__ = _STRICT
    format_version: int
    slices: SliceSet
    encoder: dict[str, Any]
    decoder: dict[str, Any]
    nice_scope: NiceScope
    training: TrainingRecord
    agreement: Agreement | None = None
    transfers: Transfers = True


@dataclass(frozen=True)
class PolicyBundle:
    """A policy with its description; immutable.

    Attributes:
        slices: what it was trained for, or what `for_slices` has transferred it to.
        model: the ONNX model, serialised.
        nice_scope: what its nice column moves.
        training, agreement: where it comes from, how exactly it was exported.
        origin: folder it was loaded from or saved to.
        coding: what it observes and what its actions mean.
        transfers: `Transfers`.
    """

    slices: SliceSet
    model: bytes = field(repr=False)
    training: TrainingRecord
    nice_scope: NiceScope = "group"
    agreement: Agreement | None = None
    origin: Path | None = None
    coding: Coding = "plain"
    transfers: Transfers = True

    # -- writing -----------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> PolicyBundle:
        """Write or replace the folder; a reader never sees half of it.

        Raises:
            OSError: it cannot be written; a bundle already there is untouched.
        """
        files = {MODEL_FILE: self.model, DESCRIPTION_FILE: self._describe()}
        sums = "".join(f"{_sha256(data)}  {name}\n" for name, data in files.items())
        files[SUMS_FILE] = sums.encode()
        replace_folder(Path(folder), files)
        return dataclasses.replace(self, origin=Path(folder))

    def _describe(self) -> bytes:
        description = Description(
            format_version=FORMAT_VERSION,
            slices=self.slices,
            encoder=CODINGS[self.coding][2](),
            decoder=decoder_layout(self.coding),
            nice_scope=self.nice_scope,
            training=self.training,
            agreement=self.agreement,
            transfers=self.transfers,
        )
        return yaml.safe_dump(plain(dataclasses.asdict(description)), sort_keys=False).encode()

    # -- reading -----------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: str | Path) -> PolicyBundle:
        """Read and check a bundle: a folder, or a shipped bundle's name (`shipped.folder_of`).

        Raises:
            ConfigError: a missing or changed file, an unknown format version, another encoder or decoder than this
                version's, an invalid field, a model that is not accepted (`runtime.allowed`), or whose inputs or
                outputs are not the policy's.
        """
        bundle = cls.of(BundleFiles.read(folder))
        bundle.session()
        return bundle

    @classmethod
    def of(cls, files: BundleFiles) -> PolicyBundle:
        """A bundle from files that have been read; the model is neither parsed nor loaded.

        Raises:
            ConfigError: as `load`.
        """
        files.check_sums()
        source = f"{files}: {DESCRIPTION_FILE}"
        raw = parse_yaml(files.part(DESCRIPTION_FILE), source)
        if not isinstance(raw, dict):
            raise ConfigError(f"{source}: {type(raw).__name__} instead of a mapping")
        coding = _coding_of(raw)
        _check_layout(source, raw, coding)
        description = validate(Description, raw, source)
        return cls(
            slices=description.slices,
            model=files.part(MODEL_FILE),
            training=description.training,
            nice_scope=description.nice_scope,
            agreement=description.agreement,
            origin=files.folder,
            coding=coding,
            transfers=description.transfers,
        )

    # -- use ---------------------------------------------------------------------------------------------------

    def for_slices(self, slices: SliceSet, transfer: bool = False) -> PolicyBundle:
        """This policy for the slices of a node.

        Without ``transfer`` they must be those of its training: same order, names, S-NSSAIs, promises, weights and knob
        bounds. With ``transfer`` a policy that `transfers` serves any 2 to 64 slices, or as many as it was
        trained for, and decodes actions with their bounds.

        Raises:
            ConfigError: names the first field that differs; or the number of slices.
        """
        if transfer and self.transfers:
            same, given = self.transfers == "same-number", len(slices)
            if same and given != len(self.slices):
                raise ConfigError(
                    f"{self}: slices: {given} given; expected {len(self.slices)}: its network is for as many"
                )
            if not MIN_SLICES <= given <= MAX_SLICES:
                raise ConfigError(f"{self}: slices: {given} given; expected {MIN_SLICES} to {MAX_SLICES}")
            return dataclasses.replace(self, slices=slices)
        otherwise = ", or transfer" if self.transfers else ": it holds settings that were logged for these slices"
        if len(slices) != len(self.slices):
            raise ConfigError(
                f"{self}: slices: {len(slices)} given; expected the {len(self.slices)} it was trained for "
                f"({', '.join(self.slices.names)}){otherwise}"
            )
        for k, (spec, own) in enumerate(zip(slices.slices, self.slices.slices, strict=True)):
            for path, value, accepted in _differences(spec, own):
                raise ConfigError(f"{self}: slices.{k}.{path} = {value!r}: expected {accepted!r}{otherwise}")
        return self

    def session(self) -> ort.InferenceSession:
        """A fresh onnxruntime session on one thread: input ``observation`` (L, S, D), output ``action`` (L, S, A),
        or flat (`slicepilot.agents.runtime.session.Ports`).

        Raises:
            ConfigError: a model that is not accepted, or for another number of slices.
        """
        try:
            session = open_session(self.model, *self.widths)
            made_for = ports_of(session, *self.widths).num_slices
        except OnnxError as error:
            raise ConfigError(f"{self}: {MODEL_FILE}: {error}") from error
        if made_for not in (None, len(self.slices)):
            raise ConfigError(f"{self}: {MODEL_FILE}: is for {made_for} slices; expected {len(self.slices)}")
        return session

    def network(self) -> DeepSets | OnnxNetwork:
        """The network, compiled if it is a network of this project, else in onnxruntime.

        Raises:
            ConfigError: as `session`.
        """
        try:
            known = DeepSets.of(check_model(self.model), *self.widths)
        except OnnxError as error:
            raise ConfigError(f"{self}: {MODEL_FILE}: {error}") from error
        return known or OnnxNetwork(self.session())

    @property
    def widths(self) -> tuple[int, int]:
        """Columns of an observation and of an action."""
        columns, actions, _ = CODINGS[self.coding]
        return columns, actions

    def __str__(self) -> str:
        return f"bundle {str(self.origin)!r}" if self.origin else "bundle"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plain(value: Any) -> Any:
    """Tuples to lists, so that YAML and checkpoints hold nothing but plain values."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _coding_of(raw: dict[str, Any]) -> Coding:
    """The coding of a description, by the first feature after the plain features."""
    encoder = raw.get("encoder")
    features = encoder.get("features") if isinstance(encoder, dict) else None
    if not isinstance(features, list) or len(features) <= NUM_FEATURES:
        return "plain"
    for coding, (*_, layout) in CODINGS.items():
        if features[NUM_FEATURES] in layout()["features"]:
            return coding
    return "plain"


def _check_layout(source: str, raw: dict[str, Any], coding: Coding) -> None:
    """Format version first: only a known format's other fields mean anything."""
    version = raw.get("format_version")
    if version != FORMAT_VERSION:
        raise ConfigError(f"{source}: format_version = {version!r}: expected {FORMAT_VERSION}")
    for part, layout in (
        ("encoder", CODINGS[coding][2]()),
        ("decoder", decoder_layout(coding)),
    ):
        stored = raw.get(part)
        if not isinstance(stored, dict):
            raise ConfigError(f"{source}: {part} = {stored!r}: expected the {part}'s layout")
        for key in sorted(layout.keys() | stored.keys()):
            if stored.get(key) != layout.get(key):
                difference = _first_difference(stored.get(key), layout.get(key))
                raise ConfigError(f"{source}: {part}.{key}{difference}")


def _first_difference(stored: Any, expected: Any) -> str:
    """The first difference of two plain values: ``.path = value: expected value``, or missing and unknown names."""
    pairs: list[tuple[Any, Any, Any]] = []
    if _are_names(stored) and _are_names(expected) and set(stored) != set(expected):
        missing = ", ".join(name for name in expected if name not in stored)
        unknown = ", ".join(repr(name) for name in stored if name not in expected)
        parts = [f"without {missing}"] * bool(missing) + [f"unknown {unknown[:MOST_SHOWN]}"] * bool(unknown)
        return f": {'; '.join(parts)}: the bundle was made by another version of slicepilot; train it again"
    if isinstance(stored, dict) and isinstance(expected, dict):
        pairs = [(k, stored.get(k), expected.get(k)) for k in [*expected, *stored]]
    elif isinstance(stored, list) and isinstance(expected, list) and len(stored) == len(expected):
        pairs = [(k, *pair) for k, pair in enumerate(zip(stored, expected, strict=True))]
    for key, left, right in pairs:
        if left != right:
            return f".{key}{_first_difference(left, right)}"
    return f" = {stored!r}: expected {expected!r}"


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)


def _differences(given: Any, own: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(path, given, own) of every field in which two values of the same dataclass differ."""
    differences: list[tuple[str, Any, Any]] = []
    for spec in dataclasses.fields(given):
        left, right = getattr(given, spec.name), getattr(own, spec.name)
        path = f"{prefix}{spec.name}"
        if dataclasses.is_dataclass(left):
            differences += _differences(left, right, f"{path}.")
        elif left != right:
            differences.append((path, left, right))
    return differences
