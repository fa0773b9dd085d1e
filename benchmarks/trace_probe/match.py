"""Match the lines of a trace offline: ``python match.py TRACE`` prints delays as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

LINE = re.compile(r": (n3|n6) ([0-9a-f]+) (\d+)$")


def main() -> None:
    """Read the trace line by line, remember what came in, time what left."""
    came: dict[str, int] = {}
    delays_us, missed = [], 0
    with Path(sys.argv[1]).open() as trace:
        for line in trace:
            result = LINE.search(line)
            if result is None:
                continue
            point, packet, ns = result.groups()
            if point == "n3":
                came[packet] = int(ns)
            elif (start := came.pop(packet, None)) is not None:
                delays_us.append((int(ns) - start) / 1e3)
            else:
                missed += 1
    delays_us.sort()
    p50, p99 = (delays_us[int(level * len(delays_us))] if delays_us else None for level in (0.5, 0.99))
    print(json.dumps({"matched": len(delays_us), "missed": missed, "p50_us": p50, "p99_us": p99}))


if __name__ == "__main__":
    main()
