"""The publisher's user, who owns the records folder, wants a bundle promoted that did not earn it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.promotion.evidence import ReplayedWindows
from slicepilot.controller.promotion.signed import FOLDER, KEY_FILE, EvidenceFolder
from slicepilot.controller.record.columns import encode, header_of, read_header, to_records, to_table
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.controller.service.evidence_thread import EvidenceThread
from tests.command import slicepilot
from tests.controller.publisher.conftest import Controller
from tests.controller.record.conftest import count, description, ticks

from .conftest import as_nobody
from .unprivileged import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the publisher has another user")
DIGEST, OTHER = "ab" * 32, "cd" * 32
COUNT, WINDOWS = 6000, 6


@pytest.fixture
def state() -> Iterator[Path]:
    """The state of a controller that ran for half a minute: four segments of nobody's, evidence of root's."""
    from slicepilot.controller.record.segments import SegmentWriter

    base = Path(tempfile.mkdtemp())  # not in pytest's own folder, which nobody may enter
    base.chmod(0o755)
    records, run = ticks(COUNT), description(digest=DIGEST)
    count(base, records, run)
    (base / "records").mkdir()
    os.chown(base / "records", NOBODY, NOBODY)

    def write() -> None:
        writer = SegmentWriter(base / "records", 1 << 30, segment_s=7.5)
        for part in np.array_split(records, COUNT // 100):
            writer.add(part, run, 2)
        writer.close()

    as_nobody(write)
    yield base
    shutil.rmtree(base)


def counted(state: Path) -> tuple[int, tuple[int, int], dict[str, str]]:
    """Ticks that count, windows that are missing, of how many, and files that are named."""
    evidence, left_out = EvidenceFolder(state).load(DIGEST)
    reader = SegmentReader(state / "records")
    replayed = ReplayedWindows.of(evidence, reader)
    assert len(replayed.estimates) == replayed.windows - replayed.missing
    return evidence.ticks, (replayed.missing, replayed.windows), left_out | reader.broken


def segments(state: Path) -> list[Path]:
    return sorted((state / "records").iterdir())


def rewrite(path: Path, change: Callable[[Any, dict[str, Any]], Any], name: str | None = None) -> None:
    """A segment with other ticks or another description, which is sound as a file."""
    table = pq.read_table(path)
    header = read_header(pq.read_metadata(path).metadata)
    names = [spec["name"] for spec in header["description"]["slice_set"]["slices"]]
    records = change(to_records(table, names), header["description"])
    facts = header["description"]
    data = encode(to_table(records, names), header_of(records, facts, header["generation"]))
    (path.parent / (name or path.name)).write_bytes(data)


def _better(records: Any, facts: dict[str, Any]) -> Any:
    del facts
    records["flags"][700], records["infer_ns"][700] = 0, 1_000
    return records


def _relabelled(records: Any, facts: dict[str, Any]) -> Any:
    facts["bundle"] = {"path": "bundle", "digest": OTHER, "promoted": False}
    return records


def _more(records: Any, facts: dict[str, Any]) -> Any:
    del facts
    extra = records[-500:].copy()
    extra["sequence"] += 10 * COUNT
    return extra


def _of_another_run(records: Any, facts: dict[str, Any]) -> Any:
    facts["run_id"] = "run-9"
    return records


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


LATER = f"-{1_780_000_000_000_000_000}.parquet"
NAMED: dict[str, Callable[[Path], object]] = {
    "truncate": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "flip": flip,
    "link": lambda path: (path.unlink(), path.symlink_to("/etc/shadow")),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "swell": lambda path: os.truncate(path, 1 << 40),
}
"""Attacks on a segment that are reported with its name."""
UNNAMED: dict[str, Callable[[Path], object]] = {
    "change": lambda path: rewrite(path, _better),
    "reorder": lambda path: rewrite(path, lambda records, _: records[::-1]),
    "remove": Path.unlink,
}
MADE_UP: dict[str, Callable[[Path], object]] = {
    "relabel": lambda path: rewrite(path, _relabelled),
    "invent": lambda path: rewrite(path, _more, f"run-1{LATER}"),
    "invent a run": lambda path: rewrite(path, _of_another_run, f"run-9{LATER}"),
    "repeat": lambda path: (path.parent / f"run-1{LATER}").write_bytes(path.read_bytes()),
}


@pytest.mark.parametrize("attack", [*NAMED, *UNNAMED])
def test_a_window_that_was_tampered_with_is_missing_and_counts_stay(state: Path, attack: str) -> None:
    path = segments(state)[1]
    as_nobody(lambda: (NAMED | UNNAMED)[attack](path))
    counted_ticks, missing, named = counted(state)
    assert counted_ticks == COUNT
    assert missing in {(1, WINDOWS), (2, WINDOWS)}
    assert set(named) <= {path.name}
    assert "root:" not in str(named)
    assert named or attack in UNNAMED


@pytest.mark.parametrize("attack", MADE_UP)
def test_ticks_that_never_were_do_not_count(state: Path, attack: str) -> None:
    """What a file says of its ticks, that is, the bundle and the run, is not believed either."""
    as_nobody(lambda: MADE_UP[attack](segments(state)[1]))
    counted_ticks, (missing, windows), _ = counted(state)
    assert (counted_ticks, windows) == (COUNT, WINDOWS)
    assert missing <= 2


def test_the_oldest_segments_may_have_made_room(state: Path) -> None:
    as_nobody(segments(state)[0].unlink)
    assert counted(state)[:2] == (COUNT, (0, WINDOWS - 2))


def test_evidence_of_another_controller_does_not_count(state: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    count(other, ticks(1000), description("run-2", DIGEST))
    shutil.copytree(state / "records", other / "records")
    shutil.copy(state / FOLDER / "run-1.json", other / FOLDER)
    counted_ticks, missing, named = counted(other)
    assert (counted_ticks, missing) == (1000, (0, 0))
    assert named == {"run-1.json": "not signed by this controller, or changed since"}


def test_a_name_that_a_terminal_would_act_on_is_shown_as_text(state: Path) -> None:
    names = ["\33]0;owned\7.parquet", "a\nb.parquet"]
    as_nobody(lambda: [(state / "records" / name).touch() for name in names])
    as_nobody(lambda: os.close(os.open(os.fsencode(state / "records") + b"/\xff\xfe", os.O_CREAT)))
    named = counted(state)[2]
    assert len(named) == 3
    assert all(text.isprintable() for pair in named.items() for text in pair)


def test_nobody_else_reads_the_key_or_writes_evidence(state: Path) -> None:
    def attack() -> None:
        for path in (state / KEY_FILE, state / FOLDER / "run-1.json"):
            with pytest.raises(PermissionError):
                path.read_bytes()
            with pytest.raises(PermissionError):
                path.open("ab")
            with pytest.raises(PermissionError):
                path.rename(path.with_suffix(".x"))
        with pytest.raises(PermissionError):
            list((state / FOLDER).iterdir())

    as_nobody(attack)


@pytest.mark.parametrize("name", [KEY_FILE, f"{FOLDER}/run-1.json", FOLDER, "."])
def test_files_of_another_user_are_refused(state: Path, name: str) -> None:
    os.chown(state / name, NOBODY, NOBODY)
    if name.endswith("json"):
        counted_ticks, _, named = counted(state)
        assert counted_ticks == 0
        assert "uid 65534, mode 0600: expected a file of root's with mode 0600" in named["run-1.json"]
    else:
        with pytest.raises(ConfigError, match=r"uid 65534, mode 0\d00|uid 65534, mode 0755"):
            EvidenceFolder(state)


def test_counts_that_were_changed_do_not_count(state: Path) -> None:
    path = state / FOLDER / "run-1.json"
    signed = path.read_text()
    mac, _, body = signed.partition("\n")
    changed = body.replace(f'"ticks":{COUNT}', f'"ticks":{10 * COUNT}')
    for text in (f"{mac}\n{changed}", body, signed[:-100], "", f"{mac}\n{body}{body}"):
        path.write_text(text)
        assert counted(state)[0] == 0, text[:100]
    path.write_text(signed)
    path.rename(path.with_name("run-2.json"))
    assert counted(state)[2] == {"run-2.json": "expected version 1, and the name of its run"}


def test_promote_does_not_believe_ticks_that_the_controller_has_not_counted(state: Path, bundle: Path) -> None:
    """The publisher's user makes up an hour of shadow."""
    from slicepilot.agents.learned.files import BundleFiles

    facts, made_up = description("run-7", BundleFiles.read(bundle).digest), ticks(COUNT)

    def forge() -> None:
        data = encode(to_table(made_up, [f"slice{k}" for k in range(1, 6)]), header_of(made_up, facts, 2))
        (state / "records" / f"run-7-{int(made_up['time_ns'][0]):019d}.parquet").write_bytes(data)

    as_nobody(forge)
    lenient = state / "criteria.yaml"
    lenient.write_text(
        "shadow: {min_duration_s: 1, min_ticks: 10}\nguard: {max_warning_per_hour: 1.0e+6}\n"
        "estimate: {min_windows: 0, min_promise_gain_s_per_hour: -1000, min_carried_gain_pct: -100}\n"
    )
    done = slicepilot("promote", bundle, "--records", state / "records", "-c", lenient, "--json", timeout=120)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["recording"]["ticks"], document["recording"]["windows"]) == (0, 0)
    assert not (bundle / "promotion.yaml").exists()


