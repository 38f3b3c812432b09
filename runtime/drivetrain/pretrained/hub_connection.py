"""Sends requests to the Hugging Face hub, with token, proxies and certificates, and repeats them if the hub is busy; asks it
which commit a revision is, and which files that has.

The library huggingface_hub is not used. Version 2.4 gives a file its name without comparing its content with the hash, downloads
it from its start after the process was killed, and waits for a busy hub without a limit.
"""

from __future__ import annotations

import email.utils
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request

from drivetrain.pretrained import hub_cache
from drivetrain.pretrained.hub_cache import COMMIT, HASH, HubFile
from drivetrain.pretrained.hub_error import HubError, HubKind, explain_refusal
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
"""Longest page of a list that is read from the hub."""
_MAX_PAGES = 1_000
_BUSY_STATUSES = (408, 429, 500, 502, 503, 504)
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_TRUE = ("1", "on", "yes", "true")


def is_offline() -> bool:
    """Whether the user has turned off requests to the hub."""
    return any(os.environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _find_token() -> tuple[str, str]:
    """The token, and the variable or file in which it was; both are empty if there is none."""
    if token := os.environ.get("HF_TOKEN", ""):
        return token.strip(), "HF_TOKEN"
    path = Path(os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or hub_cache.find_home() / "token"))
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return "", ""
    return token, str(path) if token else ""


@dataclass(frozen=True)
class Connection:
    """A repository of a hub, and how to reach it."""

    name: str
    kind: HubKind
    endpoint: str
    token: str
    source: str
    """The variable or file of the token, for messages."""
    opener: OpenerDirector
    say: Callable[[str], None]

    def make_file_url(self, commit: str, path: str) -> str:
        """The URL of a file at a commit."""
        return f"{self.endpoint}/{self.kind.address}{quote(self.name)}/resolve/{commit}/{quote(path)}"

    def read_pages(self, path: str) -> Iterator[object]:
        """Yield the JSON at a path of the repository's API, and its next pages.

        Raises:
            HubError: if the hub does not answer with JSON, or with too much.
        """
        url = f"{self.endpoint}/api/{self.kind.folder}/{quote(self.name)}/{path}"
        for _ in range(_MAX_PAGES):
            with self.open(url) as answer:
                try:
                    page = parse_json(answer.read(MAX_JSON_BYTES))
                except (OSError, HTTPException) as error:
                    raise _unreachable_error(self.endpoint, error) from None
                except ValueError:
                    raise self.answer_error("something that is no JSON") from None
                link = _NEXT.search(answer.headers.get("Link", ""))
            yield page
            url = urljoin(self.endpoint, link[1]) if link else ""
            if not url.startswith(f"{self.endpoint}/"):  # pages on other hosts are not read
                return
        raise self.answer_error(f"more than {_MAX_PAGES:,} pages")

    def answer_error(self, description: str) -> HubError:
        """The error for an answer that cannot be used."""
        return HubError(
            f"{mask_secrets(self.endpoint)} answers with {description}",
            "a hub, or a mirror of it",
            "check HF_ENDPOINT, and whether a proxy or a login page answers instead",
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
                raise _unreachable_error(self.endpoint, error) from None
            except (OSError, HTTPException) as error:
                if attempt == 2:
                    raise _unreachable_error(self.endpoint, error) from None
                pause, reason = FIRST_PAUSE_SECONDS, _describe_cause(error)
            waited += pause
            self.say(f"hub: {reason}; next attempt in {pause:,.0f} s")
            time.sleep(pause)


def connect(name: str, kind: HubKind, say: Callable[[str], None]) -> Connection:
    """Prepare requests about a repository to the hub of HF_ENDPOINT.

    Raises:
        HubError: if HF_ENDPOINT is no address.
    """
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise HubError(
            f"HF_ENDPOINT is {endpoint!r}", "an address such as https://huggingface.co", "correct it, or unset it"
        )
    token, source = _find_token()
    if token and url.scheme == "http" and not web.is_loopback(url.hostname):
        say(f"hub: {endpoint} is not encrypted, so the token of {source} is not sent")
        token, source = "", ""
    return Connection(name, kind, endpoint, token, source, web.build_opener(endpoint, _Redirects()), say)


def find_commit(connection: Connection, revision: str) -> str:
    """The commit of a branch or tag.

    Raises:
        HubError: if the hub does not tell it.
    """
    answer = next(connection.read_pages(f"revision/{quote(revision, safe='')}"))
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise connection.answer_error("no commit")
    return commit


def list_files(connection: Connection, commit: str) -> list[HubFile]:
    """List all files of a commit.

    Raises:
        HubError: if the hub does not list them.
    """
    listed: list[HubFile] = []
    for rows in connection.read_pages(f"tree/{commit}?recursive=true"):
        if not isinstance(rows, list):
            raise connection.answer_error("no list of files")
        listed += filter(None, map(read_listed_file, rows))
    return listed


def read_listed_file(row: object) -> HubFile | None:
    """The file of an entry of the list; None if its values cannot become names in the cache."""
    if not isinstance(row, dict) or row.get("type") != "file":
        return None
    name, size, large = row.get("path"), row.get("size"), row.get("lfs")
    digest = large.get("oid") if isinstance(large, dict) else row.get("oid")
    if not (isinstance(name, str) and isinstance(size, int) and isinstance(digest, str) and HASH.fullmatch(digest)):
        return None
    return HubFile(name, size, digest) if _is_safe(name) else None


def _is_safe(name: str) -> bool:
    """Whether a file of this name is inside the folder that it is written to."""
    parts = PurePosixPath(name).parts
    is_normal = name == "/".join(parts) and "\\" not in name and "\0" not in name
    return bool(parts) and is_normal and ".." not in parts and not name.startswith("/")


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
        is_same_host = web.parse_origin(req.full_url) == web.parse_origin(newurl)
        names = ("User-agent", "Range", "Authorization") if is_same_host else ("User-agent", "Range")
        return Request(newurl, headers={name: str(req.get_header(name)) for name in names if req.has_header(name)})


def _compute_pause(status: int, headers: Message, attempt: int) -> float | None:
    """Seconds until the next attempt; None if no further attempt is made."""
    if status not in _BUSY_STATUSES or (status != 429 and attempt == MAX_ATTEMPTS):
        return None
    return max(_read_retry_after(headers), FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 6))


def _read_retry_after(headers: Message) -> float:
    """Seconds that the hub asks to wait: Retry-After as a number or a date, or the reset of its limit."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError):
        reset = _RESET.search(headers.get("RateLimit") or "")
        return float(reset[1]) if reset else 0.0


def _unreachable_error(endpoint: str, error: Exception) -> HubError:
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
