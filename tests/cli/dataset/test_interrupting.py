"""Files full of faults are read fast, and a command that reads them can be ended at any time."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "slicepilot.cli", "dataset"]
HEADER = "slice,delay_us,pkt_len,ts_rx_ns,ts_tx_ns,netif_rx\n"
LINES = 300_000
MANY = 3_000_000  # take many seconds to read
VALIDATE_CPU_S = 5.0  # most of it for imports
ENDED_S = 1.0


def row(n: int, name: str = "mMTC", interface: str = "eth0") -> str:
    sent_ns = 7 * 10**12 + n * 50_000
    return f"{name},21.5,66,{sent_ns - 21_500},{sent_ns},{interface}"


# A quote in the middle of a field is a character like others.
FAULTY = {
    "open quote at the beginning": (lambda n: row(n, name='"mMTC') if n else row(n), LINES - 1),
    "open quote at the end": (lambda n: row(n, interface='"eth0') if n % 2 else row(n), LINES // 2),
    "one quote too many": (lambda n: row(n, name='"mMTC"') + ('"' if n % 2 else ',"'), LINES // 2),
    "no number": (lambda n: row(n).replace("21.5", "2!.5") if n % 2 else row(n), LINES // 2),
    "not UTF-8": (lambda n: row(n, name="m\udce9TC") if n % 2 else row(n), LINES // 2),
}


def written(path: Path, lines: list[str]) -> Path:
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTY)
def test_faulty_lines_cost_some_microseconds(tmp_path: Path, fault: str) -> None:
    line, faults = FAULTY[fault]
    path = written(tmp_path / "o1_forwarding_light.csv", [line(n) for n in range(LINES)])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [*PROGRAM, "validate", str(path), "--json"], capture_output=True, text=True, timeout=100, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode in (1, 2), result.stderr
    if result.returncode == 1:
        [checked] = json.loads(result.stdout)["checked"]
        assert checked["faults"]["total"] == faults
        assert checked["rows"] == LINES - faults
    else:
        assert "rows fits its columns, the first in line" in result.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < VALIDATE_CPU_S


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of which every line is looked at by itself."""
    folder = tmp_path_factory.mktemp("faulty")
    lines = [row(n, name='"mMTC"') + ('"' if n % 2 else ',"') for n in range(MANY)]
    return written(folder / "o1_forwarding_light.csv", lines)


def begins_to_read(process: subprocess.Popen[str], path: Path) -> bool:
    """Whether a process has read a share of a file."""
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if entry.readlink() == path:
                position = Path(f"/proc/{process.pid}/fdinfo/{entry.name}").read_text().split()[1]
                return int(position) > 4 << 20
        except OSError:
            continue
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("validate", signal.SIGINT),
        ("import", signal.SIGTERM),
        ("import", signal.SIGINT),
    ],
)
def test_a_command_that_reads_ends_at_a_signal(
    tmp_path: Path, faulty: Path, command: str, number: signal.Signals
) -> None:
    others = {"import": ["--out", str(tmp_path / "out")]}
    process = subprocess.Popen(
        [*PROGRAM, command, str(faulty), *others.get(command, [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not begins_to_read(process, faulty):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        wanted = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - wanted < ENDED_S
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (128 + number, "")
    assert err in ("", "slicepilot: error: interrupted\n")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


STARTING = """
import os, signal, sys, threading, time
from slicepilot.cli import main  # before this Python itself ends at a signal
threading.Thread(target=lambda: (time.sleep({after_s}), os.kill(os.getpid(), {number})), daemon=True).start()
sys.argv = ["slicepilot", "dataset", "validate", sys.argv[1]]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.03, 0.15, 0.4])
def test_a_command_that_starts_ends_at_a_signal(faulty: Path, after_s: float, number: signal.Signals) -> None:
    program = STARTING.format(after_s=after_s, number=int(number))
    result = subprocess.run(
        [sys.executable, "-c", program, str(faulty)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert result.returncode == 128 + number, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr in ("", "slicepilot: error: interrupted\n")
