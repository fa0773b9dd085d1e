"""Episodes come back from a file bit by bit; whatever else lies there is refused in one line."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.files import KEY, files_in, read_episodes, read_header, write_episodes
from slicepilot.data.episodes.header import arrays_of
from slicepilot.training.recording.reading import read_dataset
from tests.effort import examples

FACTS: dict[str, Any] = {
    "slices": [{"name": "gold"}, {"name": "bronze"}],
    "encoder": {"features": ["carried_mbps", "nice", "cpu_idle_ratio"]},
    "shared_features": ["cpu_idle_ratio"],
    "decoder": {"knobs": ["cpu_limit", "nice", "egress"]},
    "telemetry": {"slices": ["offered_mbps", "carried_mbps"], "node": ["cpu_idle_ratio"]},
    "period_s": 0.01,
}
NAMES = st.text("abcdefghij_", min_size=1, max_size=6)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


@st.composite
def episode_sets(draw: st.DrawFn) -> EpisodeSet:
    """Of any shape, with any bits in them."""
    table = draw(st.booleans())
    seen = draw(st.tuples(st.integers(1, 3), st.integers(0, 4))) if table else (draw(st.integers(0, 4)),)
    done = (seen[0], 3) if table else (draw(st.integers(0, 3)),)
    terms = draw(st.lists(NAMES, max_size=2, unique=True))
    columns = draw(st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (2,)])), max_size=3))
    kept = draw(st.booleans())

    def array(dtype: str, *shape: int) -> Any:
        if dtype == "bool":
            return draw(arrays.arrays(np.bool_, shape))
        kind = np.dtype(dtype)
        bits = draw(arrays.arrays(f"u{kind.itemsize}", shape))
        return bits.view(kind)

    def episode() -> Episode:
        steps = draw(st.integers(0, 5))
        return Episode(
            observations=array("float32", steps + 1, *seen),
            actions=array("float32", steps, *done),
            rewards=array("float32", steps),
            wanted=array("float32", steps, *done),
            log_density=array("float64", steps),
            behaviour=draw(st.text(max_size=8)),
            terminated=draw(st.booleans()),
            terms={name: array("float32", steps) for name in terms},
            telemetry=array("float32", steps + 1, 8, 2) if kept else None,
            node=array("float32", steps + 1, 2) if kept else None,
            valid=array("bool", steps + 1, 2) if kept else None,
            decisions={name: array(dtype, steps, *shape) for name, (dtype, shape) in columns.items()},
            info=draw(st.dictionaries(st.text(), PLAIN, max_size=3)),
        )

    facts = draw(st.dictionaries(st.text(), PLAIN, max_size=3))
    return EpisodeSet(tuple(episode() for _ in range(draw(st.integers(1, 4)))), facts)


def assert_same(left: EpisodeSet, right: EpisodeSet) -> None:
    """Bit by bit."""
    assert left.facts == right.facts
    assert len(left) == len(right)
    for item, other in zip(left, right, strict=True):
        mine, theirs = arrays_of(item), arrays_of(other)
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            assert (array.dtype, array.shape) == (theirs[name].dtype, theirs[name].shape), name
            assert array.tobytes() == theirs[name].tobytes(), name
        assert (item.behaviour, item.terminated, item.info) == (other.behaviour, other.terminated, other.info)


def some(steps: int = 4, **fields: Any) -> Episode:
    rng = np.random.default_rng(steps)

    def random(*shape: int) -> Any:
        return rng.random(shape, np.float32)

    observations = random(steps + 1, 2, 3)
    observations[..., 2] = observations[:, :1, 2]
    episode = Episode(
        observations=observations,
        actions=random(steps, 2, 3),
        rewards=random(steps),
        wanted=random(steps, 2, 3),
        log_density=np.full(steps, -1.5),
        behaviour="random",
        terms={"sla": random(steps)},
        telemetry=random(steps + 1, 2, 2),
        node=random(steps + 1, 1),
        valid=np.ones((steps + 1, 2), np.bool_),
        decisions={"held": np.arange(steps) > 1, "reasons": np.zeros((steps, 2), np.uint32)},
    )
    return dataclasses.replace(episode, **fields)


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(episodes=episode_sets())
def test_what_is_written_is_read_again(tmp_path: Path, episodes: EpisodeSet) -> None:
    path = tmp_path / "set.parquet"
    write_episodes(episodes, path)
    assert_same(read_episodes(path), episodes)
    assert [file.name for file in tmp_path.iterdir()] == ["set.parquet"]


@pytest.mark.parametrize("name", ["s3:x", "file:y", "q?x#%20 é"])
def test_a_relative_folder_may_look_like_an_address(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    episodes = EpisodeSet((some(4),), FACTS)
    write_episodes(episodes, Path(name) / "set.parquet")
    assert_same(read_episodes(Path(name) / "set.parquet"), episodes)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_columns_are_such_that_other_programs_understand_them(tmp_path: Path) -> None:
    episodes = EpisodeSet((some(4), some(2, behaviour="fixed")), FACTS)
    path = tmp_path / "set.parquet"
    write_episodes(episodes, path)
    table = pq.read_table(path)
    rows = table.to_pylist()
    assert len(rows) == 5 + 3
    assert [(row["episode"], row["step"], row["behaviour"]) for row in rows[3:6]] == [
        (0, 3, "random"),
        (0, 4, "random"),
        (1, 0, "fixed"),
    ]
    first, last = rows[0], rows[4]
    episode = episodes.episodes[0]
    assert episode.telemetry is not None
    assert first["bronze.carried_mbps"] == episode.telemetry[0, 1, 1]
    assert first["bronze.observed_nice"] == episode.observations[0, 1, 1]
    assert first["observed_cpu_idle_ratio"] == episode.observations[0, 0, 2] == episode.observations[0, 1, 2]
    assert first["gold.action_egress"] == episode.actions[0, 0, 2]
    assert first["gold.wanted_cpu_limit"] == episode.wanted[0, 0, 0]
    assert (first["reward"], first["term_sla"]) == (episode.rewards[0], episode.terms["sla"][0])
    assert (first["decision_held"], rows[2]["decision_held"]) == (False, True)
    assert (first["gold.decision_reasons"], first["log_density"]) == (0, -1.5)
    # The last observation is there, and nothing was decided on it.
    assert last["gold.observed_nice"] == episode.observations[4, 0, 1]
    assert {last[name] for name in ("reward", "gold.action_nice", "log_density", "decision_held")} == {None}
    assert not any(name.startswith("gold.observed_cpu_idle") for name in table.column_names)
    assert json.loads(pq.read_metadata(path).metadata[KEY.encode()])["facts"] == FACTS
    assert [own.steps for own in read_header(path).episodes] == [4, 2]


def test_what_is_said_to_be_the_same_for_all_slices_and_is_not_keeps_its_columns(tmp_path: Path) -> None:
    episode = some()
    episode.observations[2, 1, 2] = 7.0
    write_episodes(EpisodeSet((episode,), FACTS), tmp_path / "set.parquet")
    assert_same(read_episodes(tmp_path / "set.parquet"), EpisodeSet((episode,), FACTS))


def test_a_folder_is_read_as_one_set(tmp_path: Path) -> None:
    write_episodes(EpisodeSet((some(2),), FACTS | {"created": "later"}), tmp_path / "b.parquet")
    write_episodes(EpisodeSet((some(3), some(1)), FACTS | {"created": "now"}), tmp_path / "a.parquet")
    (tmp_path / ".half-written.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "table.parquet")
    (tmp_path / "README.md").write_text("notes")
    result = read_episodes(tmp_path)
    assert [len(episode) for episode in result] == [3, 1, 2]
    assert result.facts["created"] == "now"
    assert [path.name for path in files_in(tmp_path)[1]] == ["README.md", "table.parquet"]
    write_episodes(EpisodeSet((some(2),), FACTS | {"period_s": 0.02}), tmp_path / "c.parquet")
    with pytest.raises(ConfigError, match=r"c\.parquet: period_s: differs from that of a\.parquet"):
        read_episodes(tmp_path)


def test_a_file_is_replaced_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    episodes = EpisodeSet((some(),), FACTS)
    write_episodes(episodes, path)
    with pytest.raises(ConfigError, match="plain values"):
        write_episodes(EpisodeSet((some(2),), FACTS | {"uplink_mbps": float("inf")}), path)
    assert_same(read_episodes(path), episodes)
    assert [file.name for file in tmp_path.iterdir()] == ["set.parquet"]


@pytest.mark.parametrize(
    ("episodes", "reported"),
    [
        ((), "episodes = none"),
        ((some(), some(terms={})), r"episode 1: terms\.sla = None: expected .*, as in the first"),
        ((some(), some(rewards=np.zeros(4))), r"episode 1: rewards = \(\(\), 'float64'\)"),
        ((some(decisions={"why": np.asarray(["a", "b", "c", "d"])}),), r"'decisions\.why': type <U1; expected bool"),
    ],
)
def test_sets_that_make_no_table_are_refused(tmp_path: Path, episodes: tuple[Episode, ...], reported: str) -> None:
    with pytest.raises(ConfigError, match=reported) as error:
        write_episodes(EpisodeSet(episodes, FACTS), tmp_path / "set.parquet")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def rewritten(path: Path, header: dict[str, Any] | None, drop: str | None = None, rows: int | None = None) -> None:
    """The same file with another header, without a column, or with fewer rows."""
    table = pq.read_table(path)
    metadata = {KEY: json.dumps(header)} if header is not None else {}
    table = table.drop_columns([drop] if drop else []).slice(0, rows)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_files_of_something_else_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    write_episodes(EpisodeSet((some(),), FACTS), path)
    good = path.read_bytes()
    header = json.loads(pq.read_metadata(path).metadata[KEY.encode()])
    other = [own | {"steps": own["steps"] + 1} for own in header["episodes"]]
    cases: list[tuple[str, Any]] = [
        ("does not exist", path.unlink),
        ("cannot be read", lambda: path.write_bytes(b"")),
        ("cannot be read", lambda: path.write_text("episode,step\n")),
        ("cannot be read", lambda: path.write_bytes(good[:-100])),
        ("Parquet, but no episodes", lambda: rewritten(path, None)),
        (r"format = 2: expected 1", lambda: rewritten(path, header | {"format": 2})),
        ("format = None: expected 1", lambda: rewritten(path, {})),
        ("unknown field", lambda: rewritten(path, header | {"more": 1})),
        (r"episodes\.0\.steps = -1", lambda: rewritten(path, header | {"episodes": [other[0] | {"steps": -1}]})),
        ("5 rows instead of 6", lambda: rewritten(path, header | {"episodes": other})),
        ("3 rows instead of 5", lambda: rewritten(path, header, rows=3)),
        ("is there twice", lambda: rewritten(path, header | {"arrays": [header["arrays"][0]] * 2})),
        ("array 'rewards'", lambda: rewritten(path, header | {"arrays": [dict(header["arrays"][2], columns=[])]})),
        ("cannot be read", lambda: rewritten(path, header, drop="reward")),
        ("cannot be read", lambda: rewritten(path, header | {"arrays": header["arrays"][1:]})),
        ("instead of float64", lambda: rewritten(path, retyped(header))),
    ]
    for reported, make in cases:
        path.write_bytes(good)
        make()
        with pytest.raises(ConfigError, match=reported) as error:
            read_episodes(path)
        assert "\n" not in str(error.value), reported
        assert str(path) in str(error.value)
    path.write_bytes(good)
    rewritten(path, header | {"format": 2})
    with pytest.raises(ConfigError, match=r"format = 2: expected 1"):
        read_dataset(path)


def retyped(header: dict[str, Any]) -> dict[str, Any]:
    arrays = [dict(array, dtype="float64") if array["name"] == "rewards" else array for array in header["arrays"]]
    return header | {"arrays": arrays}


def test_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    episodes = EpisodeSet(tuple(some(steps) for steps in (40, 50)), FACTS)
    write_episodes(episodes, path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for at in rng.integers(4, len(good) - 8, 200).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << int(rng.integers(8)))]) + good[at + 1 :])
        try:
            result = read_episodes(path)
        except ConfigError as error:
            assert "\n" not in str(error)  # noqa: PT017
            noticed += 1
        else:
            # What no checksum covers, such as statistics or the names of programs, changes no number.
            if result.facts == episodes.facts and [e.behaviour for e in result] == [e.behaviour for e in episodes]:
                for item, other in zip(result, episodes, strict=True):
                    for name, array in arrays_of(other).items():
                        np.testing.assert_array_equal(arrays_of(item)[name], array)
    assert noticed > 100
