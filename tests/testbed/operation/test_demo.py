"""The last step of the demo: no control, fixed weights and a policy on real UPFs, one after the other."""

from pathlib import Path

import pytest

from slicepilot.cli.demo_live import on_real_upfs
from tests.testbed.controlled import constant


@pytest.mark.slow
def test_all_are_shown_on_real_packets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "live.html"
    on_real_upfs(Path(constant(tmp_path / "bundle", -0.5)), picture, "testbed-contention", seconds=1.0)
    said = capfd.readouterr()
    for name in ("no control", "fixed weights (static-order)", "the policy"):
        assert name in said.out
    assert "The policy was in charge of" in said.out
    assert picture.read_text().count("<svg") == 3
    assert "left out" not in said.out + said.err
