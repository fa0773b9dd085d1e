"""Users, tokens, certificates and tenants: who they are shown to, and what is said without them."""

from __future__ import annotations

import http.server
import subprocess
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.telemetry.prometheus.config import check_spec
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource

from .servers import Pod, Prometheus, answer, compatible, exporting, serving, vector
from .sources import PERIOD_S, answers, reported, source_of, spec_of, until, valid


def certificate(folder: Path, name: str, issuer: tuple[str, str] | None = None) -> tuple[str, str]:
    """Files of a certificate for this machine and of its key; without an issuer it is an authority's."""
    file, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    signed = [] if issuer is None else ["-CA", issuer[0], "-CAkey", issuer[1]]
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *options, *names, "-keyout", key, "-out", file, *signed]
    subprocess.run(command, check=True, capture_output=True)
    return file, key


def test_tls_names_users_and_certificates(pod: Pod, tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority")
    ca, (strange, _) = authority[0], certificate(tmp_path, "stranger")
    (file, key), (mine, my_key) = (certificate(tmp_path, name, authority) for name in ("server", "client"))
    tls = {"cert_file": file, "key_file": key, "client_ca_file": ca, "client_auth_type": "RequireAndVerifyClientCert"}
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    with exporting([pod]) as target:
        web = {"tls_server_config": tls, "basic_auth_users": {"slicepilot": bcrypt("secret")}}
        server = Prometheus(tmp_path / "data", target, web)
        try:
            user = {"user": "slicepilot", "password_file": str(password)}
            client = {"file": mine, "key_file": my_key}
            good = {"ca_file": ca, "client_certificate": client, "basic_auth": user}
            refused = {
                "answers 401: .*the client is not known": good,
                "certificate verify failed": {**good, "ca_file": strange},
                "cannot be reached": {"ca_file": ca, "basic_auth": user},
            }
            for words, settings in refused.items():
                with pytest.raises(FailureError, match=words):
                    PrometheusSource(spec_of(server.url, **settings), ("s1",), PERIOD_S)
            password.write_text("secret\n")
            until(lambda: answers(spec_of(server.url, **good)), 20.0)
            with source_of(spec_of(server.url, **good)) as source:
                # What is in a file now is what is used: the first is refused, the second let in.
                password.write_text("changed\n")
                until(lambda: reported(source, "answers 401"))
                password.write_text("secret\n")
                until(lambda: source.check() == [] and valid(source) == [True])
        finally:
            server.stop()


def bcrypt(word: str) -> str:
    """Of a password, by the C library's crypt(3) (crypt(5), "bcrypt")."""
    import ctypes

    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    return library.crypt(word.encode(), b"$2b$05$abcdefghijklmnopqrstuu").decode()


def test_a_redirect_is_not_followed_and_the_token_stays_here(tmp_path: Path) -> None:
    requested: list[str | None] = []

    def note(request: http.server.BaseHTTPRequestHandler) -> None:
        requested.append(request.headers["Authorization"])
        answer(request, vector())

    token = tmp_path / "token"
    token.write_text("of-us-alone\n")
    with serving(note) as other:

        def lead(request: http.server.BaseHTTPRequestHandler) -> None:
            requested.append(request.headers["Authorization"])
            answer(request, b"", 307, Location=f"http://{other}/api/v1/query")

        with serving(lead) as address:
            spec = spec_of(f"http://{address}", token_file=str(token))
            with pytest.raises(FailureError, match=rf"answers 307, a redirect to {other}: set url"):
                PrometheusSource(spec, ("s1",), PERIOD_S)
    assert requested == ["Bearer of-us-alone"]


def test_a_tenant_goes_as_a_header_and_its_lack_is_not_told_as_wrong_credentials(tmp_path: Path) -> None:
    """grafana/mimir#2310; the header's file is read again when it changes."""
    file = tmp_path / "tenant"
    file.write_text("edge-1\n")
    with compatible(tenant="edge-1") as (address, server):
        with pytest.raises(FailureError) as caught:
            PrometheusSource(spec_of(f"http://{address}"), ("s1",), PERIOD_S)
        assert "answers 401: no org id: set telemetry.prometheus.headers" in str(caught.value)
        assert "not known" not in str(caught.value)
        with source_of(spec_of(f"http://{address}", headers={"X-Scope-OrgID": "edge-1"})) as source:
            assert valid(source) == [True]
        with source_of(spec_of(f"http://{address}", headers={"x-scope-orgid": {"file": str(file)}})) as source:
            assert valid(source) == [True]
            server.tenant = "edge-2"
            until(lambda: reported(source, "no org id"))
            file.write_text("edge-2\n")
            until(lambda: valid(source) == [True] and source.check() == [])
        file.write_text("two\nlines\n")
        with pytest.raises(ConfigError, match=r"headers.x-scope-orgid file .*: expected one line of printable"):
            PrometheusSource(
                spec_of(f"http://{address}", headers={"x-scope-orgid": {"file": str(file)}}), ("s1",), PERIOD_S
            )


def test_secret_headers_go_to_this_machine_or_over_tls_only() -> None:
    for headers in ({"X-Key": {"file": "/key"}}, {"Authorization": "ApiKey 1"}):
        spec = spec_of("http://elsewhere.example:9090", headers=headers)
        with pytest.raises(ValueError, match="would show the header"):
            check_spec(spec)
        check_spec(spec_of("https://elsewhere.example:9090", headers=headers))
    check_spec(spec_of("http://elsewhere.example:9090", headers={"X-Scope-OrgID": "edge"}))
