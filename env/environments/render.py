"""Pictures of an environment without a plotting library: a text table, and bars with a short history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

RENDERING: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
HEIGHT, WIDTH, HISTORY = 480, 640, 240
# Colours that stay apart for colour-blind readers (Okabe and Ito), as RGB.
PALETTE = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))


def check_render_mode(render_mode: str | None) -> None:
    """Raise ConfigError for what is no render mode of ours."""
    if render_mode not in {None, *RENDERING["render_modes"]}:
        raise ConfigError(f"render_mode: unknown {render_mode!r}; expected {' or '.join(RENDERING['render_modes'])}")


def _limit(value: float, unit: str) -> str:
    return f"{value:.0f}{unit}" if np.isfinite(value) and value > 0 else "none"


def render_ansi(slices: SliceSet, telemetry: Telemetry, knobs: Knobs, lane: int = 0) -> str:
    """One line per slice of a lane: rates, delays, loss and the knobs that hold, at most 79 columns."""
    lines = [
        f"{'slice':<12}{'offered':>8}{'carried':>8} Mbit/s{'p50':>9}{'p99':>9} ms{'CPU':>7}{'nice':>5}{'egress':>8}"
    ]
    for s, name in enumerate(slices.names):
        lines.append(
            f"{name[:12]:<12}{telemetry.offered_mbps[s, lane]:8.1f}{telemetry.carried_mbps[s, lane]:8.1f}       "
            f"{telemetry.delay_p50_us[s, lane] / 1e3:9.2f}{telemetry.delay_p99_us[s, lane] / 1e3:9.2f}   "
            f"{_limit(knobs.cpu_limit_mcpu[s, lane], 'm'):>7}{knobs.nice[s, lane]:5.0f}"
            f"{_limit(knobs.egress_mbps[s, lane], ''):>8}"
        )
    idle, uplink = telemetry.cpu_idle_ratio[lane], telemetry.uplink_use_ratio[lane]
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


class Pictures:
    """What `render_rgb` draws of each lane: its last `HISTORY` periods.

    Args:
        slices: of all lanes.
        lanes: L.
    """

    def __init__(self, slices: SliceSet, lanes: int = 1) -> None:
        self._slices = slices
        self._periods: list[deque[FloatArray]] = [deque(maxlen=HISTORY) for _ in range(lanes)]

    def start(self, telemetry: Telemetry, lanes: Iterable[int]) -> None:
        """The first period of a new run in some lanes."""
        for lane in lanes:
            self._periods[lane].clear()
            self._periods[lane].append(telemetry.slices[:, :, lane].copy())

    def add(self, telemetry: Telemetry) -> None:
        """The next period of all lanes."""
        for lane, periods in enumerate(self._periods):
            periods.append(telemetry.slices[:, :, lane].copy())

    def picture(self, lane: int) -> npt.NDArray[np.uint8]:
        """(H, W, 3) of the lane's run so far."""
        return render_rgb(self._slices, np.stack(self._periods[lane]))
