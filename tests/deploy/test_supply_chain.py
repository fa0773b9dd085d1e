"""What is installed is pinned, hashed, listed and licensed: the bill of materials, the table of licences, uv itself."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from license_expression import get_spdx_licensing
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "supply" / "bill.py"
SPDX: Any = get_spdx_licensing()  # its expressions have no types


def _bill() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bill", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bill"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


bill = _bill()
TABLE: dict[str, Any] = bill.licences()
PYTHON = sorted({pin.name for pin in bill.python_pins()})


def written(folder: Path, name: str = "bill.json", **environment: str) -> str:
    out = folder / name
    command = [sys.executable, str(SCRIPT), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | environment)
    return out.read_text()


def accepted(expression: str) -> bool:
    """Whether one of each alternative's licences, and all of a sum's, are in the table."""
    parsed = SPDX.parse(expression)
    known = {symbol: symbol.render() in TABLE["accepted"] for symbol in parsed.symbols}
    truth = {symbol: parsed.TRUE if known[symbol] else parsed.FALSE for symbol in known}
    return bool(parsed.subs(truth).simplify() == parsed.TRUE)


def test_the_bill_is_cyclonedx_and_names_every_pin(tmp_path: Path) -> None:
    text = written(tmp_path)
    # Imported late: its grammars take a second, which each process that collects tests would spend.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    document = json.loads(text)
    listed = {component["purl"]: component for component in document["components"]}
    pins = [*bill.python_pins(), *bill.go_pins(), *bill.debian_pins()]
    assert {str(pin.purl) for pin in pins} == listed.keys()
    # Counted from the files themselves.
    lines = "\n".join((ROOT / "requirements" / f"{name}.txt").read_text() for name in bill.SETS)
    pinned = set(re.findall(r"^([a-z0-9._-]+==[^\s;\\]+)", lines, re.MULTILINE))
    assert {f"{item['name']}=={item['version']}" for item in listed.values() if "pkg:pypi" in item["purl"]} == pinned
    modules = {line.split()[0] for line in (ROOT / "testbed" / "go.sum").read_text().splitlines()}
    assert {purl[len("pkg:golang/") :].partition("@")[0] for purl in listed if "golang" in purl} == modules
    assert {"pkg:deb/debian/clang", "pkg:deb/debian/libbpf-dev", "pkg:deb/debian/runc"} <= listed.keys()
    [numpy] = [item for item in listed.values() if item["name"] == "numpy"]
    assert numpy["scope"] == "required"
    hashes = {item["content"] for reference in numpy["externalReferences"] for item in reference["hashes"]}
    assert hashes
    assert all(f"--hash=sha256:{item}" in lines for item in hashes)
    # What is not CycloneDX is not taken for it.
    document["components"][0]["type"] = "thing"
    assert validator.validate_str(json.dumps(document)) is not None


def test_the_same_pins_give_the_same_bill(tmp_path: Path) -> None:
    first, second = (written(tmp_path, name, SOURCE_DATE_EPOCH="1700000000") for name in ("one", "two"))
    assert first == second


def test_no_bill_of_pins_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "base.txt").write_text("numpy>=2\n")
    monkeypatch.setattr(bill, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="numpy>=2"):
        list(bill.python_pins())


# -- licences ----------------------------------------------------------------------------------------------------------


def test_every_pin_has_a_licence_that_is_accepted() -> None:
    assert sorted(TABLE["python"]) == PYTHON, "licences.yaml has every pin, and no other"
    assert sorted(TABLE["go"]) == sorted({pin.name for pin in bill.go_pins()})
    known = {**TABLE["python"], **TABLE["go"]}
    refused = {name: item for name, item in known.items() if name not in TABLE["exceptions"] and not accepted(item)}
    assert refused == {}
    needless = [name for name in TABLE["exceptions"] if name not in known or accepted(known[name])]
    assert needless == []


def test_what_comes_with_every_install_needs_no_exception() -> None:
    base = {pin.name for pin in bill.python_pins() if pin.needed_by == "base"}
    assert len(base) > 20
    assert not base & set(TABLE["exceptions"])


def test_packages_say_of_themselves_what_the_table_says() -> None:
    """As far as they are installed, and name an expression; the others' were looked up in their files."""
    checked, differing = 0, {}
    for name in PYTHON:
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        if "License-Expression" in about:
            checked += 1
            stated = about["License-Expression"]
            if not SPDX.is_equivalent(stated, TABLE["python"][name]):
                differing[name] = stated
    assert checked > 50
    assert differing == {}


def test_what_is_installed_here_is_pinned() -> None:
    """A package beside the pins would be in nobody's bill."""
    installed = {canonicalize_name(result.metadata["Name"]) for result in metadata.distributions()}
    assert installed - set(PYTHON) - {"slicepilot"} <= {"pip"}


# -- uv ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_uv_itself_is_installed_by_its_hashes(tmp_path: Path) -> None:
    """The Makefile's own command, with a hash that is not uv's."""
    text = (ROOT / "requirements" / "uv.txt").read_text()
    assert re.search(r"^uv==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    [command] = [line.strip() for line in (ROOT / "Makefile").read_text().splitlines() if "-m pip install" in line]
    assert "--require-hashes -r requirements/uv.txt" in command
    (tmp_path / "requirements").mkdir()
    forged = re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + 64 * "0", text)
    (tmp_path / "requirements" / "uv.txt").write_text(forged)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / ".uv-bootstrap")], check=True)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / ".uv-bootstrap" / "bin" / "uv").exists()
    if "THESE PACKAGES DO NOT MATCH THE HASHES" not in done.stderr:  # it could not even ask
        pytest.skip("no package index here")
