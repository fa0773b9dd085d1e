"""The header of a file of episodes, with the columns that make up each array of an episode."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from slicepilot.configs import ConfigError, validate

from .episodes import Episode, EpisodeSet

FORMAT = 1
OWN_COLUMNS = ("episode", "step", "behaviour")
STEMS = {"observations": "observed", "actions": "action", "rewards": "reward"}
"""Names of columns that differ from the name of their array."""
AXES = {
    "observations": ("slices", "features"),
    "actions": ("slices", "knobs"),
    "wanted": ("slices", "knobs"),
    "telemetry": ("slice_fields", "slices"),
    "node": ("node_fields",),
    "valid": ("slices",),
    "unmeasured": ("slices",),
}
OBSERVED = ("observations", "telemetry", "node", "valid", "unmeasured")
MAPPINGS = ("terms", "decisions")

Array = npt.NDArray[Any]
Count = Annotated[int, Field(ge=0)]
DType = Literal["bool", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ArrayHeader:
    """One array that every episode has.

    Attributes:
        name: of the episode's attribute; ``terms.NAME`` and ``decisions.NAME`` are entries of ``terms``, ``decisions``.
        shape: of one step.
        dtype: NumPy's name.
        columns: of the file, in the array's own (C) order; values common to all slices have a single column.
    """

    __pydantic_config__ = _STRICT
    name: str
    shape: tuple[Count, ...]
    dtype: DType
    columns: tuple[str, ...]

    @property
    def observed(self) -> bool:
        """Whether it has a row more than there are decisions."""
        return self.name in OBSERVED


@dataclass(frozen=True)
class EpisodeHeader:
    """One episode; see `slicepilot.data.episodes.episodes.Episode`."""

    __pydantic_config__ = _STRICT
    behaviour: str
    steps: Count
    terminated: bool
    info: dict[str, Any]


@dataclass(frozen=True)
class Header:
    """A file: what its episodes share, their arrays, and each of them in the order of its rows."""

    __pydantic_config__ = _STRICT
    format: int
    facts: dict[str, Any]
    arrays: tuple[ArrayHeader, ...]
    episodes: tuple[EpisodeHeader, ...]

    @classmethod
    def of(cls, episodes: EpisodeSet) -> Header:
        """What describes a set.

        Raises:
            ConfigError: no episodes; some with other arrays, shapes or types than the first; names used twice.
        """
        if not len(episodes):
            raise ConfigError("episodes = none: expected at least one")
        first = _shapes(episodes.episodes[0])
        for number, episode in enumerate(episodes):
            own = _shapes(episode)
            for name in first | own:
                if own.get(name) != first.get(name):
                    raise ConfigError(
                        f"episode {number}: {name} = {own.get(name)}: expected {first.get(name)}, as in the first"
                    )
        labels = _labels(episodes.facts)
        if not all(_shareable(episode.observations, labels) for episode in episodes):
            labels["shared"] = ()
        arrays = tuple(
            ArrayHeader(name, shape, dtype, _columns(name, shape, labels)) for name, (shape, dtype) in first.items()
        )
        header = cls(
            format=FORMAT,
            facts=dict(episodes.facts),
            arrays=arrays,
            episodes=tuple(EpisodeHeader(e.behaviour, len(e), e.terminated, dict(e.info)) for e in episodes),
        )
        header.check()
        return header

    @classmethod
    def from_json(cls, text: bytes | str, source: str) -> Header:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: the text is not a header, or of another format.
        """
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{source}: header: not JSON: expected a file of episodes") from error
        result = raw.get("format") if isinstance(raw, dict) else None
        if result != FORMAT:
            raise ConfigError(f"{source}: format = {result!r}: expected {FORMAT}")
        header = validate(cls, raw, source)
        header.check(source)
        return header

    def to_json(self) -> str:
        """As in the file; raises ConfigError for facts that JSON has no form for."""
        try:
            return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"facts, info: {error}: expected plain values that JSON can hold") from error

    def check(self, source: str = "episodes") -> None:
        """Raise ConfigError where arrays and columns do not fit together."""
        names = Counter([*OWN_COLUMNS, *(column for array in self.arrays for column in set(array.columns))])
        names.update(f"array {array.name}" for array in self.arrays)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ConfigError(f"{source}: column {twice[0]!r}: is there twice; expected names that differ")
        for array in self.arrays:
            if array.dtype not in get_args(DType):
                raise ConfigError(
                    f"{source}: array {array.name!r}: type {array.dtype}; expected {', '.join(get_args(DType))}"
                )
            if len(array.columns) != math.prod(array.shape):
                raise ConfigError(
                    f"{source}: array {array.name!r}: {len(array.columns)} columns; expected {array.shape} of them"
                )

    @property
    def rows(self) -> int:
        """Of the file."""
        return sum(episode.steps + 1 for episode in self.episodes)


