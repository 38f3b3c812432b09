"""A file at http:// whose server sends on to another one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from drivetrain.storage import redirects
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import parse
from drivetrain.storage.store_errors import RemoteError
from tests.messages import get_message, saying, says_each

Start = Callable[[str], tuple[str, list[str]]]


@pytest.fixture
def start_server() -> Iterator[Start]:
    """Starts a server that sends on to an address, or that has a file if it is empty; its address, and what it is asked."""
    servers = []

    def run(location: str) -> tuple[str, list[str]]:
        requests: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(self.path)
                moved = location and self.path != "/there"
                self.send_response(302 if moved else 200)
                if moved:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "6")
                self.end_headers()
                self.wfile.write(b"secret")

            do_HEAD = do_GET

            def log_message(self, *arguments: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", requests

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_redirect_to_a_service_of_this_machine_is_not_followed(start_server: Start) -> None:
    inside, requests = start_server("")
    outside, _ = start_server(f"{inside}/credentials")
    with pytest.raises(RemoteError) as raised:
        ObjectStore(parse(outside)).get("data.csv")
    assert says_each(
        raised.value.lines(),
        [
            get_message("redirects-public-address", f"{outside}/data.csv", inside),
            get_message("possible-file-address-says"),
            get_message("you-trust-server-write"),
        ],
    )
    assert raised.value.exit_code == 7
    assert requests == []


@pytest.mark.parametrize("host", ["169.254.169.254", "2852039166", "[fd00:ec2::254]", "100.100.100.200"])
def test_credentials_of_a_machine_are_no_data(host: str) -> None:
    with pytest.raises(RemoteError, check=saying("cloud-gives-credentials")):
        ObjectStore(parse(f"http://{host}/latest/meta-data/iam")).get("security-credentials")


def test_a_redirect_within_a_server_is_followed(start_server: Start) -> None:
    address, _ = start_server("/there")
    assert ObjectStore(parse(address)).get("data.csv") == b"secret"


@pytest.mark.parametrize(
    ("addresses", "public"),
    [
        (["93.184.216.34"], True),
        (["93.184.216.34", "10.0.0.1"], False),
        (["169.254.169.254"], False),
        (["100.64.0.1"], False),
        (["::1"], False),
        (["fe80::1%eth0"], False),
        (["::ffff:127.0.0.1"], False),
        (["2606:2800:220:1::1"], True),
        ([], False),
    ],
    ids=["public", "one private", "metadata", "carrier", "loopback", "link", "mapped", "public six", "none"],
)
def test_all_addresses_of_a_host_have_to_be_public(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], public: bool
) -> None:
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    assert redirects._is_public(urlsplit("http://files.example/a")) is public
