"""Properties that are tried for as long as you like, and the command that does so with everything that is fuzzed.

``python tests/fuzzing.py 2h`` (``make fuzz FUZZ_TIME=2h``) takes that long in all, an hour by default: one half is for
Go's parsers, the other for the tests marked `fuzz`, each target having the same. SLICEPILOT_FUZZ_SEED repeats what a
run has printed.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
SECONDS = float(os.environ.get("SLICEPILOT_FUZZ_S", "0"))
"""For each target; 0: as many examples as the suite tries."""
AT_ONCE = 500
"""Examples between two looks at the clock."""
SEED = os.environ.get("SLICEPILOT_FUZZ_SEED")


def fuzz(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], object], quick: int, cases: Iterable[object] = ()
) -> None:
    """Check examples: ``cases`` always, and of the strategy's ``quick``, or as many as there is time for."""
    tried = 0

    def run(value: Any) -> None:
        nonlocal tried
        tried += 1
        check(value)

    for case in cases:
        run = example(case)(run)
    attempt: Any = settings(
        max_examples=AT_ONCE if SECONDS else quick,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        report_multiple_bugs=False,
    )(given(strategy)(run))
    number = first = random.randrange(1 << 32) if SEED is None else int(SEED)
    until_s = time.monotonic() + SECONDS
    while True:
        try:
            seed(number)(attempt)()
        except BaseException as error:
            error.add_note(f"SLICEPILOT_FUZZ_SEED={number} repeats this")
            raise
        if time.monotonic() >= until_s:
            break
        number += 1
    if SECONDS:
        print(f"{os.environ.get('PYTEST_CURRENT_TEST', '')}: {tried:,} examples, seeds {first} to {number}", flush=True)


def seconds_of(text: str) -> float:
    """Of a time as Go writes them, such as 1h30m or 90s."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if not text or match is None:
        raise SystemExit(f"fuzzing.py: {text}: expected a time such as 2h, 1h30m or 90s")
    return sum(int(number or 0) * unit for number, unit in zip(match.groups(), (3600, 60, 1), strict=True))


def main(total_s: float) -> int:
    """Fuzz everything for so long; returns the exit status, 0 without a failure."""
    pytest = [sys.executable, "-m", "pytest", "-m", "fuzz"]
    listed = subprocess.run(
        [*pytest, "--collect-only", "-q"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    targets = listed.count("::")
    functions = sum(
        len(re.findall(r"^func Fuzz\w+", file.read_text(), re.MULTILINE))
        for file in (ROOT / "testbed" / "internal").rglob("*_test.go")
    )
    go_s, python_s = total_s / 2 / functions, total_s / 2 / targets
    print(f"{functions} parsers in Go for {go_s:.0f} s each, {targets} targets in Python for {python_s:.0f} s each")
    done = [
        subprocess.run([ROOT / "testbed" / "fuzz.sh", f"{go_s:.0f}s"], check=False),
        subprocess.run(
            [*pytest, "-q", "-s", "--timeout=0"],
            cwd=ROOT,
            env={**os.environ, "SLICEPILOT_FUZZ_S": f"{python_s:.0f}"},
            check=False,
        ),
    ]
    return max(abs(process.returncode) for process in done)


if __name__ == "__main__":
    sys.exit(main(seconds_of(sys.argv[1] if len(sys.argv) > 1 else "1h")))
