"""Reading delays by group: which columns, how much is kept, and what else is known of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.studies.mishra.tables import FORWARDING, PFCP
from slicepilot.data.studies.moreira.tables import LATENCY_SCHEMA
from slicepilot.data.tables.tidy import Stream
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.training.statistics.analysis import analyse
from slicepilot.training.statistics.collect import Source, collect
from slicepilot.training.statistics.columns import FILE, baseline_of, choose, in_order
from slicepilot.training.statistics.slice_rows import episode_rows, schema_of
from tests.effort import examples


def source(name: str = "table", rows: int = 1 << 17, **columns: Any) -> Source:
    """A table in batches of some rows."""
    table = pa.table(columns)
    return Source(name, Stream(table.schema, iter(table.to_batches(max_chunksize=rows))))


# -- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value", "unit", "by", "loads"),
    [
        (FORWARDING, "delay_us", "us", "slice", {"packet_bytes": "packet_bytes"}),
        (PFCP, "latency_us", "us", "message_type", {}),
        (LATENCY_SCHEMA, "latency_ns", "ns", "condition", {}),
        (schema_of("mode"), "delay_p99_us", "us", "slice", {"cpu": "cpu_use_mcpu", "offered_mbps": "offered_mbps"}),
        (pa.schema([("latency_ms", pa.float32()), ("x", pa.float64())]), "latency_ms", "ms", FILE, {}),
    ],
)
def test_columns_of_what_there_is(schema: pa.Schema, value: str, unit: str, by: str, loads: dict[str, str]) -> None:
    result = choose(schema)
    assert (result.value, result.unit, result.by, result.loads) == (value, unit, by, loads)


@pytest.mark.parametrize(
    ("columns", "options", "reported"),
    [
        ({"slice": ["a"]}, {"value": "slice"}, "value = slice: expected a column of numbers"),
        ({"slice": ["a"]}, {"by": "delay_us"}, "by = 'delay_us': expected"),
        ({"id": np.arange(100)}, {"by": "id"}, "by = id: more than 40 groups: expected a column with fewer"),
    ],
)
def test_columns_that_make_no_groups_are_reported(columns: Any, options: Any, reported: str) -> None:
    table = source(**columns, delay_us=np.arange(float(len(next(iter(columns.values()))))))
    with pytest.raises(ConfigError, match=reported):
        collect([table], **options)
    with pytest.raises(ConfigError, match="other: no column slice as in first"):
        collect([source("first", slice=["a"], delay_us=[1.0]), source("other", delay_us=[1.0])])


def test_groups_are_in_the_order_that_people_expect() -> None:
    assert in_order(["slice10", "slice9", "slice1", "9", "10"]) == ["9", "10", "slice1", "slice9", "slice10"]
    assert baseline_of(["anomaly", "baseline"]) == "baseline"
    assert baseline_of(["slice1", "slice2"]) == "slice1"
    with pytest.raises(ConfigError, match="baseline = 'x': expected slice1, slice2"):
        baseline_of(["slice1", "slice2"], "x")


# -- what is kept --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.floats())), min_size=1), st.data())
def test_every_delay_is_kept_or_counted(rows: list[tuple[str | None, float | None]], data: st.DataObject) -> None:
    names, values = ([row[part] for row in rows] for part in (0, 1))
    good = [(n, v) for n, v in rows if n is not None and v is not None and np.isfinite(v)]
    size = data.draw(st.integers(1, len(rows)))
    slices = pa.array(names, pa.string())
    if data.draw(st.booleans()):
        slices = slices.dictionary_encode()
    given_rows = source(rows=size, slice=slices, delay_us=pa.array(values, pa.float64()))
    if not good:
        with pytest.raises(ConfigError, match="no row has a delay and a slice"):
            collect([given_rows])
        return
    result = collect([given_rows])
    assert (result.read, result.missing) == (len(good), len(rows) - len(good))
    assert {n: g.tolist() for n, g in result.groups.items()} == {
        n: sorted(v for m, v in good if m == n) for n in sorted({n for n, _ in good})
    }
    assert sorted(zip(result.rows["group"], result.rows["delay"], strict=True)) == sorted(good)


def test_too_much_is_sampled_at_random_and_said() -> None:
    values = np.arange(100_000.0)
    table = source(rows=7_000, slice=np.where(values % 10 == 0, "few", "many"), delay_us=values)
    result = collect([table], max_values=20_000, max_rows=3_000)
    kept = {name: len(group) for name, group in result.groups.items()}
    assert result.read == 100_000
    assert 10_000 <= sum(kept.values()) <= 20_000
    assert result.share == 1 / 8
    assert kept["few"] == pytest.approx(0.1 * sum(kept.values()), rel=0.1)
    # Early and late rows are as likely.
    assert np.median(result.groups["many"]) == pytest.approx(50_000, rel=0.05)
    assert np.median(result.rows["delay"]) == pytest.approx(50_000, rel=0.1)
    said = analyse(result, resamples=100).notes
    assert any(note.startswith("sampled: ") and note.endswith("one in 8") for note in said)


def test_rows_are_sampled_from_large_groups_first() -> None:
    sizes = {"few": 100, "many": 90_000, "more": 9_900}
    names = np.random.default_rng(0).permutation(np.repeat(list(sizes), list(sizes.values())))
    result = collect([source(rows=7_000, slice=names, delay_us=np.arange(len(names)))], on=["slice"], max_rows=3_000)
    kept = {name: int((result.rows["group"] == name).sum()) for name in sizes}
    assert kept["few"] == 100
    assert 1_500 < sum(kept.values()) <= 3_000
    assert result.rows_shares == {"few": 1.0, "many": 1 / 64, "more": 1 / 8}
    for name, share in result.rows_shares.items():
        assert kept[name] == pytest.approx(sizes[name] * share, rel=0.15)
    said = analyse(result, baseline="few", resamples=100).notes
    drawn = "drawn at random, of large groups fewer, one in 64 of many"
    assert f"regression on {sum(kept.values()):,} of 100,000 rows, {drawn}" in said


# -- what else is known of a row -----------------------------------------------------------------------------------


def test_packet_rate_is_that_of_the_second() -> None:
    received = np.concatenate([np.linspace(0, 9e8, 10), np.linspace(1e9, 1.9e9, 30)]).astype(np.int64)
    result = collect(
        [source(rows=7, slice=["a"] * 40, delay_us=np.arange(40.0), received_ns=received + 5 * 10**18 + 10_000)]
    )
    assert result.columns.loads == {"packets": "packets_per_s"}
    # Of the last second nine tenths were recorded.
    assert result.rows["packets"] == pytest.approx([10.0] * 10 + [30.0 / 0.9] * 30, rel=1e-4)


def test_the_clocks_of_two_tables_say_nothing_of_each_other() -> None:
    tables = [
        source(name, slice=["a"] * count, delay_us=np.arange(float(count)), received_ns=np.linspace(0, 1e9 - 1, count))
        for name, count in (("light", 20), ("heavy", 80))
    ]
    result = collect(tables, by=FILE)
    rates = {name: result.rows["packets"][result.rows["group"] == name] for name in ("light", "heavy")}
    assert rates["light"] == pytest.approx([20.0] * 20, rel=1e-6)
    assert rates["heavy"] == pytest.approx([80.0] * 80, rel=1e-6)


def test_two_outputs_of_one_run_are_spread_over_its_seconds_each() -> None:
    run = {"qfi": np.full(10, 1, np.int16), "condition": ["load"] * 10}
    latencies = [source(name, **run, sequence=np.arange(10), latency_ns=np.arange(10)) for name in ("one", "other")]
    resources = source(**run, time_s=np.arange(10.0), cpu_limit_used_pct=np.arange(10.0)).stream
    result = collect(latencies, resources=[resources])
    assert result.rows["cpu"].tolist() == [*range(10)] * 2
    assert "spread evenly" in result.notes[0]


def test_episodes_are_what_followed_the_decisions() -> None:
    telemetry = np.ones((4, len(SLICE_FIELDS), 2), np.float32)
    telemetry[:, SLICE_FIELDS.index("delay_p99_us")] = np.arange(8).reshape(4, 2)
    telemetry[2, SLICE_FIELDS.index("carried_mbps"), 0] = 0.0
    valid = np.ones((4, 2), np.bool_)
    valid[3, 1] = False
    nothing = np.zeros((3, 2, 3), np.float32)
    episode = Episode(
        np.zeros((4, 2, 5), np.float32), nothing, np.zeros(3, np.float32), nothing, np.zeros(3), "random",
        telemetry=telemetry, valid=valid,
    )  # fmt: skip
    facts = {"slices": [{"name": "first"}, {"name": "second"}]}
    result = collect([Source("x", episode_rows(EpisodeSet((episode,), facts)))])
    assert {name: group.tolist() for name, group in result.groups.items()} == {"first": [2, 6], "second": [3, 5]}
    assert result.missing == 2
    assert set(result.rows["behaviour"]) == {"random"}
    with pytest.raises(ConfigError, match="telemetry was not kept"):
        collect([Source("x", episode_rows(EpisodeSet((episode,), {})))])


def test_groups_of_one_delay_are_left_out_and_said() -> None:
    table = source(slice=["a", "a", "a", "b", "c", "c"], delay_us=np.arange(6.0))
    result = analyse(collect([table]), resamples=100)
    assert [d.group for d in result.suite.descriptions] == ["a", "c"]
    assert "groups of one delay were left out: b" in result.notes
    assert result.regression is None
    with pytest.raises(ConfigError, match="group = 'b': 1 values"):
        analyse(collect([source(slice=["a", "a", "b"], delay_us=np.arange(3.0))]), baseline="b", resamples=100)


def test_words_of_many_levels_are_left_out_of_the_regression() -> None:
    table = source(slice=["a", "b"] * 30, condition=[f"c{n % 30}" for n in range(60)], delay_us=np.arange(60.0))
    notes = analyse(collect([table], by="slice"), resamples=100).notes
    assert "condition has 30 levels and was left out of the regression" in notes
