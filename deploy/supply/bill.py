"""Writes the software bill of materials: everything that is installed, by its pins, as CycloneDX 1.6 (JSON).

    python deploy/supply/bill.py [--out FILE]

From requirements/*.txt (Python, with the hashes of what is downloaded), testbed/go.sum (Go) and the scripts that
install Debian packages, whose versions are the distribution's. Licences are those of licences.yaml beside this file.
The same pins give the same bytes where SOURCE_DATE_EPOCH is set. Needs the packages of requirements/dev.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import slicepilot

ROOT = Path(__file__).parents[2]
LICENCES = Path(__file__).with_name("licences.yaml")
SETS = ("base", "train", "dev", "go", "uv")
"""Of Python pins; each of the first three holds all of those before it, ``dev`` those of all extras, too."""
_SCOPES = {"base": ComponentScope.REQUIRED, "train": ComponentScope.OPTIONAL}
_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)(.*)$")


@dataclass(frozen=True)
class Pin:
    """One thing that is installed.

    Attributes:
        kind: as in a package URL: ``pypi``, ``golang`` or ``deb``.
        name: of the package; version: None for what the distribution chooses.
        needed_by: ``base``, ``train``, ``dev``, ``go``, ``uv``, ``userplane`` or the script that installs it.
        hashes: SHA-256 of the files it may be, in hexadecimal; of a Go module its ``h1:`` hash.
        marker: where it is installed; empty for everywhere.
    """

    kind: str
    name: str
    version: str | None
    needed_by: str
    hashes: tuple[str, ...] = ()
    marker: str = ""

    @property
    def purl(self) -> PackageURL:
        """Package URL, which names what and which, and no host."""
        if self.kind == "golang":
            namespace, _, name = self.name.rpartition("/")
            return PackageURL("golang", namespace, name, self.version)
        return PackageURL(self.kind, "debian" if self.kind == "deb" else None, self.name, self.version)


def python_pins() -> Iterator[Pin]:
    """Of all files in requirements/, each once, by the smallest set that has it."""
    seen = set()
    for needed_by in SETS:
        text = (ROOT / "requirements" / f"{needed_by}.txt").read_text()
        for line in re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ").splitlines():
            result = _PIN.match(line.strip())
            if result is None:
                raise SystemExit(f"requirements/{needed_by}.txt: {line!r}: accepted: NAME==VERSION and hashes")
            name, version, rest = result.groups()
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest))
            marker = rest.partition("--hash")[0].strip().removeprefix(";").strip()
            if (name, version) not in seen:
                seen.add((name, version))
                yield Pin("pypi", name, version, needed_by, hashes, marker)


def go_pins() -> Iterator[Pin]:
    """Modules of testbed/go.sum."""
    for line in (ROOT / "testbed" / "go.sum").read_text().splitlines():
        name, version, digest = line.split()
        if not version.endswith("/go.mod"):
            yield Pin("golang", name, version, "userplane", (digest,))


def debian_pins() -> Iterator[Pin]:
    """What testbed/system.sh installs and tests/packages.sh unpacks: the words of their tables of packages."""
    for script in ("testbed/system.sh", "tests/packages.sh"):
        text = (ROOT / script).read_text()
        table = re.search(r"declare -A packages=\((.*?)^\)", text, re.DOTALL | re.MULTILINE)
        more = re.search(r"^compose=\((.*?)\)", text, re.DOTALL | re.MULTILINE)
        if table is None:
            raise SystemExit(f"{script}: no table `packages`; accepted: [file]=packages")
        names = {name for words in re.findall(r"\]=\"?([^\"\n]+)", table[1]) for name in words.split()}
        names = {name for name in names if "$" not in name}
        names |= {f"python3-{name}" for name in more[1].split()} if more else set()
        for name in sorted(names):
            yield Pin("deb", name, None, script)


def licences() -> dict[str, Any]:
    """The table."""
    table: dict[str, Any] = yaml.safe_load(LICENCES.read_text())
    return table


def bill() -> Bom:
    """All of it."""
    pins, table = [*python_pins(), *go_pins(), *debian_pins()], licences()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = slicepilot.__version__
    digest = hashlib.sha256(repr((version, pins, table)).encode())
    bom = Bom(serial_number=uuid.UUID(bytes=digest.digest()[:16], version=4))
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        bom.metadata.timestamp = datetime.fromtimestamp(int(epoch), UTC)
    root = Component(
        name=project["name"],
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="slicepilot",
        licenses=[LicenseExpression(project["license"])],
    )
    bom.metadata.component = root
    components = [_component(pin, table) for pin in pins]
    bom.components.update(components)
    bom.register_dependency(root, components)
    return bom


def _component(pin: Pin, table: dict[str, Any]) -> Component:
    licence = {"pypi": table["python"], "golang": table["go"], "deb": {}}[pin.kind].get(pin.name)
    properties = [Property(name="slicepilot:needed-by", value=pin.needed_by)]
    references = []
    if pin.marker:
        properties.append(Property(name="slicepilot:where", value=pin.marker))
    if pin.kind == "golang":
        properties.append(Property(name="slicepilot:go-sum", value=pin.hashes[0]))
    elif pin.hashes:
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=item) for item in pin.hashes]
        references.append(
            ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(pin.purl)), hashes=hashes)
        )
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(pin.purl),
        purl=pin.purl,
        scope=_SCOPES.get(pin.needed_by, ComponentScope.EXCLUDED),
        licenses=[LicenseExpression(licence)] if licence else [],
        external_references=references,
        properties=properties,
    )


def main() -> int:
    """Exit code 0 when it is written."""
    parser = argparse.ArgumentParser(description="Write the software bill of materials (CycloneDX 1.6).")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "slicepilot.cdx.json")
    given = parser.parse_args()
    text = JsonV1Dot6(bill()).output_as_string(indent=1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text + "\n")
    print(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
