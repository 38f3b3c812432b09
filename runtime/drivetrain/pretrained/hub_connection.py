"""Requests to the Hugging Face hub: with its token, proxies and certificates, and patient with a hub that is busy.

The hub's own client is not used here: it compares no hashes, and starts a file anew after its process was killed.
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
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from drivetrain.pretrained.hub_error import NETWORK, HubError, HubKind, explain_refusal
from drivetrain.system import web
from drivetrain.system.files import parse_json
from drivetrain.system.secrets import mask
from drivetrain.system.version import VERSION

READ_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for the hub's next byte."""
FIRST_PAUSE_SECONDS = 1.0
"""Seconds before the second attempt; each further one waits twice as long."""
MAX_ATTEMPTS = 4
"""Attempts at a hub that answers with an error of its own."""
LONGEST_WAIT = 300.0
"""Seconds that the hub may make us wait in all."""
MOST_JSON = 32 << 20
"""Bytes of a list that the hub sends."""
TOKEN = "HF_TOKEN"
_BUSY = (408, 429, 500, 502, 503, 504)
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_TRUE = ("1", "on", "yes", "true")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that all Hugging Face libraries share."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(os.path.expanduser(environ[name]))
    return _home(environ) / "hub"


def is_offline(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has turned requests to the hub off."""
    return any(environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _home(environ: Mapping[str, str]) -> Path:
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(environ.get("HF_HOME") or f"{shared}/huggingface"))


def find_token(environ: Mapping[str, str]) -> tuple[str, str]:
    """The token, and where it comes from; both empty if there is none."""
    if environ.get(TOKEN):
        return environ[TOKEN].strip(), TOKEN
    path = Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or _home(environ) / "token"))
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return "", ""
    return token, str(path) if token else ""


@dataclass(frozen=True)
class Connection:
    """The way to one hub."""

    endpoint: str
    token: str
    source: str
    """Where the token comes from, for messages."""
    opener: OpenerDirector
    say: Callable[[str], None]
    kind: HubKind = NETWORK

    def json(self, path: str) -> tuple[object, str]:
        """The content at a path of the hub, and the path of its next page, which is empty for the last one.

        Raises:
            HubError: if the hub does not give it.
        """
        with self.open(f"{self.endpoint}{path}") as answer:
            try:
                content = parse_json(answer.read(MOST_JSON))
            except (OSError, HTTPException) as error:
                raise unreachable(self.endpoint, error) from None
            except ValueError:
                raise HubError(
                    f"{mask(self.endpoint)} answers with something that is no JSON",
                    "a hub, or a mirror of it",
                    "check HF_ENDPOINT, and whether a proxy or a login page answers instead",
                ) from None
            follow = _NEXT.search(answer.headers.get("Link", ""))
        following = urljoin(self.endpoint, follow[1]) if follow else ""
        return content, following.removeprefix(self.endpoint) if following.startswith(f"{self.endpoint}/") else ""

    def range(self, url: str, start: int, count: int) -> bytes | None:
        """Some bytes of a file; None from a server that sends the whole file for a part of it.

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
                    reason = _reason(error)
                    continue
                if len(content) == count:
                    return content
                reason = f"{len(content):,} of {count:,} bytes came"
        raise HubError(
            f"a part of a file cannot be read from {mask(self.endpoint)}: {reason}",
            "a hub that answers",
            "call the same command again; if it stays so, check the proxy or mirror (HF_ENDPOINT)",
        )

    def open(self, url: str, *, start: int = 0, last: int | None = None) -> HTTPResponse:
        """The answer to a GET request for all bytes from `start` on, up to `last`.

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
                pause = _pause(status, headers, attempt)
                if pause is None or waited + pause > LONGEST_WAIT:
                    raise explain_refusal(status, headers, self.endpoint, self.source, pause, self.kind) from None
                reason = f"{status}, {'too many requests' if status == 429 else 'an error of the hub'}"
            except URLError as error:  # no connection: the same a moment later
                raise unreachable(self.endpoint, error) from None
            except (OSError, HTTPException) as error:
                if attempt == 2:
                    raise unreachable(self.endpoint, error) from None
                pause, reason = FIRST_PAUSE_SECONDS, _reason(error)
            waited += pause
            self.say(f"hub: {reason}; next attempt in {pause:,.0f} s")
            time.sleep(pause)


def connect(say: Callable[[str], None], environ: Mapping[str, str] = os.environ, kind: HubKind = NETWORK) -> Connection:
    """The way to the hub of HF_ENDPOINT.

    Raises:
        HubError: if HF_ENDPOINT is no address.
    """
    endpoint = (environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    where = urlsplit(endpoint)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise HubError(
            f"HF_ENDPOINT is {endpoint!r}", "an address such as https://huggingface.co", "correct it, or unset it"
        )
    token, source = find_token(environ)
    if token and where.scheme == "http" and not web.is_loopback(where.hostname):
        say(f"hub: {endpoint} is not encrypted, so the token of {source} is not sent")
        token, source = "", ""
    opener = build_opener(ProxyHandler(web.proxies(endpoint)), HTTPSHandler(context=web.certificates()), _Redirects())
    return Connection(endpoint, token, source, opener, say, kind)


class _Redirects(HTTPRedirectHandler):
    """Follows redirects as the hub's files need them; the token stays with its host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("http", "https") or (before.scheme == "https" and after.scheme != "https"):
            fp.close()
            raise HubError(
                f"{before.hostname} redirects to {after.scheme}://{after.hostname}, which is not encrypted",
                "https all the way",
                "check HF_ENDPOINT and the proxy",
            )
        kept_headers = ["User-agent", "Range"] + (["Authorization"] if _origin(before) == _origin(after) else [])
        return Request(
            newurl, headers={name: str(req.get_header(name)) for name in kept_headers if req.has_header(name)}
        )


def _origin(url: SplitResult) -> tuple[str, str | None, int]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}[url.scheme]


def _pause(status: int, headers: Message, attempt: int) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    if status not in _BUSY or (status != 429 and attempt == MAX_ATTEMPTS):
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


def unreachable(endpoint: str, error: Exception) -> HubError:
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
        f"{mask(endpoint)} cannot be reached: {_reason(cause)}",
        "a network, or files that were fetched before",
        action,
        offline=True,
    )


def _reason(cause: object) -> str:
    if isinstance(cause, TimeoutError):
        return f"no answer within {READ_TIMEOUT_SECONDS:g} s"
    text = str(getattr(cause, "strerror", None) or cause).strip() or type(cause).__name__
    return mask(text.splitlines()[0][:200])
