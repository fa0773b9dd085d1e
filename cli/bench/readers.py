"""``slicepilot bench readers``: what it takes to summarise a forwarding file, and what it takes pandas."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from slicepilot.cli.schemas.bench import ReadersBench
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError

CPUS = 2
WARM_UP_ROWS = 1000
SECONDS, PEAK_MIB, RATIO, QUANTILE_ERROR = 15.0, 1024.0, 5.0, 0.01  # what is aimed at

RATIOS = {"seconds": "time_ratio", "work_s": "work_time_ratio", "cpu_s": "cpu_ratio", "peak_mib": "memory_ratio"}

# Each prints what it found, how long it worked after its imports, its CPU time, and the peak of its own memory.
_START = f"import json, os, sys, time; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{CPUS}])"
_END = """
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
figures = {"work_s": time.perf_counter() - start, "cpu_s": time.process_time(), "peak_mib": int(peak.split()[1]) / 1024}
print(json.dumps({"slices": found} | figures))
"""
PROGRAMS = {
    "slicepilot": f"""{_START}
from slicepilot.data.faults import Faults
from slicepilot.data.studies.mishra.figures import summarise_forwarding
start = time.perf_counter()
summary = summarise_forwarding(sys.argv[1], Faults())
found = {{
    one.name: {{"count": one.count, "mean_us": one.mean_us, **one.quantiles_us}} for one in summary.slices
}}{_END}""",
    "pandas": f"""{_START}
import pandas
start = time.perf_counter()
groups = pandas.read_csv(sys.argv[1]).groupby("slice")["delay_us"]
levels = {{"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}}
count, mean, quantiles = groups.count(), groups.mean(), groups.quantile(list(levels.values()))
found = {{
    name: {{
        "count": int(count[name]),
        "mean_us": float(mean[name]),
        **{{key: float(quantiles[name, level]) for key, level in levels.items()}},
    }}
    for name in count.index
}}{_END}""",
}


def readers(
    rows: Annotated[int, typer.Option(min=1000, help="Number of rows of a generated file.")] = 12_000_000,
    repetitions: Annotated[int, typer.Option(min=1, max=100, help="Number of turns of both; results are medians.")] = 5,
    file: Annotated[Path | None, typer.Option(help="Keep the generated file here, and reuse it if it exists.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure time and memory to summarise a forwarding file, compared with pandas.

    The generated file resembles the published one. Both readers run in turns, on two CPUs, in separate processes.
    Exit code 1: the two disagree.

    Example: [bold]slicepilot bench readers --rows 2000000[/bold]
    """
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError("pandas is not installed: pip install 'slicepilot[train]'")
    with _forwarding_file(file, rows) as path, progress_bar() as progress:
        task = progress.add_task("reading", total=len(PROGRAMS) * repetitions)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in PROGRAMS}
        for _ in range(repetitions):
            for name, program in PROGRAMS.items():
                runs[name].append(_run(program, path))
                progress.advance(task)
        size = path.stat().st_size
    document = {"bytes": size, "cpus": CPUS, "repetitions": repetitions} | _figures(runs)
    if as_json:
        print_json(document, ReadersBench)
    else:
        _print(document)
    if not document["counts_equal"] or document["largest_quantile_error"] > QUANTILE_ERROR:
        raise typer.Exit(1)


@contextlib.contextmanager
def _forwarding_file(kept: Path | None, rows: int) -> Iterator[Path]:
    """The file to read, made if it is not there; what is compiled is compiled by then."""
    from slicepilot.data.studies.mishra.generate import write_forwarding

    with tempfile.TemporaryDirectory(prefix="slicepilot-readers-") as folder:
        small, path = Path(folder) / "small.csv", kept or Path(folder) / "o1_forwarding_heavy.csv"
        write_forwarding(small, WARM_UP_ROWS)
        for program in PROGRAMS.values():
            _run(program, small)
        if not path.exists():
            staging = path.with_name(f".{path.name}.part")
            try:
                with progress_bar() as progress:
                    task = progress.add_task("making the file", total=rows)
                    write_forwarding(staging, rows, on_rows=lambda done: progress.update(task, completed=done))
                staging.replace(path)
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(
                    f"file = {str(path)!r}: {why}; expected a folder with 50 bytes of free space per row"
                ) from error
            finally:
                with contextlib.suppress(OSError):
                    staging.unlink(missing_ok=True)
        yield path


def _run(program: str, path: Path) -> dict[str, Any]:
    """What a program prints, and how long it took from its start to its end."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        typer.echo(f"slicepilot: error: bench readers: {last}", err=True)
        raise typer.Exit(1)
    return json.loads(done.stdout) | {"seconds": seconds}


def _figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    ours, theirs = runs["slicepilot"][0]["slices"], runs["pandas"][0]["slices"]
    equal = {name: one["count"] for name, one in ours.items()} == {name: one["count"] for name, one in theirs.items()}
    errors = [abs(ours[s][q] / theirs[s][q] - 1) for s in ours if s in theirs for q in ours[s] if q.startswith("p")]
    sums = {name: {key: median(run[key] for run in each) for key in RATIOS} for name, each in runs.items()}
    ratios = {}
    for key, ratio in RATIOS.items():
        pairs = zip(runs["pandas"], runs["slicepilot"], strict=True)
        found = sorted(slow[key] / fast[key] for slow, fast in pairs)
        ratios[ratio] = {"median": median(found), "low": found[0], "high": found[-1]}
    met = {
        "seconds": sums["slicepilot"]["seconds"] <= SECONDS,
        "peak_mib": sums["slicepilot"]["peak_mib"] <= PEAK_MIB,
        "time_ratio": ratios["time_ratio"]["median"] >= RATIO,
        "memory_ratio": ratios["memory_ratio"]["median"] >= RATIO,
    }
    rows = sum(one["count"] for one in ours.values())
    agreement = {"rows": rows, "counts_equal": equal, "largest_quantile_error": max(errors, default=0.0)}
    return sums | ratios | agreement | {"met": met, "slices": ours}


def _print(document: dict[str, Any]) -> None:
    title = f"{document['rows']:,} rows, {document['bytes'] / 1e6:,.0f} MB, medians of {document['repetitions']}"
    table = figures_table(title, ("", "seconds", "without imports", "CPU seconds", "peak MiB"))
    for name in PROGRAMS:
        one = document[name]
        seconds = (f"{one[key]:.2f}" for key in ("seconds", "work_s", "cpu_s"))
        table.add_row(name, *seconds, f"{one['peak_mib']:,.0f}")
    ratios = [document[ratio] for ratio in RATIOS.values()]
    table.add_row("ratio", *(f"{ratio['median']:.1f}" for ratio in ratios))
    table.add_row("  from turn to turn", *(f"{ratio['low']:.1f} to {ratio['high']:.1f}" for ratio in ratios))
    console.print(table)
    counts = "equal" if document["counts_equal"] else "not equal"
    error_pct = 100 * document["largest_quantile_error"]
    console.print(f"counts {counts}; quantiles differ by {error_pct:.2f}% at most", highlight=False)
    missed = [name for name, met in document["met"].items() if not met]
    if missed:
        aims = f"at most {SECONDS:g} s and {PEAK_MIB:g} MiB, ratios of at least {RATIO:g}"
        console.print(f"missed: {', '.join(missed)} (aimed at: {aims})", highlight=False)
