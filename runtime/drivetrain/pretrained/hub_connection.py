"""Sends requests to the Hugging Face hub, with token, proxies and certificates, and repeats them if the hub is busy.

The hub's own client is not used: it compares no hashes, and downloads a file from its start after its process was killed.
"""

from __future__ import annotations

import email.utils
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request

from drivetrain.pretrained.hub_error import NETWORK, HubError, HubKind, explain_refusal
from drivetrain.system import web
from drivetrain.system.files import parse_json
from drivetrain.system.secrets import mask_secrets
from drivetrain.system.version import VERSION

READ_TIMEOUT_SECONDS = 10.0
"""Longest wait for the hub's next byte."""
FIRST_PAUSE_SECONDS = 1.0
"""Pause before the second attempt; each further pause is twice as long."""
MAX_ATTEMPTS = 4
"""Attempts if the hub answers with a server error."""
MAX_WAIT_SECONDS = 300.0
"""Longest sum of the pauses that the hub asks for."""
MAX_JSON_BYTES = 32 << 20
"""Longest list that is read from the hub."""
TOKEN = "HF_TOKEN"
_BUSY_STATUSES = (408, 429, 500, 502, 503, 504)
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_TRUE = ("1", "on", "yes", "true")


def find_cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that all Hugging Face libraries share."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(os.path.expanduser(environ[name]))
    return _find_home(environ) / "hub"


def is_offline(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has turned off requests to the hub."""
    return any(environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _find_home(environ: Mapping[str, str]) -> Path:
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(environ.get("HF_HOME") or f"{shared}/huggingface"))


def find_token(environ: Mapping[str, str]) -> tuple[str, str]:
    """The token, and the variable or file in which it was; both are empty if there is none."""
    if environ.get(TOKEN):
        return environ[TOKEN].strip(), TOKEN
    path = Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or _find_home(environ) / "token"))
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return "", ""
    return token, str(path) if token else ""


@dataclass(frozen=True)
class Connection:
    """A hub, and how to reach it."""

    endpoint: str
    token: str
    source: str
    """The variable or file of the token, for messages."""
    opener: OpenerDirector
    say: Callable[[str], None]
    kind: HubKind = NETWORK

    def read_json_page(self, path: str) -> tuple[object, str]:
        """Read the JSON at a path of the hub; also returns the path of its next page, empty for the last page.

        Raises:
            HubError: if the hub does not answer with JSON.
        """
        with self.open(f"{self.endpoint}{path}") as answer:
            try:
                content = parse_json(answer.read(MAX_JSON_BYTES))
            except (OSError, HTTPException) as error:
                raise unreachable_error(self.endpoint, error) from None
            except ValueError:
                raise HubError(
                    f"{mask_secrets(self.endpoint)} answers with something that is no JSON",
                    "a hub, or a mirror of it",
                    "check HF_ENDPOINT, and whether a proxy or a login page answers instead",
                ) from None
            next_link = _NEXT.search(answer.headers.get("Link", ""))
        next_url = urljoin(self.endpoint, next_link[1]) if next_link else ""
        # Pages on other hosts are not read.
        return content, next_url.removeprefix(self.endpoint) if next_url.startswith(f"{self.endpoint}/") else ""

    def read_range(self, url: str, start: int, count: int) -> bytes | None:
        """Read `count` bytes of a file from `start`; None if the server sends the whole file instead.

        Raises:
            HubError: if the hub refuses, or cannot be reached.
        """
        last, reason = start + count - 1, ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                self.say(f"hub: {reason}; next attempt in {FIRST_PAUSE_SECONDS * 2 ** (attempt - 1):,.0f} s")
                time.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            with self.open(url, start=start, last=last) as answer:
                if not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-{last}/"):
                    return None
                try:
                    content = answer.read(count)
                except (OSError, HTTPException) as error:
                    reason = _describe_cause(error)
                    continue
                if len(content) == count:
                    return content
                reason = f"{len(content):,} of {count:,} bytes came"
        raise HubError(
            f"a part of a file cannot be read from {mask_secrets(self.endpoint)}: {reason}",
            "a hub that answers",
            "call the same command again; if it stays so, check the proxy or mirror (HF_ENDPOINT)",
        )

    def open(self, url: str, *, start: int = 0, last: int | None = None) -> HTTPResponse:
        """Send a GET request for the bytes from `start` to `last`; None stands for the end.

        Raises:
            HubError: if the hub refuses, asks to wait for too long, or cannot be reached.
        """
        request = Request(url, headers={"User-Agent": f"drivetrain/{VERSION}"})
        if start or last is not None:
            request.add_header("Range", f"bytes={start}-{'' if last is None else last}")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        waited, attempt = 0.0, 0
        while True:
            attempt += 1
            try:
                answer: HTTPResponse = self.opener.open(request, timeout=READ_TIMEOUT_SECONDS)
                return answer
            except HTTPError as error:
                with error:
                    status, headers = error.code, error.headers
                pause = _compute_pause(status, headers, attempt)
                if pause is None or waited + pause > MAX_WAIT_SECONDS:
                    raise explain_refusal(status, headers, self.endpoint, self.source, pause, self.kind) from None
                reason = f"{status}, {'too many requests' if status == 429 else 'an error of the hub'}"
            except URLError as error:  # without a connection another attempt is useless
                raise unreachable_error(self.endpoint, error) from None
            except (OSError, HTTPException) as error:
                if attempt == 2:
                    raise unreachable_error(self.endpoint, error) from None
                pause, reason = FIRST_PAUSE_SECONDS, _describe_cause(error)
            waited += pause
            self.say(f"hub: {reason}; next attempt in {pause:,.0f} s")
            time.sleep(pause)


def connect(say: Callable[[str], None], environ: Mapping[str, str] = os.environ, kind: HubKind = NETWORK) -> Connection:
    """Prepare requests to the hub of HF_ENDPOINT.

    Raises:
        HubError: if HF_ENDPOINT is no address.
    """
    endpoint = (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise HubError(
            f"HF_ENDPOINT is {endpoint!r}", "an address such as https://huggingface.co", "correct it, or unset it"
        )
    token, source = find_token(environ)
    if token and url.scheme == "http" and not web.is_loopback(url.hostname):
        say(f"hub: {endpoint} is not encrypted, so the token of {source} is not sent")
        token, source = "", ""
    return Connection(endpoint, token, source, web.build_opener(endpoint, _Redirects()), say, kind)


class _Redirects(HTTPRedirectHandler):
    """Follows the redirects of the hub's files; the token is sent only to the same host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request:
        old_url, new_url = urlsplit(req.full_url), urlsplit(newurl)
        if new_url.scheme not in ("http", "https") or (old_url.scheme == "https" and new_url.scheme != "https"):
            fp.close()
            raise HubError(
                f"{old_url.hostname} redirects to {new_url.scheme}://{new_url.hostname}, which is not encrypted",
                "https all the way",
                "check HF_ENDPOINT and the proxy",
            )
        header_names = ["User-agent", "Range"] + (["Authorization"] if _origin(old_url) == _origin(new_url) else [])
        return Request(
            newurl, headers={name: str(req.get_header(name)) for name in header_names if req.has_header(name)}
        )


def _origin(url: SplitResult) -> tuple[str, str | None, int]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}[url.scheme]