def arrays_of(episode: Episode) -> dict[str, Array]:
    """An episode's arrays by the names that `ArrayHeader` has for them."""
    result: dict[str, Array] = {}
    names = "observations", "actions", "rewards", "wanted", "log_density", "telemetry", "node", "valid", "unmeasured"
    for name in names:
        if (array := getattr(episode, name)) is not None:
            result[name] = array
    for mapping in MAPPINGS:
        result |= {f"{mapping}.{key}": array for key, array in getattr(episode, mapping).items()}
    return result


def episode_of(header: EpisodeHeader, arrays: Mapping[str, Array]) -> Episode:
    """The inverse of `arrays_of`; raises ValueError for arrays that make no episode."""
    entries: dict[str, Any] = {mapping: {} for mapping in MAPPINGS}
    for name, array in arrays.items():
        mapping, dot, key = name.partition(".")
        if dot:
            if mapping not in MAPPINGS:
                raise ValueError(f"array {name!r}: unknown")
            entries[mapping][key] = array
        else:
            entries[name] = array
    try:
        return Episode(**entries, behaviour=header.behaviour, terminated=header.terminated, info=header.info)
    except TypeError as error:
        raise ValueError(f"arrays {', '.join(arrays)}: {error}") from error


def _shapes(episode: Episode) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape of a step and type of every array."""
    return {name: (array.shape[1:], str(array.dtype)) for name, array in arrays_of(episode).items()}


def _labels(facts: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Names of the entries along an axis, where the facts have them."""

    def listed(part: str, key: str) -> Sequence[str]:
        layout = facts.get(part)
        return [str(name) for name in layout.get(key, ())] if isinstance(layout, Mapping) else ()

    slices, shared = facts.get("slices"), facts.get("shared_features")
    names = [str(spec.get("name")) for spec in slices if isinstance(spec, Mapping)] if isinstance(slices, list) else []
    return {
        "slices": names,
        "features": listed("encoder", "features"),
        "knobs": listed("decoder", "knobs"),
        "slice_fields": listed("telemetry", "slices"),
        "node_fields": listed("telemetry", "node"),
        "shared": [str(name) for name in shared] if isinstance(shared, list) else (),
    }


def _shareable(observations: Array, labels: Mapping[str, Sequence[str]]) -> bool:
    """Whether the features that are said to be the same for all slices are."""
    features = list(labels["features"])
    shared = [features.index(name) for name in labels["shared"] if name in features]
    if observations.ndim != 3 or len(features) != observations.shape[2]:
        return False
    own = np.ascontiguousarray(observations[:, :, shared]).view(np.uint8)  # NaN is as good as any other bits
    return bool((own == own[:, :1]).all())


def _columns(name: str, shape: tuple[int, ...], labels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Names of an array's columns: ``slice1.observed_carried_mbps``; numbers stand in for labels that are not known."""
    mapping, _, key = name.partition(".")
    stem = f"{mapping.removesuffix('s')}_{key}" if key else STEMS.get(name, name)
    axes: tuple[str, ...] = AXES.get(name, ("slices",) if mapping == "decisions" else ())
    known = len(axes) == len(shape) and all(len(labels[a]) == size for a, size in zip(axes, shape, strict=True))
    if not known:
        return tuple("_".join([stem, *map(str, index)]) for index in np.ndindex(shape))
    if name in {"telemetry", "node"}:
        stem = ""
    columns = []
    for index in itertools.product(*(labels[axis] for axis in axes)):
        own = dict(zip(axes, index, strict=True))
        of = None if own.get("features") in labels["shared"] else own.get("slices")
        quantity = "_".join(filter(None, [stem, *(label for axis, label in own.items() if axis != "slices")]))
        columns.append(quantity if of is None else f"{of}.{quantity}")
    return tuple(columns)