def test_what_loop_and_publisher_and_counting_make_together_is_replayed(controller: Controller) -> None:
    """Numbers of every pattern of bits come back from disk as they were in the ring."""
    controller.description |= {"bundle": {"path": "bundle", "digest": DIGEST, "promoted": False}}
    controller.ring.describe(controller.description)
    rng, failures = np.random.default_rng(1), list[str]()
    with EvidenceThread(controller.ring, controller.state, failures.append, window_s=0.5):
        controller.publish(records_mb=50.0)
        for _ in range(20):
            bits = rng.integers(0, 1 << 32, controller.telemetry.slices.shape, np.uint32).view(np.float32)
            controller.telemetry.slices[:] = bits
            controller.telemetry.slices.reshape(-1)[:3] = np.array(
                [0xFFC00001, 0x80000000, 0x7F800001], np.uint32
            ).view(np.float32)
            controller.tick(100, mode=Mode.SHADOW)
        controller.ring.describe(controller.description | {"scheduling": "nice -20"})
        controller.tick(100, mode=Mode.SHADOW)
        time.sleep(2.5)
        controller.tick(50, mode=Mode.SHADOW)
    controller.go()
    assert controller.publisher is not None
    controller.publisher.stop()
    assert failures == []
    evidence, left_out = EvidenceFolder(controller.state).load(DIGEST)
    assert (evidence.ticks, left_out) == (2150, {})
    assert evidence.windows
    reader = SegmentReader(controller.state / "records")
    replayed = ReplayedWindows.of(evidence, reader)
    assert (replayed.missing, replayed.windows, reader.broken) == (0, len(evidence.windows), {})
