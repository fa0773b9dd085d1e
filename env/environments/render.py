"""Pictures of an environment without a plotting library: a text table, and bars with a short history."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

HEIGHT, WIDTH, HISTORY = 480, 640, 240
# Colours that stay apart for colour-blind readers (Okabe and Ito), as RGB.
PALETTE = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))


def _limit(value: float, unit: str) -> str:
    return f"{value:.0f}{unit}" if np.isfinite(value) and value > 0 else "none"


def render_ansi(slices: SliceSet, telemetry: Telemetry, knobs: Knobs) -> str:
    """One line per slice: rates, delays, loss and the knobs that hold, at most 79 columns."""
    lines = [
        f"{'slice':<12}{'offered':>8}{'carried':>8} Mbit/s{'p50':>9}{'p99':>9} ms{'CPU':>7}{'nice':>5}{'egress':>8}"
    ]
    for s, name in enumerate(slices.names):
        lines.append(
            f"{name[:12]:<12}{telemetry.offered_mbps[s, 0]:8.1f}{telemetry.carried_mbps[s, 0]:8.1f}       "
            f"{telemetry.delay_p50_us[s, 0] / 1e3:9.2f}{telemetry.delay_p99_us[s, 0] / 1e3:9.2f}   "
            f"{_limit(knobs.cpu_limit_mcpu[s, 0], 'm'):>7}{knobs.nice[s, 0]:5.0f}"
            f"{_limit(knobs.egress_mbps[s, 0], ''):>8}"
        )
    idle, uplink = telemetry.cpu_idle_ratio[0], telemetry.uplink_use_ratio[0]
    lines.append(f"node: CPU idle {idle:.0%}, uplink use {uplink:.0%}")
    return "\n".join(lines)


def render_rgb(slices: SliceSet, history: FloatArray) -> npt.NDArray[np.uint8]:
    """Carried rate (upper half) and p99 delay on a logarithmic scale (lower half) of each slice over time.

    ``history`` is (T, F, S): telemetry rows of the run so far; the last `HISTORY` periods are drawn.
    """
    image = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    half = HEIGHT // 2
    image[half - 1 : half + 1] = 160
    recent = history[-HISTORY:]
    rate = recent[:, 1] / max(float(recent[:, :2].max()), 1e-6)
    delay = np.log10(np.clip(recent[:, 3], 1.0, 1e8)) / 8.0
    columns = (np.arange(len(recent)) * (WIDTH - 1) / max(HISTORY - 1, 1)).astype(int)
    for top, values in ((0, rate), (half, delay)):
        rows = top + half - 6 - (np.clip(values, 0, 1) * (half - 12)).astype(int)
        for s in reversed(range(len(slices))):
            colour = PALETTE[s % len(PALETTE)]
            for thickness in (-1, 0, 1):
                image[rows[:, s] + thickness, columns] = colour
                image[rows[:, s] + thickness, np.minimum(columns + 1, WIDTH - 1)] = colour
    return image
