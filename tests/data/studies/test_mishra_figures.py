from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slicepilot.data.studies.mishra.figures import StudyTable
from slicepilot.data.studies.mishra.tables import FORWARDING, PFCP


@pytest.mark.parametrize(("schema", "group", "time"), [(FORWARDING, "slice", "delay_us"), (PFCP, "type", "latency_us")])
def test_figures_of_all_batches_are_those_of_all_rows(schema: pa.Schema, group: str, time: str) -> None:
    rng = np.random.default_rng(0)
    times_us, names = rng.lognormal(3, 1, 5000), rng.choice(["a", "b", "c"], 5000)
    study = StudyTable(schema, Path("data") / "o1_exp_medium.csv")
    for part in range(0, 5000, 700):
        rows = slice(part, part + 700)
        columns: dict[str, Any] = {field.name: [0] * len(names[rows]) for field in schema}
        columns |= {schema.names[0]: names[rows].tolist(), time: times_us[rows]}
        columns |= {name: ["eth0"] * len(names[rows]) for name in ("interface",) if name in schema.names}
        study.add(pa.table(columns, schema=schema).to_batches()[0])
    published = study.published()
    assert {row[group] for row in published} == {"a", "b", "c"}
    for row in published:
        own = times_us[names == row[group]]
        assert (row["n"], row["load"]) == (len(own), "medium")
        assert row["mean_us"] == pytest.approx(own.mean())
        assert row["p99_us"] == pytest.approx(np.quantile(own, 0.99))
        if "p50_us" in row:
            assert row["p50_us"] == pytest.approx(np.median(own))
