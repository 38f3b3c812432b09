"""Polls a URL for a preemption notice (this machine will be taken away soon) while the trainer runs.

Cloud providers serve it at an address that only the machine itself can reach. It is requested without a proxy, and
redirects are not followed, so that nobody else can stop the run. No part of an answer but its status is recorded: what
answers may be a service that tells more.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from drivetrain.system.files import parse_json
from drivetrain.system.signals import PREEMPTION_SIGNAL
from drivetrain.tracking.event_log import EventLog

POLL_SECONDS = 5.0
"""Seconds between two requests."""
REQUEST_TIMEOUT = 2.0
"""Timeout of a request in seconds."""
MOST_BYTES = 1 << 16
HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
"""Headers that two providers require as protection against requests from web pages; others ignore them."""
TOKEN = "X-aws-ec2-metadata-token"
NOTHING = ("", "false", "none")
"""Answers, in lower case, that mean no notice."""


class NoAnswer(Exception):
    """The address gave no usable answer."""


class NoticeAddress:
    """An address that serves preemption notices."""

    def __init__(self, url: str) -> None:
        self.url, self.parts = url, urlsplit(url)
        self.headers = dict(HEADERS)

    def notice(self) -> str | None:
        """The notice, or None if there is none; raises NoAnswer if there was no answer, or no usable one."""
        target = (self.parts.path or "/") + (f"?{self.parts.query}" if self.parts.query else "")
        status, text = self._ask("GET", target, self.headers)
        if status == http.client.UNAUTHORIZED:
            status, text = self._ask("PUT", "/latest/api/token", {f"{TOKEN}-ttl-seconds": "21600"})
            if status != http.client.OK or not text.isascii() or not text.isprintable():
                raise NoAnswer(f"answers 401, and {status} when asked for a token")
            self.headers[TOKEN] = text
            status, text = self._ask("GET", target, self.headers)
        if status in (http.client.NOT_FOUND, http.client.NO_CONTENT):
            return None
        if status != http.client.OK:
            raise NoAnswer(f"answers {status}" + (", and redirects are not followed" if 300 <= status < 400 else ""))
        return text if _is_notice(text) else None

    def _ask(self, method: str, target: str, headers: dict[str, str]) -> tuple[int, str]:
        kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.parts.hostname or "", self.parts.port, timeout=REQUEST_TIMEOUT)
        try:
            connection.request(method, target, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.read(MOST_BYTES).decode("utf-8", "replace").strip()
        except (http.client.HTTPException, ValueError) as error:  # their text quotes what was answered
            raise NoAnswer(f"does not answer: {type(error).__name__}") from None
        except OSError as error:
            raise NoAnswer(f"does not answer: {error.strerror or error or type(error).__name__}") from None
        finally:
            connection.close()


def _is_notice(text: str) -> bool:
    """Whether an answer is a notice; an empty list of events is not."""
    if text.lower() in NOTHING:
        return False
    try:
        data = parse_json(text)
    except ValueError:
        return True
    return bool(data.get("Events", True)) if isinstance(data, dict) else bool(data)


@contextlib.contextmanager
def watch(url: str | None, folder: Path) -> Iterator[None]:
    """Poll during the `with` block; a notice sends POLLED to the main thread of this process.

    Args:
        url: the address; None does nothing.
        folder: the run's, for its events.
    """
    if url is None:
        yield
        return
    ended = threading.Event()
    threading.Thread(
        target=_poll, args=(NoticeAddress(url), ended, EventLog(folder).add), name="notice", daemon=True
    ).start()
    try:
        yield
    finally:
        ended.set()


def _poll(address: NoticeAddress, ended: threading.Event, report: Callable[[str, str], None]) -> None:
    """Poll until there is a notice; a problem of the address is reported once, as it may be temporary."""
    is_reported, main = False, threading.main_thread().ident
    assert main is not None
    while not ended.is_set():
        try:
            text = address.notice()
        except NoAnswer as problem:
            if not is_reported:
                advice = f"retrying every {POLL_SECONDS:.0f} s while the training continues"
                report("notice", f"{address.url} {problem}; {advice}")
            is_reported, text = True, None
        if text is not None:
            report("notice", f"{address.url} answers {http.client.OK:d}: this machine will be shut down")
            signal.pthread_kill(main, PREEMPTION_SIGNAL)
            return
        ended.wait(POLL_SECONDS)
