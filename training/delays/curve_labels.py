"""Names written beside curves, where they cover least of what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slicepilot.data.intervals import Array

FONT_PT = 8.5
ANCHORS, DIRECTIONS, DISTANCES_PT = 16, 8, (6.0, 18.0, 34.0)
SAMPLED = 100  # points of a curve that labels keep off
CLEAR_PT = 5.0  # what a label keeps off other curves
LEADER_PARTS = (0.15, 0.3, 0.45, 0.6)  # of the way from a curve to the middle of its label
LEADER_PT = 8.0  # distance from which on a line leads from the label to its curve


@dataclass(frozen=True)
class Curve:
    """A line in data coordinates, (P,) each, with its name and colour."""

    x: Array
    y: Array
    name: str
    colour: str


@dataclass
class _Surroundings:
    """What a label is to keep off, in points of the page.

    Attributes:
        low, high: corners of the frame (2,).
        boxes: middle and half size of labels that are written, (K, 4).
        leaders: points on lines that lead to them, (P, 2).
    """

    low: Array
    high: Array
    boxes: Array = field(default_factory=lambda: np.empty((0, 4)))
    leaders: Array = field(default_factory=lambda: np.empty((0, 2)))

    def add(self, anchor: Array, centre: Array, half: Array) -> None:
        """A label was written."""
        self.boxes = np.vstack([self.boxes, [*centre, *half]])
        self.leaders = np.vstack([self.leaders, _along(anchor[None], centre[None], LEADER_PARTS)[:, 0]])

    def costs(self, anchors: Array, centres: Array, half: Array, own: Array, others: Array) -> Array:
        """What each place (C, 2) of a label covers or confuses, (C,); less is better.

        Args:
            anchors: points of its curve that it would be at.
            centres: its middle there.
            half: half its size, (2,).
            own: points of its curve, (P, 2); ``others``: of all others.
        """
        cost = 3.0 * _inside(centres, half + CLEAR_PT, others) + 2.0 * _inside(centres, half, own)
        cost += 8.0 * _inside(centres, half, self.leaders)
        leader = _along(anchors, centres, LEADER_PARTS)
        for points in leader:
            cost += 3.0 * _inside(points, np.full(2, 2.0), others)
        for middle, size in ((box[:2], box[2:]) for box in self.boxes):
            cost += 100.0 * (np.abs(centres - middle) < half + size + 2.0).all(axis=1)
            cost += 8.0 * (np.abs(leader - middle) < size).all(axis=2).sum(axis=0)
        if len(others):  # a label is its curve's when nothing else is nearer
            away = np.hypot(*(anchors[:, None] - others[None]).transpose(2, 0, 1)).min(axis=1)
            cost += np.maximum(0.0, 10.0 - away)
        cost += 100.0 * ((centres - half < self.low + 2) | (centres + half > self.high - 2)).any(axis=1)
        return cost + 0.15 * np.hypot(*(centres - anchors).T)


def label_curves(figure: Figure, axes: Axes, curves: Sequence[Curve]) -> None:
    """Write each curve's name at one of its points; call it when axes have their final limits and scales."""
    figure.draw_without_rendering()
    per_point = figure.dpi / 72.0
    frame = axes.get_window_extent()
    around = _Surroundings(np.asarray([frame.x0, frame.y0]) / per_point, np.asarray([frame.x1, frame.y1]) / per_point)
    drawn = []
    for curve in curves:
        points = axes.transData.transform(np.column_stack([curve.x, curve.y])) / per_point
        seen = np.isfinite(points).all(axis=1) & ((points >= around.low) & (points <= around.high)).all(axis=1)
        drawn.append(_even(points[seen]))
    for index, curve in enumerate(curves):
        if not len(drawn[index]):
            continue
        half = 0.5 * np.asarray([0.56 * FONT_PT * len(curve.name) + 2.0, FONT_PT + 3.0])
        others = np.concatenate([*(points for i, points in enumerate(drawn) if i != index), np.empty((0, 2))])
        anchors, shifts = _places(drawn[index], half)
        best = int(np.argmin(around.costs(anchors, anchors + shifts, half, drawn[index], others)))
        around.add(anchors[best], anchors[best] + shifts[best], half)
        at = axes.transData.inverted().transform(anchors[best] * per_point)
        far = float(np.hypot(*(np.maximum(np.abs(shifts[best]) - half, 0.0)))) > LEADER_PT
        line = {"arrowstyle": "-", "color": curve.colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 1}
        axes.annotate(
            curve.name, (float(at[0]), float(at[1])),
            xytext=(float(shifts[best][0]), float(shifts[best][1])), textcoords="offset points",
            ha="center", va="center", fontsize=FONT_PT, color=curve.colour, annotation_clip=False,
            arrowprops=line if far else None,
        )  # fmt: skip


def _even(points: Array) -> Array:
    """`SAMPLED` points (P, 2) at even distances along a line, or as many as there are if less than two."""
    if len(points) < 2:
        return points
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    at = np.linspace(0.0, along[-1], SAMPLED)
    return np.column_stack([np.interp(at, along, points[:, axis]) for axis in (0, 1)])


def _places(points: Array, half: Array) -> tuple[Array, Array]:
    """Points of the line to write at, and where the middle of the label is from there, (C, 2) each."""
    chosen = points[np.linspace(0, len(points) - 1, ANCHORS + 2).astype(int)[1:-1]]
    angles = np.linspace(0.0, 2.0 * np.pi, DIRECTIONS, endpoint=False)
    ways = np.column_stack([np.cos(angles), np.sin(angles)])
    shifts = np.concatenate([ways * (half + distance) for distance in DISTANCES_PT])
    return np.repeat(chosen, len(shifts), axis=0), np.tile(shifts, (len(chosen), 1))


def _along(starts: Array, ends: Array, parts: Sequence[float]) -> Array:
    """Points at parts of the ways between, (parts, C, 2)."""
    return np.stack([starts + part * (ends - starts) for part in parts])


def _inside(centres: Array, half: Array, points: Array) -> Array:
    """How many of the points (P, 2) are inside of boxes around the centres (C, 2): (C,)."""
    if not len(points):
        return np.zeros(len(centres))
    away = np.abs(centres[:, None] - points[None])
    return (away < half).all(axis=2).sum(axis=1).astype(np.float64)
