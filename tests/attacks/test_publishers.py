"""A loop's publisher under foreign control: its log lines, its metrics and its files, as the agent reads them.

It has its loop's standard error, serves metrics on a socket, and writes in a folder of records.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from slicepilot.cluster.agent.log import log_loop
from slicepilot.cluster.loops.leftovers import EVERY_S, KEPT, MARKS, MOST_AT_ONCE, Leftovers
from slicepilot.cluster.loops.process import LINE_BYTES, LoopProcess
from slicepilot.cluster.metrics.figures import AgentFacts, LoopFacts
from slicepilot.cluster.metrics.merging import MergedPages
from slicepilot.cluster.metrics.process import rendered
from slicepilot.cluster.plan.plan import LoopPlan
from slicepilot.controller.system import privileges
from tests.node.runtimes import until

from .conftest import as_nobody
from .unprivileged import NOBODY

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# -- lines -------------------------------------------------------------------------------------------------------------

DEPTHS = range(900, 1000)
"""Around the deepest that can be read, and the deepest that can be written."""
LINES = {
    "too deep to read": "[" * LINE_BYTES,
    "too deep, as an event": '{"event": "x", "a": ' + "[" * 5000,
    "a number of too many digits": '{"event": "x", "a": ' + "9" * 5000 + "}",
    "half of a character": '{"event": "\\ud800", "\\udfff": 1}',
    "what a terminal would obey": '{"event": "\\u009b2J\\u001b[2J\\u202e", "a\\u0007": "\\u2028"}',
    "the same as text": "\x9b2J\x1b[2J\u202e\x07\u2028",
    "names of ours": '{"event": "x", "loop": "victim", "time": "never", "self": 1, "facts": 2}',
    "no event": '{"event": ["x"]}',
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_one_line_of_the_loops(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log_loop("core.video", LINES[name])
    reported = capsys.readouterr().err
    assert reported.endswith("\n")
    assert reported[:-1].isascii()
    assert reported[:-1].isprintable()
    assert json.loads(reported)["loop"] == "core.video"
    assert json.loads(reported)["time"] != "never"


def test_a_line_of_any_depth_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    for depth in DEPTHS:
        log_loop("core.video", '{"event": "x", "a": ' + "[" * depth + "]" * depth + "}")
    assert len(capsys.readouterr().err.splitlines()) == len(DEPTHS)


@contextlib.contextmanager
def shared(folder: Path, reported: Callable[[str], None]) -> Iterator[tuple[LoopProcess, int]]:
    """A loop, which will have something to complain of, and its standard error as its publisher has it."""
    plan = LoopPlan("core.video", {"name": "edge"}, {"period_ms": -1}, "shadow", ())
    loop = LoopProcess(plan, folder, (folder / "run", folder / "state"), {}, reported)
    try:
        stderr = os.open(f"/proc/{loop.pid}/fd/2", os.O_WRONLY)
        try:
            yield loop, stderr
        finally:
            os.close(stderr)
    finally:
        loop.wait(30.0)


def test_a_line_ends_no_reading_and_is_read_by_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []

    def reported(text: str) -> None:
        lines.append(text)
        log_loop("core.video", text)

    with shared(tmp_path, reported) as (loop, stderr):
        # The second has no end, and is heard all the same.
        for heard, evil in ((4, b"[" * 200_000 + b"\n"), (11, b"x" * 500_000)):
            with os.fdopen(os.dup(stderr), "wb") as file:
                file.write(evil)
            until(functools.partial(lambda most: len(lines) >= most, heard), "not heard", 10.0)
        os.write(stderr, b"\n\xc2\x9b\x1b[2J\xff\xe2\x80\xae\n")
        until(lambda: loop.ended() is not None, "it does not end", 60.0)
    assert "period" in loop.why(), "what the loop itself says is heard after it"
    assert max(map(len, lines)) <= LINE_BYTES
    assert all(line.isprintable() for line in lines)
    assert len(capsys.readouterr().err.splitlines()) == len(lines)


# -- metrics -----------------------------------------------------------------------------------------------------------

HONEST = """# HELP slicepilot_paused Whether it is.
# TYPE slicepilot_paused gauge
slicepilot_paused 0.0
# HELP slicepilot_slice_delay_seconds Of packets.
# TYPE slicepilot_slice_delay_seconds histogram
slicepilot_slice_delay_seconds_bucket{le="3.2768e-05",slice="a\\\\b\\"c\\n{},="} 1.0
slicepilot_slice_delay_seconds_bucket{le="+Inf",slice="a\\\\b\\"c\\n{},="} 2.0
slicepilot_slice_delay_seconds_count{slice="a\\\\b\\"c\\n{},="} 2.0
slicepilot_slice_delay_seconds_sum{slice="a\\\\b\\"c\\n{},="} 1e+06
"""


def whose(name: str) -> dict[str, str]:
    return {"loop": f"core.{name}", "sliceset": name, "sliceset_namespace": "core"}


def page_of(*texts: tuple[str, str]) -> str:
    merged = MergedPages()
    for name, text in texts:
        with contextlib.suppress(ValueError):
            merged.add(text, whose(name))
    return generate_latest(merged).decode()


def test_a_page_has_the_metrics_of_those_whose_are_some(tmp_path: Path) -> None:
    texts = {"evil": "# TYPE x gauge\nx{garbage} 1\n", "honest": HONEST, "twice": "# TYPE x gauge\nx 1\nx 2\nx 1\n"}
    loops = tuple(LoopFacts(f"core.{name}", name, "core", str(tmp_path / name)) for name in texts)

    async def page() -> str:
        async with contextlib.AsyncExitStack() as stack:
            for name, text in texts.items():
                answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()

                async def serve(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer
                ) -> None:
                    await reader.readuntil(b"\r\n\r\n")  # a socket closed with bytes unread resets its peer
                    writer.write(answer)
                    writer.close()

                await stack.enter_async_context(await asyncio.start_unix_server(serve, tmp_path / name))
            return (await asyncio.to_thread(rendered, AgentFacts("edge", "1", 1.0, 2.0, loops=loops))).decode()

    samples = [item for metric in text_string_to_metric_families(asyncio.run(page())) for item in metric.samples]
    up = {item.labels["loop"]: item.value for item in samples if item.name == "slicepilot_agent_loop_up"}
    assert up == {"core.evil": 0, "core.honest": 1, "core.twice": 1}
    [paused] = [item for item in samples if item.name == "slicepilot_paused"]
    assert paused.labels == whose("honest")
    # Prometheus drops all but one of these, and takes the rest of the page.
    assert {item.labels["loop"] for item in samples if item.name == "x"} == {"core.twice"}


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="home")
def _home() -> Iterator[Path]:
    """For folders that only rm(1) knows how to remove."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.fixture(name="left")
def _left(home: Path) -> Leftovers:
    """Of `KEPT` loops and two more, ``evil`` and ``honest``, whose turn it is to go."""
    for name in ("run", "agent"):
        (home / name).mkdir()
    left = Leftovers(home / "agent", (home / "run", home / "state"))
    for number, name in enumerate(["evil", "honest", *(f"later{number}" for number in range(KEPT))]):
        left.mark(name)
        os.utime(home / "state" / MARKS / name, ns=(number, number))
        records = home / "state" / name / "records"
        records.mkdir(parents=True)
        os.chown(records, NOBODY, -1)
    in_records(home, lambda: Path("segment").touch(), "honest")
    return left


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def in_records(home: Path, act: Callable[[], object], name: str = "evil") -> None:
    """What a publisher does in its folder."""
    folder = os.open(home / "state" / name / "records", os.O_RDONLY)

    def there() -> None:
        os.fchdir(folder)
        act()

    try:
        as_nobody(there)
    finally:
        os.close(folder)


def nested(depth: int, mode: int) -> None:
    for _ in range(depth):
        Path("d").mkdir()
        os.chdir("d")
        Path("link").symlink_to("/")
    for _ in range(depth):
        os.chdir("..")
        Path("d").chmod(mode)


def tidied(left: Leftovers) -> None:
    """By root as an agent's container has it, in a child."""

    def tidy() -> None:
        privileges.keep_only(["CAP_CHOWN"])
        assert left.tidy((), 0.0) == []

    as_nobody(tidy, uid=0)


@root
@pytest.mark.parametrize("mode", [0o755, 0])
def test_however_deep_folders_are_they_are_removed(home: Path, left: Leftovers, mode: int) -> None:
    in_records(home, lambda: nested(1200, mode))
    tidied(left)
    assert not {"evil", "honest"} & set(names(home / "state"))
    assert len(names(home / "state" / MARKS)) == KEPT


@root
def test_what_cannot_be_removed_costs_itself_alone(home: Path, left: Leftovers) -> None:
    evil = home / "state" / "evil"
    evil.rename(home / "elsewhere")
    evil.symlink_to(home / "elsewhere")
    [reported] = left.tidy((), 0.0)
    assert reported.startswith("evil: ")
    assert names(home / "elsewhere") == ["records"]
    assert not (home / "state" / "honest").exists()


@root
def test_many_files_are_removed_by_and_by(home: Path, left: Leftovers) -> None:
    def fill() -> None:
        for number in range(MOST_AT_ONCE):
            Path(str(number)).touch()

    in_records(home, fill)
    assert left.tidy((), 0.0) == [f"evil: more than {MOST_AT_ONCE} files; the rest goes later"]
    for folder in (home / "state" / "evil", home / "state" / "evil" / "records"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755, "a loop of that name may come again"
    assert not (home / "state" / "honest").exists()
    assert left.tidy((), EVERY_S) == []
    assert not (home / "state" / "evil").exists()


@root
def test_no_link_is_followed_that_comes_meanwhile(home: Path, left: Leftovers) -> None:
    precious = home / "precious"
    precious.mkdir()
    (precious / "file").touch()

    def flip() -> None:
        Path("link").symlink_to(precious)
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                Path("d").mkdir()
                Path("d").rename("e")
                Path("link").rename("d")
                Path("d").rename("link")
                Path("e").rmdir()

    home.chmod(0o755)
    attacker = os.fork()
    if not attacker:
        try:
            in_records(home, flip)
        finally:
            os._exit(0)
    try:
        now_s = 0.0
        while left.tidy((), now_s) and now_s < 100 * EVERY_S:
            now_s += EVERY_S
    finally:
        os.waitpid(attacker, 0)
    assert names(precious) == ["file"]
    assert not (home / "state" / "evil").exists()


def test_the_type_of_a_metric_is_what_most_publishers_say() -> None:
    evil = HONEST.replace("paused gauge", "paused summary").replace("Whether", "Never mind whether")
    page = page_of(("evil", evil), ("a", HONEST), ("b", HONEST))
    assert "# TYPE slicepilot_paused gauge\n" in page
    assert page.count("# TYPE slicepilot_paused ") == page.count("# HELP slicepilot_paused ") == 1