def _compute_pause(status: int, headers: Message, attempt: int) -> float | None:
    """Seconds until the next attempt; None if no further attempt is made."""
    if status not in _BUSY_STATUSES or (status != 429 and attempt == MAX_ATTEMPTS):
        return None
    return max(read_retry_after(headers) or 0.0, FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 6))


def read_retry_after(headers: Message) -> float | None:
    """Seconds that the hub asks to wait: Retry-After as a number or a date, or the reset of its limit."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        reset = _RESET.search(headers.get("RateLimit") or "")
        return float(reset[1]) if reset else None


def unreachable_error(endpoint: str, error: Exception) -> HubError:
    """The error for a hub that gives no answer."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        action = (
            "if a proxy opens TLS here, name the file of its certificates: SSL_CERT_FILE=FILE (PIP_CERT for images)"
        )
    elif "407" in str(cause):
        action = "write user and password into the proxy's address: https_proxy=http://USER:PASSWORD@HOST:PORT"
    else:
        action = "check the network connection, https_proxy and HF_ENDPOINT"
    return HubError(
        f"{mask_secrets(endpoint)} cannot be reached: {_describe_cause(cause)}",
        "a network, or files that were fetched before",
        action,
        offline=True,
    )


def _describe_cause(cause: object) -> str:
    if isinstance(cause, TimeoutError):
        return f"no answer within {READ_TIMEOUT_SECONDS:g} s"
    text = str(getattr(cause, "strerror", None) or cause).strip() or type(cause).__name__
    return mask_secrets(text.splitlines()[0][:200])
