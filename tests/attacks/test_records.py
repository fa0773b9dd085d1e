"""Who owns the records folder, the publisher's user, wants a bundle promoted that did not earn it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.record.columns import encode, header_of, read_header, to_records, to_table
from slicepilot.controller.record.sealed import SealedRecords
from slicepilot.controller.record.seals import KEY_FILE, LOG
from slicepilot.controller.service.sealer import Sealer

from ..controller.publisher.conftest import Controller
from ..controller.record.conftest import description, seal, ticks
from .conftest import NOBODY, as_nobody

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the publisher's user is another one")
DIGEST, OTHER = "ab" * 32, "cd" * 32
COUNT = 6000


@pytest.fixture
def state() -> Iterator[Path]:
    """The state of a controller that ran for half a minute: four segments of nobody's, seals of root's."""
    from slicepilot.controller.record.segments import SegmentWriter

    base = Path(tempfile.mkdtemp())  # not in pytest's own folder, which nobody may enter
    base.chmod(0o755)
    records, told = ticks(COUNT), description(digest=DIGEST)
    seal(base, records, told, 1000)
    (base / "records").mkdir()
    os.chown(base / "records", NOBODY, NOBODY)

    def write() -> None:
        writer = SegmentWriter(base / "records", 1 << 30, segment_s=7.5)
        for part in np.array_split(records, COUNT // 100):
            writer.add(part, told, 2)
        writer.close()

    as_nobody(write)
    yield base
    shutil.rmtree(base)


def counted(state: Path) -> tuple[int, dict[str, str], tuple[int, int]]:
    """Ticks that count, files that are named, and ticks of the bundle that are missing, of how many."""
    sealed = SealedRecords(state / "records")
    return sum(len(one.records) for one in sealed.stretches()), sealed.broken, sealed.missing(DIGEST)


def segments(state: Path) -> list[Path]:
    return sorted((state / "records").iterdir())


def rewrite(path: Path, change: Callable[[Any, dict[str, Any]], Any], name: str | None = None) -> None:
    """A segment with other ticks or another description, which is sound as a file."""
    table = pq.read_table(path)
    header = read_header(pq.read_metadata(path).metadata)
    names = [spec["name"] for spec in header["description"]["slice_set"]["slices"]]
    records = change(to_records(table, names), header["description"])
    told = header["description"]
    data = encode(to_table(records, names), header_of(records, told, header["generation"]))
    (path.parent / (name or path.name)).write_bytes(data)


def test_what_the_publisher_has_written_counts(state: Path) -> None:
    assert counted(state) == (COUNT, {}, (0, COUNT))


def _better(records: Any, told: dict[str, Any]) -> Any:
    del told
    records["flags"][700] = 0
    records["infer_ns"][700] = 1_000
    return records


def _relabelled(records: Any, told: dict[str, Any]) -> Any:
    told["bundle"] = {"path": "bundle", "digest": OTHER, "promoted": False}
    return records


def _more(records: Any, told: dict[str, Any]) -> Any:
    del told
    extra = records[-500:].copy()
    extra["sequence"] += 10 * COUNT
    return extra


def _backwards(records: Any, told: dict[str, Any]) -> Any:
    del told
    return records[::-1]


def _of_another_run(records: Any, told: dict[str, Any]) -> Any:
    told["run_id"] = "run-9"
    return records


def change(path: Path) -> None:
    rewrite(path, _better)


def relabel(path: Path) -> None:
    rewrite(path, _relabelled)


def invent(path: Path) -> None:
    rewrite(path, _more, f"run-1-{1_780_000_000_000_000_000}.parquet")


def invent_a_run(path: Path) -> None:
    rewrite(path, _of_another_run, f"run-9-{1_780_000_000_000_000_000}.parquet")


def reorder(path: Path) -> None:
    rewrite(path, _backwards)


def repeat(path: Path) -> None:
    (path.parent / f"run-1-{1_780_000_000_000_000_000}.parquet").write_bytes(path.read_bytes())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/shadow")


def wait(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def swell(path: Path) -> None:
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("attack", [change, relabel, reorder, truncate, flip, link, wait, swell])
def test_a_segment_that_was_tampered_with_is_named_and_its_ticks_are_missing(
    state: Path, attack: Callable[[Path], None]
) -> None:
    path = segments(state)[1]
    as_nobody(lambda: attack(path))
    found, named, (missing, of) = counted(state)
    assert named, "nothing was said"
    assert set(named) <= {path.name, segments(state)[2].name}  # a seal may end in the segment after it
    assert "root:" not in str(named)
    assert found < COUNT
    assert (found + missing, of) == (COUNT, COUNT)


@pytest.mark.parametrize("attack", [invent, invent_a_run, repeat])
def test_ticks_that_never_were_or_were_told_before_do_not_count(state: Path, attack: Callable[[Path], None]) -> None:
    as_nobody(lambda: attack(segments(state)[1]))
    found, named, missing = counted(state)
    assert (found, missing) == (COUNT, (0, COUNT))
    assert SealedRecords(state / "records").unsealed == 0
    sealed = SealedRecords(state / "records")
    list(sealed.stretches())
    assert sealed.unsealed > 0 or named


def test_a_segment_that_is_gone_is_missed(state: Path) -> None:
    as_nobody(segments(state)[2].unlink)
    found, _, (missing, of) = counted(state)
    assert found < COUNT
    assert missing == of - found > 0


def test_the_oldest_segments_may_have_made_room(state: Path) -> None:
    as_nobody(segments(state)[0].unlink)
    found, _, (missing, of) = counted(state)
    assert (missing, of) == (0, found)


def test_ticks_of_another_controller_do_not_count(state: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    seal(other, ticks(1000), description("run-2", DIGEST))
    shutil.copytree(state / "records", other / "records")
    found, named, _ = counted(other)
    assert found == 0
    assert set(named.values()) == {"no run of this controller, or one that it has not sealed"}


def test_a_name_that_a_terminal_would_act_on_is_shown_as_text(state: Path) -> None:
    names = ["\33]0;owned\7.parquet", "a\nb.parquet"]
    as_nobody(lambda: [(state / "records" / name).touch() for name in names])
    as_nobody(lambda: os.close(os.open(os.fsencode(state / "records") + b"/\xff\xfe", os.O_CREAT)))
    named = counted(state)[1]
    assert len(named) == 3
    assert all(text.isprintable() for pair in named.items() for text in pair)


def test_nobody_reads_the_key_or_writes_seals(state: Path) -> None:
    def attack() -> None:
        for path in (state / KEY_FILE, state / LOG):
            with pytest.raises(PermissionError):
                path.read_bytes()
            with pytest.raises(PermissionError):
                path.open("ab")
            with pytest.raises(PermissionError):
                path.rename(path.with_suffix(".x"))

    as_nobody(attack)


@pytest.mark.parametrize("name", [KEY_FILE, LOG])
def test_a_key_or_seals_of_somebody_else_are_refused(state: Path, name: str) -> None:
    os.chown(state / name, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=r"uid 65534, mode 0600; accepted: a file of root's, mode 0600"):
        SealedRecords(state / "records")


def test_a_state_folder_that_others_write_to_is_refused(state: Path) -> None:
    os.chown(state, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=r"state .*: uid 65534"):
        SealedRecords(state / "records")


def test_seals_that_were_cut_out_of_the_log_or_changed_are_named(state: Path) -> None:
    lines = (state / LOG).read_text().splitlines(keepends=True)
    (state / LOG).write_text("".join([*lines[:3], *lines[4:]]))
    found, named, _ = counted(state)
    assert found == COUNT - 2000  # the one that is gone, and the one that says it came after it
    assert named[LOG] == "line 4 is not the controller's"
    changed = [*lines[:3], lines[3].replace("ticks run-1", "ticks run-2"), *lines[4:]]
    (state / LOG).write_text("".join(changed))
    found, named, _ = counted(state)
    assert (found, named[LOG]) == (COUNT - 1000, "line 4 is not the controller's")


def test_a_crash_amid_a_line_costs_that_line(state: Path) -> None:
    with (state / LOG).open("a") as file:
        file.write("ticks run-1 2 9 10 abc")
    seal(state, ticks(500), description("run-2", DIGEST))
    assert counted(state) == (COUNT, {}, (500, COUNT + 500))


def test_promote_does_not_believe_ticks_that_nobody_sealed(state: Path, make_bundle: Callable[[], Path]) -> None:
    """The publisher's user makes up an hour of shadow, and estimates to go with it."""
    from slicepilot.agents.learned.files import BundleFiles

    bundle = make_bundle()
    told, made_up = description("run-7", BundleFiles.read(bundle).digest), ticks(COUNT)

    def forge() -> None:
        data = encode(to_table(made_up, [f"slice{k}" for k in range(1, 6)]), header_of(made_up, told, 2))
        (state / "records" / f"run-7-{int(made_up['time_ns'][0]):019d}.parquet").write_bytes(data)

    as_nobody(forge)
    lenient = state / "criteria.yaml"
    lenient.write_text(
        "shadow: {min_duration_s: 1, min_ticks: 10}\nguard: {max_warning_per_hour: 1.0e+6}\n"
        "estimate: {min_windows: 0, min_promise_gain_s_per_hour: -1000, min_carried_gain_pct: -100}\n"
    )
    command = [sys.executable, "-m", "slicepilot.cli", "promote", str(bundle), "--records", str(state / "records")]
    done = subprocess.run(
        [*command, "-c", str(lenient), "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["recording"]["ticks"] == 0
    assert document["recording"]["unsealed_ticks"] == COUNT
    assert not (bundle / "promotion.yaml").exists()


def test_what_loop_publisher_and_sealer_make_together_counts(controller: Controller) -> None:
    """Numbers of every pattern of bits come back from disk as they were in the ring."""
    controller.description["bundle"] = {"path": "bundle", "digest": DIGEST, "promoted": False}
    controller.ring.describe(controller.description)
    rng, failures = np.random.default_rng(1), list[str]()
    with Sealer(controller.ring, controller.state, failures.append):
        controller.publish(records_mb=50.0)
        for _ in range(20):
            bits = rng.integers(0, 1 << 32, controller.telemetry.slices.shape, np.uint32).view(np.float32)
            controller.telemetry.slices[:] = bits
            controller.telemetry.slices.reshape(-1)[:3] = np.array(
                [0xFFC00001, 0x80000000, 0x7F800001], np.uint32
            ).view(np.float32)
            controller.tick(100)
        controller.ring.describe(controller.description | {"scheduling": "nice -20"})
        controller.tick(100)
        time.sleep(2.5)
        controller.tick(50)
    controller.go()
    assert controller.publisher is not None
    controller.publisher.stop()
    assert failures == []
    assert counted(controller.state) == (2150, {}, (0, 2150))
