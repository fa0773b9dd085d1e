"""The last step of the demo: no control and a policy on real UPFs, one after the other."""

from pathlib import Path

import pytest

from slicepilot.cli.demo import live
from tests.testbed.controlled import constant


@pytest.mark.slow
def test_both_are_shown_on_real_packets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    live(Path(constant(tmp_path / "bundle", -0.5)), seconds=1.0)
    said = capfd.readouterr()
    assert "no-control in shadow" in said.out
    assert " in live" in said.out
    assert said.out.count("slice5 ") == 2
    assert "left out" not in said.out + said.err
