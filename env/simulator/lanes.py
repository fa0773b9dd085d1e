"""The same nodes several times side by side: arrays repeated along the lane axis."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import numpy as np

from .exogenous import Block, BlockSource

T = TypeVar("T")


def tile(value: T, copies: int) -> T:
    """Repeat the last axis of an array, or of all arrays in an object: lane l of copy c lands at c * L + l."""
    if isinstance(value, np.ndarray):
        return cast("T", np.tile(value, (1,) * (value.ndim - 1) + (copies,)))
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    elif hasattr(value, "__dict__"):
        names = list(vars(value))
    else:
        return value
    tiled: Any = copy.copy(value)
    for name in names:
        object.__setattr__(tiled, name, tile(getattr(value, name), copies))
    return cast("T", tiled)


class TiledSource:
    """A block source whose lanes all meet the same as those of ``source``, ``copies`` times over."""

    def __init__(self, source: BlockSource, copies: int) -> None:
        self.source, self.copies = source, copies

    def next_block(self) -> Block:
        """The next steps, at least one."""
        return tile(self.source.next_block(), self.copies)
