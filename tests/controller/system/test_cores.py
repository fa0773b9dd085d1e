"""Numbers of CPUs, as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicepilot.controller.system.cores import cpus_beside, most_cpus


@pytest.mark.parametrize(
    ("online", "own", "others"),
    [("0-3,8\n", 8, {0, 1, 2, 3}), ("2-3\n", 2, {3}), ("2-3\n", None, {2, 3}), ("2\n", 2, {2}), ("0,4\n", 1, {0, 4})],
)
def test_cpu_numbers_have_gaps_and_the_last_cpu_is_shared(
    tmp_path: Path, online: str, own: int | None, others: set[int]
) -> None:
    (tmp_path / "online").write_text(online)
    (tmp_path / "possible").write_text("0-11\n")
    assert cpus_beside(own, tmp_path) == others
    assert most_cpus(tmp_path) == 12
