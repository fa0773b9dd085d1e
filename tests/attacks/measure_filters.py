"""What a process's filter of system calls costs each call.

    python -m tests.attacks.measure_filters [--runs 3000] [--json]

In a child for each kind of process: write(2) of a byte to /dev/null, the least mean over runs of 200 calls, before the
filter and under it. What other programs do meanwhile only lengthens runs, so the least one is the call's own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time

from slicepilot.controller.system import confinement as rules
from slicepilot.controller.system.confinement import NotConfinedError, Rules, filter_calls

CALLS = 200
KINDS = {"controller": rules.CONTROLLER, "supervisor": rules.SUPERVISOR, "publisher": rules.PUBLISHER}


def least_ns(runs: int, descriptor: int) -> float:
    """Of a call, with what Python adds."""
    now, write, best = time.perf_counter_ns, os.write, 1 << 62
    for _ in range(runs):
        began_ns = now()
        for _ in range(CALLS):
            write(descriptor, b"x")
        best = min(best, now() - began_ns)
    return best / CALLS


def measured(kind: Rules, runs: int) -> tuple[float, float]:
    """ns a call without, and with. Ends with the filter in place, which no process gets rid of."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    without = least_ns(runs, descriptor)
    filter_calls(kind)
    return without, least_ns(runs, descriptor)


def main() -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {}
    for name, kind in KINDS.items():
        with multiprocessing.get_context("fork").Pool(1) as pool:
            try:
                without, under = pool.apply(measured, (kind, given.runs))
            except NotConfinedError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        found[name] = {"without_ns": without, "under_ns": under, "filter_ns": under - without}
    if given.json:
        print(json.dumps(found))
        return 0
    print("write(2) to /dev/null, ns a call: without, under the filter, difference")
    for name, one in found.items():
        print(f"  {name:<12}{one['without_ns']:6.0f}{one['under_ns']:6.0f}{one['filter_ns']:6.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
