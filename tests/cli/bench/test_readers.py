import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slicepilot.cli.bench.readers import PROGRAMS, readers
from slicepilot.configs import ConfigError
from slicepilot.data.studies.mishra.generate import write_forwarding

app = typer.Typer()
app.command()(readers)


@pytest.mark.slow
def test_bench_readers_agrees_with_pandas_and_keeps_the_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept.csv"
    result = CliRunner().invoke(app, ["--rows", "5000", "--repetitions", "1", "--file", str(kept), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["counts_equal"]
    assert document["largest_quantile_error"] <= 0.01
    assert sum(one["count"] for one in document["slices"].values()) == document["rows"] == 5000
    assert document["bytes"] == kept.stat().st_size
    for name in PROGRAMS:
        assert 0 < document[name]["work_s"] < document[name]["seconds"]
        assert document[name]["peak_mib"] > 10
    assert set(document["met"]) == {"seconds", "peak_mib", "time_ratio", "memory_ratio"}
    assert [path.name for path in tmp_path.iterdir()] == ["kept.csv"]


@pytest.mark.slow
def test_bench_readers_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    write_forwarding(path, 1000)
    path.write_text(path.read_text().replace("delay_us", "delay"))
    result = CliRunner().invoke(app, ["--file", str(path), "--repetitions", "1"])
    assert result.exit_code == 1
    assert "missing delay_us; unknown delay" in result.stderr


@pytest.mark.slow
def test_bench_readers_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file = '.*/file/f.csv': Not a directory; expected a folder with"):
        app(["--rows", "1000", "--file", str(tmp_path / "file" / "f.csv")], standalone_mode=False)


@pytest.mark.parametrize("option", [["--rows", "10"], ["--repetitions", "0"]])
def test_bench_readers_refuses_what_makes_no_sense(option: list[str]) -> None:
    assert CliRunner().invoke(app, option).exit_code == 2
