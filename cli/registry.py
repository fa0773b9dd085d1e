"""Which commands there are."""

from __future__ import annotations

import typer

from ..testbed.cli import bench_loop, bench_probe, bench_reaction, bench_scrape, bench_shadow, bench_soak, bench_upf
from ..testbed.cli.testbed import testbed
from .bench import readers as bench_readers
from .bench.simulator import bench
from .dataset import (
    analyse as dataset_analyse,
)
from .dataset import (
    convert as dataset_convert,
)
from .dataset import (
    describe as dataset_describe,
)
from .dataset import (
    estimate as dataset_estimate,
)
from .dataset import (
    import_files as dataset_import,
)
from .dataset import (
    record as dataset_record,
)
from .dataset import (
    validate as dataset_validate,
)
from .dataset.releases import dataset
from .demo import demo
from .doctor import doctor
from .evaluation.evaluate import evaluate
from .evaluation.report import report
from .evaluation.simulate import simulate
from .operation.control import control
from .operation.explain import explain
from .operation.probe import probe
from .operation.promote import promote
from .operation.restore import restore
from .operation.run import run
from .operation.top import top
from .train.train import train


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
