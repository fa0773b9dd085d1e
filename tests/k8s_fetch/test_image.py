"""Bundles out of registries: a real one, and ones that are after the node."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.fetch.child import FetchError
from slicepilot.cluster.fetch.image import Registries, fetch
from slicepilot.cluster.fetch.layers import MOST_UNPACKED
from slicepilot.cluster.resources.wanted import IMAGE, Wanted
from slicepilot.configs import ConfigError

from .bundles import digest, parts
from .registry import (
    HTPASSWD,
    INDEX,
    MANIFEST,
    PASSWORD,
    PROGRAM,
    USER,
    Answer,
    Pusher,
    hostile,
    packed,
    running,
    titled,
)

needs_registry = pytest.mark.skipif(PROGRAM is None, reason="needs docker-registry: tests/packages.sh")
PARTS = parts()


def wanted(reference: str) -> Wanted:
    return Wanted("core", IMAGE, reference, "", digest(PARTS))


def refusal(reference: str, registries: Registries) -> str:
    with pytest.raises(FetchError) as error:
        fetch(wanted(reference), registries)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module", name="host")
def _host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("registry")) as host:
        yield host


@needs_registry
@pytest.mark.parametrize("kind", ["files", "tar", "tar+gzip", "folder", "two members", "index", "two layers"])
def test_a_bundle_is_found_in_what_was_pushed(host: str, kind: str) -> None:
    pusher, name = Pusher(f"http://{host}"), "policies/generalist"
    half = dict(list(PARTS.items())[:1]), dict(list(PARTS.items())[1:])
    layers: dict[str, list[tuple[bytes, dict[str, Any]]]] = {
        "files": [*titled(PARTS), *titled({"README.md": b"x"})],
        "tar": [(packed(PARTS), {})],
        "tar+gzip": [(packed(PARTS, compress=True), {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"})],
        "folder": [(packed(PARTS, "./bundle/"), {})],
        "two members": [(gzip.compress(packed(PARTS)[:700]) + gzip.compress(packed(PARTS)[700:]), {})],
        "index": [(packed(PARTS), {})],
        "two layers": [(packed({"policy.onnx": b"old"}), {}), (packed(half[0]), {}), *titled(half[1])],
    }
    tag = kind.replace(" ", "-").replace("+", "-")
    found = pusher.push(name, tag, layers[kind])
    if kind == "index":
        size = len(json.dumps({}))
        one = {"mediaType": MANIFEST, "digest": found, "size": size}
        other = one | {"platform": {"os": "windows", "architecture": "amd64"}}
        pusher.manifest(name, tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, one]})
    registries = Registries.of([f"http://{host}"])
    for reference in (f"{host}/{name}:{tag}", f"{host}/{name}:elsewhere@{found}"):
        assert fetch(wanted(reference), registries) == PARTS


@needs_registry
def test_what_was_pushed_is_no_bundle(host: str) -> None:
    pusher, registries = Pusher(f"http://{host}"), Registries.of([f"http://{host}"])
    link = tarfile.TarInfo("policy.onnx")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    pipe = tarfile.TarInfo("SHA256SUMS")
    pipe.type = tarfile.FIFOTYPE
    large = packed({"SHA256SUMS": b"x" * 5000})
    empty = [tarfile.TarInfo(f"{number}") for number in range(1001)]
    cases = {
        "link": ([(packed({}, "", link), {})], "policy.onnx: accepted: a file, and no link"),
        "pipe": ([(packed({}, "", pipe), {})], "SHA256SUMS: accepted: a file"),
        "large": ([(large, {})], "SHA256SUMS: more than 4096 bytes"),
        "large-file": (titled({"SHA256SUMS": b"x" * 5000}), "SHA256SUMS: more than 4096 bytes"),
        "many": ([(packed({}, "", *empty), {})], "more than 1000 files"),
        "text": ([(b"x" * 600, {})], "a layer is no tar"),
        "bomb": ([(gzip.compress(b"\0" * (MOST_UNPACKED + 1)), {})], "when they are unpacked"),
        "cut": ([(gzip.compress(packed(PARTS))[:-400], {})], "gzip ends too soon"),
        "layers": ([(f"{number}".encode(), {}) for number in range(17)], "17 layers; accepted: at most 16"),
    }
    for tag, (layers, why) in cases.items():
        pusher.push("x", tag, layers)
        assert why in refusal(f"{host}/x:{tag}", registries), tag
    assert "manifest: answer 404 (there is none)" in refusal(f"{host}/x:nothing", registries)


@needs_registry
def test_https_and_who_asks(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    with running(tmp_path, (certificate, key), HTPASSWD) as host:
        Pusher(f"https://{host}", certificate, known=True).push("b", "1", titled(PARTS))
        keys = tmp_path / "config.json"
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        keys.write_text(json.dumps({"auths": {host: {"auth": auth}}}))
        assert fetch(wanted(f"{host}/b:1"), Registries.of([host], certificate, keys)) == PARTS
        keys.write_text(json.dumps({"auths": {host: {"username": USER, "password": PASSWORD}}}))
        assert fetch(wanted(f"{host}/b:1"), Registries.of([host], certificate, keys)) == PARTS
        assert "answer 401" in refusal(f"{host}/b:1", Registries.of([host], certificate))
        assert "certificate is not trusted" in refusal(f"{host}/b:1", Registries.of([host], None, keys))
        plain = refusal(f"{host}/b:1", Registries.of([f"http://{host}"], certificate, keys))
        assert "answer 400" in plain  # what Go says to HTTP on such a port
        keys.write_text("[")
        assert "accepted: docker's config.json" in refusal(f"{host}/b:1", Registries.of([host], certificate, keys))


def test_only_those_that_are_listed_are_asked() -> None:
    with hostile(lambda *_: (200, {}, b"{}")) as (host, asked):
        assert "not among those that this node's operator lists" in refusal(f"{host}/b:1", Registries())
        assert "accepted: other.example" in refusal(f"{host}/b:1", Registries.of(["other.example"]))
        assert not asked
    for wrong in ("b:1", "host/UPPER:1", "host/../b:1", "http://host/b", "host/b@sha256:0", "a@b/c:1", "host/b:1?x"):
        assert "accepted: HOST[:PORT]/NAME" in refusal(wrong, Registries.of(["host"])), wrong
    for entry in ("http://", "a b", "ftp://a", "a/b", "user@a", ""):
        with pytest.raises(ConfigError, match="bundle-registry"):
            Registries.of([entry])


def test_redirects_lead_to_nobody_else() -> None:
    """Nor are they followed by the key of the host that has sent them."""
    for target, told in (
        ("http://169.254.169.254/latest/meta-data", "sends us to http://169.254.169.254, which is not listed"),
        ("https://elsewhere.example/x", "sends us to https://elsewhere.example, which is not listed"),
        ("file:///etc/passwd", "sends us to file://"),
        ("http://[::1", "redirects to no address"),
    ):
        with hostile(lambda *_, to=target: (307, {"Location": to}, b"")) as (host, _):
            assert told in refusal(f"{host}/b:1", Registries.of([f"http://{host}"]))
    with hostile(lambda path, _: (302, {"Location": path + "x"}, b"")) as (host, asked):
        assert "more than 3 redirects" in refusal(f"{host}/b:1", Registries.of([f"http://{host}"]))
        assert len(asked) == 4
    seen: list[dict[str, str]] = []

    def other(_: str, headers: dict[str, str]) -> Answer:
        seen.append(headers)
        return 404, {}, b""

    def first(_: str, headers: dict[str, str]) -> Answer:
        if "Authorization" not in headers:
            return 401, {"WWW-Authenticate": f'Bearer realm="http://{there}/token",service="s"'}, b""
        return 307, {"Location": f"http://{elsewhere}/blob"}, b""

    with (
        hostile(other) as (elsewhere, _),
        hostile(lambda *_: (200, {}, b'{"token": "abc"}')) as (there, tokens),
        hostile(first) as (host, _),
    ):
        listed = [f"http://{one}" for one in (host, there, elsewhere)]
        assert "answer 404" in refusal(f"{host}/a/b:1", Registries.of(listed))
        assert tokens == ["/token?service=s&scope=repository%3Aa%2Fb%3Apull"]
        assert seen
        assert "Authorization" not in seen[0]
        unlisted = refusal(f"{host}/a/b:1", Registries.of(listed[:1]))
        assert f"its token: sends us to http://{there}, which is not listed" in unlisted


def answering(manifest: bytes, blob: bytes | None = b"") -> Any:
    def script(path: str, _: dict[str, str]) -> Answer | None:
        if "/manifests/" in path:
            return 200, {}, manifest
        return None if blob is None else (200, {}, blob)

    return script


def layered(size: Any, of: str = "0" * 64) -> bytes:
    return json.dumps({"layers": [{"digest": f"sha256:{of}", "size": size}]}).encode()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (lambda *_: None, "manifest: more than 1048576 bytes"),
        (answering(b"["), "the manifest is no JSON"),
        (answering(b"[" * 100_000), "the manifest is no JSON"),
        (answering(b"[]"), "the manifest is no object"),
        (answering(b"{}"), "a manifest without layers"),
        (answering(layered(1, "../../x")), "a descriptor without a SHA-256"),
        (answering(layered(1 << 40)), "layers of more than 50331648 bytes"),
        (answering(layered(-1)), "of no size"),
        (answering(layered("1")), "of no size"),
        (answering(layered(3), b"abcd"), "a layer: more than 3 bytes"),
        (answering(layered(3), b"abc"), "a layer is another one than the manifest says"),
        (answering(layered(100), None), "a layer: more than 100 bytes"),
        (answering(json.dumps({"manifests": [{"platform": {"os": "plan9"}}]}).encode()), "an index without a manifest"),
        (lambda *_: (200, {"Content-Length": "100"}, b"x"), "cannot be reached"),
        (lambda *_: (401, {"WWW-Authenticate": 'Bearer realm="file:///x"'}, b""), "sends us to file://"),
    ],
)
def test_answers_of_the_worst_kind_are_a_line(script: Any, why: str) -> None:
    with hostile(script) as (host, _):
        assert why in refusal(f"{host}/b:1", Registries.of([f"http://{host}"]))


def test_a_manifest_that_is_named_by_its_digest_is_that_one() -> None:
    with hostile(answering(b"{}")) as (host, _):
        named = f"{host}/b@sha256:{hashlib.sha256(b'other').hexdigest()}"
        assert "another one than its digest says" in refusal(named, Registries.of([f"http://{host}"]))


def test_one_that_says_nothing_is_left_in_time() -> None:
    def slow(*_: Any) -> Answer:
        time.sleep(14)
        return 200, {}, b""

    with hostile(slow) as (host, _):
        before_s = time.monotonic()
        assert "no answer in time" in refusal(f"{host}/b:1", Registries.of([f"http://{host}"]))
        assert time.monotonic() - before_s < 14
