"""``python -m slicepilot.cluster.fetch.puller``: has the files of a bundle from a registry, started by `image`.

The registry may be anybody's: whoever has its name, or its place. This process has no privileges, no file that it could
write, no token of the cluster. It asks hosts that are listed, and follows redirects to those alone; nothing that a host
answers is in what it says, beside the bundle's files.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md, in the part that pulls.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from slicepilot.agents.learned.files import LIMITS_BYTES
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement import confine_client

from .child import FetchError, answer
from .layers import MOST_LAYERS, MOST_PACKED, Unpacked, plain_name

MEMORY = 512 << 20
MOST_MANIFEST, MOST_TOKEN = 1 << 20, 1 << 16
MOST_REDIRECTS = 3
MOST_MANIFESTS = 64
CONNECT_S, SILENT_S = 5.0, 10.0
CHUNK = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
SYSTEMS = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
"""Certificates that this machine trusts, of Debian and Fedora."""
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')


def main() -> None:
    """Answer."""
    answer(_prepare, MEMORY, confine_client)


def _prepare(request: dict[str, Any]) -> Callable[[], Mapping[str, bytes]]:
    """All that is read from files is read before there is none any more."""
    registry = Registry(request)
    privileges.drop_all(privileges.NOBODY if os.geteuid() == 0 else None)
    return lambda: registry.bundle(request["repository"], request["version"])


class Registry:
    """One, by HTTP.

    Args:
        request: as `slicepilot.cluster.fetch.image` writes it.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        import encodings.idna  # noqa: F401 (which a connection imports, when it may not read it any more)
        import ssl

        import urllib3

        self._host: str = request["host"]
        self._schemes: Mapping[str, str] = request["schemes"]
        self._key: str | None = request["key"]
        self._until_s = time.monotonic() + request["seconds"]
        self._allowed: str | None = None  # header
        try:
            context = ssl.create_default_context(cadata=request["authority"] or _authorities())
        except (ssl.SSLError, ValueError) as error:
            raise FetchError("certificates of registries; accepted: PEM") from error
        self._pool = urllib3.PoolManager(
            retries=False, timeout=urllib3.Timeout(connect=CONNECT_S, read=SILENT_S), ssl_context=context
        )

    def bundle(self, repository: str, version: str) -> dict[str, bytes]:
        """Files of it; raises FetchError."""
        root = f"{self._schemes[self._host]}://{self._host}/v2/{repository}"
        manifest = self._manifest(root, version)
        if manifest.get("mediaType") in INDEXES or "manifests" in manifest:
            manifest = self._manifest(root, _digest(_for_here(manifest)))
        layers = manifest.get("layers")
        if not isinstance(layers, list) or not all(isinstance(one, dict) for one in layers):
            raise FetchError("a manifest without layers; accepted: an OCI image, or an artefact of files")
        if len(layers) > MOST_LAYERS:
            raise FetchError(f"{len(layers)} layers; accepted: at most {MOST_LAYERS}")
        wanted = [one for one in layers if plain_name(one) is None or plain_name(one) in LIMITS_BYTES]
        sizes = [one.get("size") for one in wanted]
        if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) > MOST_PACKED:
            raise FetchError(f"layers of more than {MOST_PACKED} bytes, or of no size; accepted: a bundle alone")
        unpacked = Unpacked()
        for one, size in zip(wanted, sizes, strict=True):
            digest = _digest(one)
            data = self._get(f"{root}/blobs/{digest}", "*/*", size, "a layer")
            if len(data) != size or f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
                raise FetchError("a layer is another one than the manifest says")
            unpacked.add(one, data)
        return unpacked.files

    def _manifest(self, root: str, version: str) -> dict[str, Any]:
        data = self._get(
            f"{root}/manifests/{quote(version, safe=':')}", ", ".join(MANIFESTS + INDEXES), MOST_MANIFEST, "manifest"
        )
        if (named := DIGEST.fullmatch(version)) and hashlib.sha256(data).hexdigest() != named[1]:
            raise FetchError("the manifest is another one than its digest says")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise FetchError("the manifest is no JSON") from error
        if not isinstance(found, dict):
            raise FetchError("the manifest is no object")
        return found

    def _get(self, url: str, accept: str, most: int, what: str) -> bytes:
        """From the registry, or from where it says within what is listed; once more with what it asks for."""
        status, headers, data = self._followed(url, {"Accept": accept}, most, what)
        if status == 401 and self._allowed is None:
            self._allowed = self._permission(str(headers.get("WWW-Authenticate") or ""), url)
            status, headers, data = self._followed(url, {"Accept": accept}, most, what)
        if status == 200:
            return data
        hint = {401: " (who asks is not known)", 403: " (who asks may not)", 404: " (there is none)"}.get(status, "")
        raise FetchError(f"registry {self._host}: {what}: answer {status}{hint}")

    def _followed(
        self, url: str, headers: Mapping[str, str], most: int, what: str, allowed: str | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """An answer that is no redirect."""
        first = self._checked(url, what)
        for _ in range(MOST_REDIRECTS + 1):
            host = self._checked(url, what)
            sent = {**headers, "Accept-Encoding": "identity", "User-Agent": "slicepilot"}
            permission = allowed or self._allowed
            if permission is not None and host == first:  # not to those it sends us to
                sent["Authorization"] = permission
            status, got, data = self._asked(url, sent, most, what)
            if status not in REDIRECTS:
                return status, got, data
            try:
                url = urljoin(url, str(got.get("Location") or ""))
            except ValueError as error:
                raise FetchError(f"registry {self._host}: {what}: redirects to no address") from error
        raise FetchError(f"registry {self._host}: {what}: more than {MOST_REDIRECTS} redirects")

    def _checked(self, url: str, what: str) -> str:
        """The host of an address that may be asked; raises FetchError."""
        try:
            parts = urlsplit(url)
            host = parts.netloc.lower()
        except ValueError as error:
            raise FetchError(f"registry {self._host}: {what}: redirects to no address") from error
        plain = f"{host}:443" if parts.scheme == "https" and not re.search(r":[0-9]+$", host) else host
        listed = self._schemes.get(host) or self._schemes.get(plain) or self._schemes.get(host.removesuffix(":443"))
        if listed is None or listed != parts.scheme:
            raise FetchError(
                f"registry {self._host}: {what}: sends us to {parts.scheme}://{host[:100]}, which is not listed; "
                "accepted: hosts that the node's operator lists (option --bundle-registry)"
            )
        return host

    def _asked(self, url: str, headers: dict[str, str], most: int, what: str) -> tuple[int, Mapping[str, str], bytes]:
        import urllib3.exceptions

        where = f"registry {self._host}: {what}"
        try:
            response = self._pool.request("GET", url, headers=headers, redirect=False, preload_content=False)
            try:
                if response.status != 200:
                    return response.status, response.headers, b""
                data = bytearray()
                while part := response.read(CHUNK, decode_content=False):
                    data += part
                    if len(data) > most:
                        raise FetchError(f"{where}: more than {most} bytes")
                    if time.monotonic() > self._until_s:
                        raise FetchError(f"{where}: it took too long")
                return response.status, response.headers, bytes(data)
            finally:
                response.close()
        except urllib3.exceptions.SSLError as error:
            raise FetchError(f"{where}: its certificate is not trusted, or it speaks no TLS") from error
        except urllib3.exceptions.TimeoutError as error:
            raise FetchError(f"{where}: no answer in time") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise FetchError(f"{where}: cannot be reached ({type(error).__name__})") from error

    def _permission(self, challenge: str, url: str) -> str:
        """What a registry wants to be told by: https://distribution.github.io/distribution/spec/auth/token/"""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._key is not None:
            return f"Basic {self._key}"
        named = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in named:
            raise FetchError(f"registry {self._host}: answer 401 (who asks is not known)")
        repository = urlsplit(url).path.removeprefix("/v2/").rpartition("/")[0].rpartition("/")[0]
        query = urlencode({"service": named.get("service", ""), "scope": f"repository:{repository}:pull"})
        basic = None if self._key is None else f"Basic {self._key}"
        status, _, data = self._followed(
            f"{named['realm']}?{query}", {"Accept": "application/json"}, MOST_TOKEN, "its token", basic
        )
        try:
            found = json.loads(data) if status == 200 else {}
            token = found.get("token") or found.get("access_token")
        except (ValueError, RecursionError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,32768}", token):
            raise FetchError(f"registry {self._host}: its token: answer {status}")
        return f"Bearer {token}"


def _authorities() -> str:
    """Those that this machine trusts, else those that Mozilla does; read whole, since no file can be afterwards."""
    for path in SYSTEMS:
        if path.is_file():
            return path.read_text()
    import certifi

    return certifi.contents()


def _digest(document: Mapping[str, Any]) -> str:
    """Of a descriptor; it goes into an address."""
    digest = document.get("digest")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise FetchError("a descriptor without a SHA-256")
    return digest


def _for_here(index: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of an index the manifest for this machine, else one that is for none."""
    found = index.get("manifests")
    if not isinstance(found, list) or len(found) > MOST_MANIFESTS or not all(isinstance(one, dict) for one in found):
        raise FetchError(f"an index that is none, or of more than {MOST_MANIFESTS} manifests")
    here = {"os": "linux", "architecture": MACHINES.get(platform.machine(), platform.machine())}
    for one in found:
        on = one.get("platform")
        if isinstance(on, dict) and all(on.get(key) == value for key, value in here.items()):
            return one
    for one in found:
        if not one.get("platform"):
            return one
    raise FetchError(f"an index without a manifest for linux/{here['architecture']}")


if __name__ == "__main__":
    main()
