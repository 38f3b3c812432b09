"""The token of a hub, and the password of a proxy, reach whom they are for, and nobody else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drivetrain.pretrained import hub_client
from drivetrain.pretrained.hub_error import NETWORK
from tests import hub_double
from tests.hub_server import NAME, Fault, Hub, serve_hub
from tests.messages import get_message, says, says_each
from tests.pretrained.hub_network import FILES, NEEDED, catch_hub_error, fetch_network


def test_a_private_network_needs_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.token = "t0ken123"
    assert "everybody sees" in catch_hub_error().given
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "token").write_text("t0ken123\n")
    assert fetch_network().downloaded
    assert all(headers["Authorization"] == "Bearer t0ken123" for _, headers in hub.requests[1:])


def test_the_token_stays_with_its_host(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "t0ken123"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    with serve_hub(Hub(dict(FILES))) as other:
        hub.file_address = other.endpoint
        assert fetch_network().downloaded
    assert len(other.requests) == 3
    assert all("Authorization" not in headers for _, headers in other.requests)
    assert all("Authorization" in headers for _, headers in hub.requests)


def test_the_token_goes_over_no_open_line(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", "t0ken123")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    assert hub_client.connect(NAME, NETWORK, lines.append).token == ""
    assert says_each(lines, [get_message("hub-encrypted-token-hf", "http://hub.example")])
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert hub_client.connect(NAME, NETWORK, lines.append).token == "t0ken123"


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_a_redirect_to_something_else_than_the_web(hub: Hub, address: str) -> None:
    hub.faults = [Fault(status=302, headers={"Location": address})]
    assert catch_hub_error().given


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_behind_a_proxy_with_a_password_and_its_own_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in NEEDED:
        (model / name).write_bytes(FILES[name])
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "t0ken123")
    with hub_double.run_proxy(tmp_path / "tls", NAME, model, "t0ken123", "pa55word") as proxied:
        monkeypatch.setenv("HF_ENDPOINT", proxied.endpoint)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxied.port}")
        error = catch_hub_error()
        assert "407" in error.given
        assert "http://USER:PASSWORD@HOST:PORT" in error.action
        monkeypatch.setenv("https_proxy", f"http://someone:pa55word@127.0.0.1:{proxied.port}")
        error = catch_hub_error()
        assert "certificate verify failed" in error.given
        assert "SSL_CERT_FILE=FILE" in error.action
        monkeypatch.setenv("SSL_CERT_FILE", str(proxied.authority))
        assert sorted(fetch_network().downloaded) == NEEDED
        assert "pa55word" not in error.given + error.action


@pytest.mark.parametrize(("name", "value"), [("all_proxy", "socks9://host:1"), ("SSL_CERT_FILE", "/nowhere/ca.pem")])
def test_settings_of_this_machine_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    monkeypatch.setenv(name, value)
    error = catch_hub_error()
    assert says(error.given, "proxy-certificates-machine-used")
    assert name in error.action
