"""`slicepilot node identify` beside `slicepilot testbed identify`: CPU time of a packet, for the same work on each.

    python -m tests.node.compare_identifications

As root, some three minutes, on a machine that has nothing else to do: the testbed's is a fit to rates and delays, which
takes what other programs use for costs of packets. Exit code 1 where the two differ by more than a fifth.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from slicepilot.configs import load
from slicepilot.env.simulator.hardware import HardwareFile

from .foreign import COUNT, Foreign
from .test_foreign import SLICEPILOT, document_of, slicepilot

BURN_NS = 100_000  # as configs/testbed/default.yaml has it
TOLERANCE = 0.2


def main() -> int:
    """Print both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counted = on_a_node(folder)
        out = folder / "testbed.yaml"
        command = [*SLICEPILOT, "testbed", "identify", "--segments", "10", "--unseen", "4", "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = load("hardware", str(out), HardwareFile)
    # A thread that is busy for an eighth of the time, as those on the node are.
    fitted = result.hardware.upf_cost_us * (1 + result.hardware.wake_cost_ratio * 7 / 8)
    off = counted / fitted - 1
    print(f"node identify: {counted:.1f} us a packet, testbed identify: {fitted:.1f} us ({100 * off:+.0f}%)")
    print(f"the testbed's fit: rates off by {result.fit['throughput_median_pct']:.1f}% (median) on unseen segments")
    return int(abs(off) > TOLERANCE)


def on_a_node(folder: Path) -> float:
    """CPU time of a packet, a mean over slices."""
    foreign = Foreign(folder)
    try:
        for number in range(1, COUNT + 1):
            foreign.stop_upf(number)
            foreign.start_upf(number, BURN_NS=str(BURN_NS))
        node = folder / "node.yaml"
        node.write_text(yaml.safe_dump(document_of(foreign)))
        foreign.load(seconds=40, mbps=8)
        time.sleep(0.5)
        reported = slicepilot(
            "node", "identify", str(node), "--segments", "6", "--out", str(folder / "own.yaml"), "--json"
        )
        slices = json.loads(reported.stdout)["slices"]
    finally:
        foreign.down()
    return sum(float(item["cost_us"]) for item in slices) / len(slices)


if __name__ == "__main__":
    sys.exit(main())
