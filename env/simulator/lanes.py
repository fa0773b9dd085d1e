"""The same node in several lanes: what is fixed and what is exogenous, repeated along the lane axis."""

from __future__ import annotations

import copy
from dataclasses import fields

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context, NodeTraits
from slicepilot.env.slices import Promises

from .exogenous import Block, BlockSource
from .hardware import HardwareArrays


def tile_lanes(array: FloatArray, copies: int) -> FloatArray:
    """Repeat the lane axis (the last one): lane l of copy c lands at c * L + l."""
    return np.tile(array, (1,) * (array.ndim - 1) + (copies,))


def tile_promises(promises: Promises, copies: int) -> Promises:
    """The same promises for ``copies`` times the lanes."""
    return Promises(
        tile_lanes(promises.weight, copies),
        tile_lanes(promises.committed_mbps, copies),
        tile_lanes(promises.delay_bound_us, copies),
        tile_lanes(promises.least_mbps, copies),
    )


def tile_context(context: Context, copies: int) -> Context:
    """The same facts for ``copies`` times the lanes."""
    return Context(
        period_s=tile_lanes(context.period_s, copies),
        logical_cpus=tile_lanes(context.logical_cpus, copies),
        uplink_mbps=tile_lanes(context.uplink_mbps, copies),
        promises=tile_promises(context.promises, copies),
        threads=tile_lanes(context.threads, copies),
        num_steps=context.num_steps,
        traits=context.traits and tile_traits(context.traits, copies),
    )


def tile_traits(traits: NodeTraits, copies: int) -> NodeTraits:
    """The same traits for ``copies`` times the lanes."""
    return NodeTraits(*(tile_lanes(getattr(traits, field.name), copies) for field in fields(traits)))


def tile_hardware(hardware: HardwareArrays, copies: int) -> HardwareArrays:
    """The same nodes for ``copies`` times the lanes."""
    tiled = copy.copy(hardware)
    for name, value in vars(hardware).items():
        setattr(tiled, name, tile_lanes(value, copies))
    return tiled


def tile_block(block: Block, copies: int) -> Block:
    """The same arrivals and noise for ``copies`` times the lanes."""
    return Block(tile_lanes(block.slices, copies), tile_lanes(block.node, copies))


class TiledSource:
    """A block source whose lanes all meet the same as those of ``source``, ``copies`` times over."""

    def __init__(self, source: BlockSource, copies: int) -> None:
        self.source, self.copies = source, copies

    def next_block(self) -> Block:
        """The next steps, at least one."""
        return tile_block(self.source.next_block(), self.copies)
