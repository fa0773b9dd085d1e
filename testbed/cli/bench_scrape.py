"""``slicepilot bench scrape``: does reading the metrics disturb the loop?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.bench import ScrapeBench
from slicepilot.cli.shared.output import console, print_json, progress_bar

if TYPE_CHECKING:
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.controller.loop.timing import DurationHistogram
    from slicepilot.env.slices import SliceSet
    from slicepilot.testbed.bench.node import BenchNode

PARTS = ("quiet", "scraped")
# As many scrapers at once, all of them again and again; at the end it prints how many scrapes were answered in full.
SCRAPER = """
import asyncio, os, sys, time

port, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
cpus = os.sched_getaffinity(0)
os.sched_setaffinity(0, cpus - {int(sys.argv[4])} or cpus)

async def scrape():
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n")
    body = await reader.read(-1)
    writer.close()
    return body.startswith(b"HTTP/1.1 200") and b"slicepilot_" in body

async def main():
    end, answered = time.monotonic() + seconds, 0
    while (began := time.monotonic()) < end:
        answers = await asyncio.gather(*(scrape() for _ in range(count)), return_exceptions=True)
        answered += sum(answer is True for answer in answers)
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
    print(answered)

asyncio.run(main())
"""


def scrape(
    bundle: Annotated[
        Path | None, typer.Option(help="Policy bundle (default: the newest under runs/, or the shipped one).")
    ] = None,
    slices: Annotated[str, typer.Option(help="Slice set.")] = "five-video",
    concurrent: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of simultaneous scrapes, every second.")
    ] = 200,
    period_ms: Annotated[float, typer.Option(min=1, max=1000, help="Control period.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=2, max=120, help="Duration of each part of a turn.")] = 10.0,
    turns: Annotated[int, typer.Option(min=2, max=100, help="Number of repetitions of both parts.")] = 6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the loop's p99 with and without many clients that scrape its metrics.

    Needs root. The loop uses the last CPU, publisher and scrapers the others.

    Example: [bold]slicepilot bench scrape --concurrent 50 --turns 4[/bold]
    """
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.env.slices import SliceSet
    from slicepilot.testbed.bench.bundle import bundle_folder
    from slicepilot.testbed.bench.node import BenchNode

    slice_set = SliceSet.from_yaml(slices)
    policy = PolicyBundle.load(bundle_folder(bundle))
    ticks = round(1e3 * seconds / period_ms)
    p99_us: dict[str, list[float]] = {part: [] for part in PARTS}
    answered = 0
    with BenchNode(slice_set) as node, progress_bar() as progress:
        task = progress.add_task("", total=len(PARTS) * turns)
        for turn in range(turns):
            for part in PARTS if turn % 2 == 0 else PARTS[::-1]:
                progress.update(task, description=f"turn {turn + 1}: {part}")
                times, scrapes = _run(policy, slice_set, node, period_ms, ticks, concurrent if part == "scraped" else 0)
                p99_us[part].append(times.percentile_ns(99.0) / 1e3)
                answered += scrapes
                progress.advance(task)
    document = _document(p99_us, answered, concurrent)
    if as_json:
        print_json(document, ScrapeBench)
    else:
        _print(document)


def _run(
    policy: PolicyBundle, slices: SliceSet, node: BenchNode, period_ms: float, ticks: int, concurrent: int
) -> tuple[DurationHistogram, int]:
    """The loop's time a tick, and scrapes that were answered."""
    from slicepilot.testbed.bench.run import bench_run, opened

    cpu = max(os.sched_getaffinity(0))
    with (
        opened(node, slices, period_ms) as described,
        bench_run(policy, described, listen="127.0.0.1:0", cpu=cpu) as run,
    ):
        arguments = [str(run.publisher.http_port), str(concurrent), str(1e-3 * period_ms * ticks), str(cpu)]
        scraper = None
        if concurrent:
            scraper = subprocess.Popen(
                [sys.executable, "-P", "-c", SCRAPER, *arguments], stdout=subprocess.PIPE, text=True
            )
        report = run.ticks(ticks)
        answered = 0 if scraper is None else int(scraper.communicate(timeout=60)[0])
    return report.stages["total"], answered


def _document(p99_us: dict[str, list[float]], answered: int, concurrent: int) -> dict[str, Any]:
    import numpy as np

    from slicepilot.data.intervals import interval, median

    ratios = [scraped / quiet for scraped, quiet in zip(p99_us["scraped"], p99_us["quiet"], strict=True)]
    found = interval(ratios, median)
    return {
        "concurrent": concurrent,
        "answered": answered,
        "p99_us": {part: float(np.median(values)) for part, values in p99_us.items()},
        "scraped_over_quiet": {"median": found.value, "ci95": [found.low, found.high], "turns": ratios},
    }


def _print(document: dict[str, Any]) -> None:
    ratio, p99_us = document["scraped_over_quiet"], document["p99_us"]
    console.print(
        f"{document['concurrent']} scrapes at once, {document['answered']} answered: the loop's p99 is "
        f"{p99_us['quiet']:.0f} us without and {p99_us['scraped']:.0f} us with them; turn by turn "
        f"{ratio['median']:.2f} times as long ({ratio['ci95'][0]:.2f} to {ratio['ci95'][1]:.2f})",
        highlight=False,
    )
