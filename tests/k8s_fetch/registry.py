"""A registry, the real one, and what is pushed into it; and one that answers what a test has it answer."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3
import yaml

BUILT = Path(__file__).parents[2] / "build" / "tools" / "usr" / "bin" / "docker-registry"
PROGRAM = str(BUILT) if BUILT.exists() else shutil.which("docker-registry")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
USER, PASSWORD = "somebody", "something"
HTPASSWD = f"{USER}:$2b$04$QpjOf1PVQUzIzSSWY5BS1O4NpBtDyCemc5/DamvF61jBvZcz8rIX.\n"
"""Of that password; bcrypt."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def configuration(folder: Path, address: str, tls: tuple[Path, Path] | None = None, users: str = "") -> Path:
    """Of a registry; https://distribution.github.io/distribution/about/configuration/"""
    document: dict[str, Any] = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": True}, "level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        "http": {"addr": address, "secret": "of-a-test"},
    }
    if tls is not None:
        document["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
    if users:
        (folder / "htpasswd").write_text(users)
        document["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    path = folder / "registry.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@contextlib.contextmanager
def running(folder: Path, tls: tuple[Path, Path] | None = None, users: str = "") -> Iterator[str]:
    """A registry on loopback; its host and port."""
    host = f"localhost:{free_port()}"
    assert PROGRAM is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "serve", str(configuration(folder, host, tls, users))], stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", int(host.split(":")[1])), 1):
                break
            assert time.monotonic() < deadline_s, (folder / "log").read_text()
            time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait(10)


class Pusher:
    """Puts things into a registry, as `oras push` and builders of images do.

    Args:
        root: of the registry, ``http://HOST:PORT``.
        authority: certificates (file) that it is known by.
        known: whether as `USER`.
    """

    def __init__(self, root: str, authority: Path | None = None, *, known: bool = False) -> None:
        self._root = root
        key = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {key}"} if known else {}
        self._pool = urllib3.PoolManager(headers=headers, ca_certs=None if authority is None else str(authority))

    def blob(self, name: str, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        begun = self._pool.request("POST", f"{self._root}/v2/{name}/blobs/uploads/")
        assert begun.status == 202, begun.data
        where = begun.headers["Location"]
        url = f"{where}{'&' if '?' in where else '?'}digest={digest}"
        headers = {**self._pool.headers, "Content-Type": "application/octet-stream"}
        done = self._pool.request("PUT", url, body=data, headers=headers)
        assert done.status == 201, done.data
        return digest

    def manifest(self, name: str, tag: str, document: Mapping[str, Any]) -> str:
        """Its digest."""
        data = json.dumps(document).encode()
        headers = {**self._pool.headers, "Content-Type": document["mediaType"]}
        done = self._pool.request("PUT", f"{self._root}/v2/{name}/manifests/{tag}", body=data, headers=headers)
        assert done.status == 201, done.data
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def push(self, name: str, tag: str, layers: list[tuple[bytes, dict[str, Any]]]) -> str:
        """An image of layers, each with more of its descriptor; the manifest's digest."""
        config = b"{}"
        described = [
            {"mediaType": TAR, "digest": self.blob(name, data), "size": len(data)} | more for data, more in layers
        ]
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.empty.v1+json",
                "digest": self.blob(name, config),
                "size": len(config),
            },
            "layers": described,
        }
        return self.manifest(name, tag, document)


def titled(parts: Mapping[str, bytes]) -> list[tuple[bytes, dict[str, Any]]]:
    """A layer for each file, as `oras push` makes them."""
    return [(data, {"annotations": {"org.opencontainers.image.title": name}}) for name, data in parts.items()]


def packed(parts: Mapping[str, bytes], folder: str = "", *more: tarfile.TarInfo, compress: bool = False) -> bytes:
    """An archive of files and of members that have no content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for one in more:
            archive.addfile(one)
        for name, data in parts.items():
            info = tarfile.TarInfo(f"{folder}{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue()) if compress else out.getvalue()


Answer = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def hostile(script: Callable[[str, dict[str, str]], Answer | None]) -> Iterator[tuple[str, list[str]]]:
    """One that answers by path and headers, without end where the script says None; its host, and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = script(self.path, dict(self.headers))
            self.send_response(200 if found is None else found[0])
            for key, value in ({} if found is None else found[1]).items():
                self.send_header(key, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                while found is None:
                    self.wfile.write(b" " * (1 << 16))
                self.wfile.write(found[2])

        def log_message(self, *_: Any, **named: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
