"""The terminal of a container: who gets one, how its output is read, and its size; against a server that answers as
the engine does.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import docker
from drivetrain.launch import follow_container
from tests.paths import ROOT

PIECES = [b"run runs/digits-001 starts\r\n", "\x1b[2F\x1b[J━".encode()[:-1], "━".encode()[-1:] + b"\r\n"]


class Engine(BaseHTTPRequestHandler):
    """The log of a container with a terminal, in pieces; and its size."""

    protocol_version = "HTTP/1.1"
    sizes: list[tuple[int, int]]

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in [*PIECES, b""]:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()

    def do_POST(self) -> None:
        query = {key: int(value[0]) for key, value in parse_qs(urlsplit(self.path).query).items()}
        type(self).sizes.append((query["w"], query["h"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Any]:
    Engine.sizes = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = docker.DockerClient(base_url=f"tcp://127.0.0.1:{server.server_port}", version="1.41")
    yield client
    client.close()
    server.shutdown()
    server.server_close()


def container(client: Any, tty: bool = True) -> Any:
    attrs = {"Config": {"Tty": tty}, "State": {}, "HostConfig": {}}
    api = client.api
    return SimpleNamespace(
        id="c",
        attrs=attrs,
        client=client,
        resize=lambda height, width: api.resize("c", height, width),
        wait=lambda: {"StatusCode": 75},
        reload=lambda: None,
    )


@pytest.fixture
def restore_handlers() -> Iterator[None]:
    every = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH)
    before = {number: signal.getsignal(number) for number in every}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_output_of_a_terminal_comes_in_the_engines_pieces(engine: Any) -> None:
    assert list(follow_container.read_to_end(container(engine))) == PIECES


def test_a_character_cut_in_two_stays_whole(
    engine: Any,
    restore_handlers: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert follow_container.follow(container(engine)) == 75
    out = capsys.readouterr().out
    assert "━" in out
    assert "�" not in out


def test_the_size_is_handed_on_now_and_later(
    engine: Any, restore_handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "w") as screen:
            monkeypatch.setattr(sys, "stdout", screen)
            for width, height in ((80, 24), (120, 40)):
                fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
                if not Engine.sizes:
                    follow_container.follow_size(container(engine))
                else:
                    signal.raise_signal(signal.SIGWINCH)
            assert Engine.sizes == [(80, 24), (120, 40)]
            monkeypatch.undo()
    finally:
        os.close(leader)


def test_without_a_terminal_no_size_is_asked_for(engine: Any, restore_handlers: None) -> None:
    before = signal.getsignal(signal.SIGWINCH)
    follow_container.follow_size(container(engine, tty=False))
    assert signal.getsignal(signal.SIGWINCH) is before
    assert Engine.sizes == []


SHOW = "import json; from drivetrain.launch import follow_container as t; print(json.dumps(t.terminal_settings({'LoggingDriver': 'json-file'})))"


def read_terminal_settings(**environment: str) -> str:
    """What a service gets on a terminal."""
    leader, follower = pty.openpty()
    try:
        clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM", "COLORTERM")}
        line = [sys.executable, "-c", SHOW]
        subprocess.run(line, cwd=ROOT, env={**clean, **environment}, stdout=follower, check=True)
        return os.read(leader, 4096).decode().strip()
    finally:
        os.close(leader)
        os.close(follower)


def test_who_gets_a_terminal() -> None:
    settings = read_terminal_settings(TERM="xterm-256color", COLORTERM="truecolor")
    assert '"tty": true' in settings
    assert '"TERM": "xterm-256color", "COLORTERM": "truecolor"' in settings
    assert '"max-size": "20m"' in settings
    assert read_terminal_settings(TERM="dumb") == "{}"
    assert read_terminal_settings(TERM="xterm", NO_COLOR="1") == "{}"
    process = subprocess.run([sys.executable, "-c", SHOW], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "{}"
