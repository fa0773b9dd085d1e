"""How much the suite tries: enough to notice a fault in minutes, or with SLICEPILOT_THOROUGH=1 all that it can."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("SLICEPILOT_THOROUGH") == "1"
# Of a thorough run's examples, and of those at least so many.
QUICK_SHARE, FEWEST = 4, 10


def examples(thorough: int) -> int:
    """Of a property: this many in a thorough run, a part of them in a quick run."""
    return thorough if THOROUGH else min(thorough, max(FEWEST, thorough // QUICK_SHARE))


def repetitions(quick: int, thorough: int) -> int:
    """Of something that takes its time each time."""
    return thorough if THOROUGH else quick
