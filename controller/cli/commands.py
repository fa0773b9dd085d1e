"""Which commands there are."""

from __future__ import annotations

import typer

from . import (
    bench_loop,
    bench_probe,
    bench_reaction,
    bench_readers,
    bench_scrape,
    bench_shadow,
    bench_soak,
    bench_upf,
    dataset_analyse,
    dataset_convert,
    dataset_describe,
    dataset_estimate,
    dataset_import,
    dataset_record,
    dataset_validate,
)
from .bench import bench
from .control import control
from .dataset import dataset
from .demo import demo
from .doctor import doctor
from .evaluate import evaluate
from .explain import explain
from .probe import probe
from .promote import promote
from .report import report
from .restore import restore
from .run import run
from .simulate import simulate
from .testbed import testbed
from .top import top
from .train import train


def register(app: typer.Typer) -> None:
    """Add every command to the application."""
    app.command()(doctor)
    app.command()(demo)
    app.command()(simulate)
    app.command()(train)
    app.command()(evaluate)
    app.command()(report)
    app.command()(run)
    app.command()(top)
    app.add_typer(control, name="control")
    app.command()(explain)
    app.command()(promote)
    app.command()(restore)
    app.command()(probe)
    app.add_typer(testbed, name="testbed")
    dataset.command("import")(dataset_import.import_files)
    dataset.command()(dataset_describe.describe)
    dataset.command()(dataset_validate.validate)
    dataset.command()(dataset_convert.convert)
    dataset.command()(dataset_record.record)
    dataset.command()(dataset_analyse.analyse)
    dataset.command()(dataset_estimate.estimate)
    app.add_typer(dataset, name="dataset")
    bench.command("loop")(bench_loop.loop)
    bench.command("probe")(bench_probe.probe)
    bench.command("upf")(bench_upf.upf)
    bench.command("reaction")(bench_reaction.reaction)
    bench.command("readers")(bench_readers.readers)
    bench.command("scrape")(bench_scrape.scrape)
    bench.command("shadow")(bench_shadow.shadow)
    bench.command("soak")(bench_soak.soak)
    app.add_typer(bench, name="bench")
