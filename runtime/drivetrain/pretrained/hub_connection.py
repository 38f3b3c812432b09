"""Sends requests to the Hugging Face hub, with token, proxies and certificates, and repeats them if the hub is busy; asks it
which commit a revision is, and which files that has.

The library huggingface_hub is not used. Version 2.4 gives a file its name without comparing its content with the hash, downloads
it from its start after the process was killed, and waits for a busy hub as long as that asks. With these promises kept by hooks
around its requests, this module has as many lines, and a machine that only fetches 18 MB more.
"""

from __future__ import annotations

import io
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request

from drivetrain.job.hub_address import COMMIT
from drivetrain.pretrained import hub_cache
from drivetrain.pretrained.hub_cache import HASH, HubFile
from drivetrain.pretrained.hub_error import HubError, HubKind, explain_refusal
from drivetrain.system import web
from drivetrain.system.files import parse_json
from drivetrain.system.secrets import mask_secrets
from drivetrain.system.version import VERSION

READ_TIMEOUT_SECONDS = 10.0
"""Longest wait for the hub's next byte."""
FIRST_PAUSE_SECONDS = 1.0
"""Pause before the second attempt; each further pause is twice as long, or as long as the hub asks."""
MAX_ATTEMPTS = 4
"""Attempts without a new byte after which a request fails, unless the hub asks to wait."""
MAX_WAIT_SECONDS = 300.0
"""Longest sum of the pauses without a new byte."""
MAX_JSON_BYTES = 32 << 20
"""Longest page of a list that is read from the hub."""
_MAX_PAGES = 1_000
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_TRUE = ("1", "on", "yes", "true")
_CHUNK_BYTES = 1 << 18


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
    count: Callable[[int], None] = lambda received: None
    """Takes numbers of bytes that were received, negative if they will be received again."""

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
            page = io.BytesIO()
            headers = self.receive(url, page)
            try:
                rows = parse_json(page.getvalue())
            except ValueError:
                raise self.answer_error("something that is no JSON") from None
            yield rows
            link = _NEXT.search((headers and headers.get("Link")) or "")
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

    def receive(self, url: str, sink: BinaryIO, size: int | None = None, part: range | None = None) -> Message | None:
        """Append an answer to what the sink has of it; repeat the request while the hub is busy or the answer is cut.

        Args:
            size: bytes of the whole answer; None for JSON.
            part: the bytes of a file that are requested; None for all.

        Returns:
            The headers of the answer; None if the server sends the whole file for a part.

        Raises:
            HubError: if the hub refuses, asks to wait for too long, cannot be reached, or the answer stays cut.
        """
        start, failures, waited, first_done = part.start if part else 0, 0, 0.0, sink.tell()
        while True:
            done = sink.tell()
            try:
                with self._open(url, start + done, part) as answer:
                    if start + done and not _continues(answer, start + done):
                        if part:
                            return None
                        sink.seek(0)
                        sink.truncate()
                        self.count(-done)
                    self._append(answer, sink, size, url)
                    return answer.headers
            except HubError as error:
                if sink.tell() > done:
                    failures, waited = 0, 0.0
                failures += 1
                pause = max(error.pause or 0.0, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 6))
                waited += pause
                # Without a connection another attempt is useless; once bytes came, it is an interruption.
                is_final = error.pause is None and not (error.offline and done > first_done)
                if is_final or (failures >= MAX_ATTEMPTS and not error.pause) or waited > MAX_WAIT_SECONDS:
                    raise
                self.say(f"hub: {error.given}; next attempt in {pause:,.0f} s")
                time.sleep(pause)

    def _open(self, url: str, start: int, part: range | None) -> HTTPResponse:
        """Send a GET request for the bytes from `start` on."""
        request = Request(url, headers={"User-Agent": f"drivetrain/{VERSION}"})
        if start or part:
            request.add_header("Range", f"bytes={start}-{part[-1] if part else ''}")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            answer: HTTPResponse = self.opener.open(request, timeout=READ_TIMEOUT_SECONDS)
            return answer
        except HTTPError as error:
            with error:
                raise explain_refusal(error.code, error.headers, self.endpoint, self.source, self.kind) from None
        except (OSError, HTTPException) as error:
            raise _unreachable_error(self.endpoint, error) from None

    def _append(self, answer: HTTPResponse, sink: BinaryIO, size: int | None, url: str) -> None:
        """Append an answer to the sink; raises HubError if it ends early."""
        while size is None or sink.tell() < size:
            reason = "the connection was closed"
            try:
                limit = MAX_JSON_BYTES if size is None else min(_CHUNK_BYTES, size - sink.tell())
                chunk = answer.read(limit) if size is None else answer.read1(limit)
            except (OSError, HTTPException) as error:
                chunk, reason = b"", _describe_cause(error)
            if not chunk:
                amount = "" if size is None else f" after {sink.tell() / 1e6:,.1f} of {size / 1e6:,.1f} MB"
                raise HubError(
                    f"{unquote(url.rpartition('/')[2])} ends{amount}: {reason}",
                    "the whole file",
                    "call the same command again: it resumes there; if it ends there again, check the proxy or mirror",
                    pause=0.0,
                )
            sink.write(chunk)
            self.count(len(chunk))
            if size is None:
                return


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
    return bool(parts) and name == "/".join(parts) and not {"..", "\\", "\0"} & {*parts, *name}


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


def _continues(answer: HTTPResponse, start: int) -> bool:
    """Whether the answer begins at the requested byte; some servers send the whole file."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")


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
        pause=None if isinstance(error, URLError) else 0.0,
    )


def _describe_cause(cause: object) -> str:
    if isinstance(cause, TimeoutError):
        return f"no answer within {READ_TIMEOUT_SECONDS:g} s"
    text = str(getattr(cause, "strerror", None) or cause).strip() or type(cause).__name__
    return mask_secrets(text.splitlines()[0][:200])
