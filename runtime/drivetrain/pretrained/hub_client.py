"""Asks the Hugging Face hub over the HTTP client of huggingface_hub, with bounded waits, and compares every file with its hash.

The library's own downloads are not used: version 2.4 names a file before its hash is compared, waits for a busy hub without a
limit, and gives up at a server error.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from drivetrain.pretrained import hub_cache
from drivetrain.pretrained.hub_cache import COMMIT, HASH, PART, HubFile
from drivetrain.pretrained.hub_error import HubError, HubKind, explain_refusal
from drivetrain.system import web
from drivetrain.system.download_progress import DownloadProgress
from drivetrain.system.files import parse_json, sync_file, sync_folder
from drivetrain.system.installation import INSTALL_TORCH
from drivetrain.system.secrets import mask_secrets
from drivetrain.system.version import VERSION

if TYPE_CHECKING:
    from httpx2 import Client, Headers, Response

READ_TIMEOUT_SECONDS = 10.0
"""Longest wait for the hub's next byte."""
FIRST_PAUSE_SECONDS = 1.0
"""Pause before the second attempt; each further pause is twice as long."""
MAX_ATTEMPTS = 4
"""Successive attempts without a new byte, except for 429."""
MAX_WAIT_SECONDS = 300.0
"""Longest sum of the pauses that the hub asks for."""
_BUSY_STATUSES = (408, 429, 500, 502, 503, 504)
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")
_TRUE = ("1", "on", "yes", "true")
T = TypeVar("T")


@dataclass(frozen=True)
class HubClient:
    """A repository of a hub, and how to reach it."""

    name: str
    kind: HubKind
    endpoint: str
    token: str
    source: str
    """The variable or file of the token, for messages."""
    http: Client
    say: Callable[[str], None]

    def find_commit(self, revision: str) -> str:
        """Ask which commit a branch or tag is.

        Raises:
            HubError: if the hub does not tell it.
        """
        answer = next(self._read_pages(f"revision/{quote(revision, safe='')}"))
        commit = answer.get("sha") if isinstance(answer, dict) else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise self._answer_error("no commit")
        return commit

    def list_files(self, commit: str) -> list[HubFile]:
        """List all files of a commit.

        Raises:
            HubError: if the hub does not list them.
        """
        listed: list[HubFile] = []
        for rows in self._read_pages(f"tree/{commit}?recursive=true"):
            if not isinstance(rows, list):
                raise self._answer_error("no list of files")
            listed += filter(None, map(read_listed_file, rows))
        return listed

    def download(self, commit: str, file: HubFile, target: Path, progress: DownloadProgress) -> None:
        """Download a file to `target`, under another name until it was compared with its hash.

        Raises:
            HubError: if the hub refuses, the link stays cut, or the content is another one.
            StorageError: if it cannot be written.
        """
        from huggingface_hub import hf_hub_url

        kind = self.kind.folder.removesuffix("s")
        url = hf_hub_url(self.name, file.name, repo_type=kind, revision=commit, endpoint=self.endpoint)
        part = target.with_name(f"{target.name}{PART}")
        with hub_cache.blame_cache(target):
            for _ in range(2):
                with part.open("wb") as sink:
                    self._get(url, lambda answer, sink=sink: _receive(answer, sink, file.size, progress), sink)  # type: ignore[misc]
                    progress.add(file.size - sink.tell())
                if file.is_in(part):
                    sync_file(part)
                    part.replace(target)
                    return sync_folder(target.parent)
                progress.add(-file.size)
                part.unlink()
                self.say(f"hub: {file.name} has another hash than the hub says")
        raise HubError(
            f"{file.name} has another hash than the hub says, in two downloads",
            f"a file with {'SHA-256' if len(file.hash) == 64 else 'the git hash'} {file.hash}",
            "try again later; if it stays so, a proxy or a mirror (HF_ENDPOINT) changes files",
        )

    def _read_pages(self, path: str) -> Iterator[Any]:
        """Yield the JSON at a path of the repository's API, and its next pages."""
        url = f"{self.endpoint}/api/{self.kind.folder}/{quote(self.name)}/{path}"
        while url.startswith(f"{self.endpoint}/"):  # pages on other hosts are not read
            content, following = self._get(url, lambda answer: (answer.read(), answer.links.get("next", {}).get("url")))
            try:
                yield parse_json(content)
            except ValueError:
                raise self._answer_error("something that is no JSON") from None
            url = urljoin(self.endpoint, following) if following else ""

    def _answer_error(self, description: str) -> HubError:
        return HubError(
            f"{mask_secrets(self.endpoint)} answers with {description}",
            "a hub, or a mirror of it",
            "check HF_ENDPOINT, and whether a proxy or a login page answers instead",
        )

    def _get(self, url: str, read: Callable[[Response], T], sink: BinaryIO | None = None) -> T:
        """Send a GET request and read the answer; repeat it while the hub is busy, and continue a cut one.

        Args:
            sink: the file that `read` writes; the next attempt asks for the bytes after its end.

        Raises:
            HubError: if the hub refuses, asks to wait for too long, or cannot be reached.
        """
        import httpx2

        waited, attempt = 0.0, 0
        while True:
            attempt, has_answer = attempt + 1, False
            done = sink.tell() if sink else 0
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            headers |= {"Range": f"bytes={done}-"} if done else {}
            try:
                # On the way to another host the client removes the token.
                with self.http.stream("GET", url, headers=headers) as answer:
                    has_answer = True
                    if answer.is_success:
                        return read(answer)
                status, asked = answer.status_code, _read_retry_after(answer.headers)
                error = explain_refusal(status, answer.headers, self.endpoint, self.source, asked, self.kind)
                is_final = status not in _BUSY_STATUSES
                reason = f"{status}, {'too many requests' if status == 429 else 'an error of the hub'}"
            except httpx2.RequestError as cause:
                status, asked = 0, 0.0
                if sink and sink.tell() > done:
                    attempt = 0
                # Without a connection another attempt is useless.
                is_final = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
                reason = _describe_cause(cause)
                error = _unreachable_error(self.endpoint, "stops early" if has_answer else "cannot be reached", reason)
            pause = max(asked, FIRST_PAUSE_SECONDS * 2.0 ** min(max(0, attempt - 1), 6))
            waited += pause
            if is_final or waited > MAX_WAIT_SECONDS or (attempt >= MAX_ATTEMPTS and status != 429):
                raise error
            self.say(f"hub: {reason}; next attempt in {pause:,.0f} s")
            time.sleep(pause)


def connect(name: str, kind: HubKind, say: Callable[[str], None]) -> HubClient:
    """Prepare requests about a repository to the hub of HF_ENDPOINT.

    Raises:
        HubError: if the user has turned off requests, HF_ENDPOINT or a proxy is no address, or huggingface_hub is not installed.
    """
    if any(os.environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        closed = "HF_HUB_OFFLINE is set, so the hub is not asked"
        raise HubError(closed, "files that were fetched before", "unset HF_HUB_OFFLINE", offline=True)
    try:
        import httpx2
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise HubError(
            "it has to be downloaded, and the package huggingface_hub is not installed here",
            "an environment with huggingface_hub",
            f"`{INSTALL_TORCH}`, or use an image",
        ) from None
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise HubError(
            f"HF_ENDPOINT is {endpoint!r}", "an address such as https://huggingface.co", "correct it, or unset it"
        )
    token, source = hub_cache.find_token()
    is_local = web.is_loopback(url.hostname)
    if token and url.scheme == "http" and not is_local:
        say(f"hub: {endpoint} is not encrypted, so the token of {source} is not sent")
        token, source = "", ""
    headers = {"User-Agent": f"drivetrain/{VERSION}", "Accept-Encoding": "identity"}
    try:
        # A proxy on the way to this machine itself would read what is not encrypted because it stays here.
        http = httpx2.Client(
            headers=headers, timeout=READ_TIMEOUT_SECONDS, trust_env=not is_local, follow_redirects=True
        )
    except (ImportError, ValueError, OSError) as error:
        given = f"proxy or certificates of this machine cannot be used: {mask_secrets(str(error))}"
        possible = "a proxy such as http://HOST:PORT, a file of certificates"
        raise HubError(given, possible, "correct https_proxy, all_proxy and SSL_CERT_FILE") from None
    return HubClient(name, kind, endpoint, token, source, http, say)


def read_listed_file(row: object) -> HubFile | None:
    """Read an entry of the list; None if its values cannot become names in the cache."""
    if not isinstance(row, dict) or row.get("type") != "file":
        return None
    name, size, large = row.get("path"), row.get("size"), row.get("lfs")
    digest = large.get("oid") if isinstance(large, dict) else row.get("oid")
    if not (isinstance(name, str) and isinstance(size, int) and isinstance(digest, str) and HASH.fullmatch(digest)):
        return None
    parts = PurePosixPath(name).parts
    is_inside = name == "/".join(parts) and not {"..", "/"} & set(parts) and "\\" not in name and "\0" not in name
    return HubFile(name, size, digest) if parts and is_inside else None


def _receive(answer: Response, sink: BinaryIO, size: int, progress: DownloadProgress) -> None:
    """Write a body, to the end of the file or in its place if the server sends the whole file again."""
    if answer.status_code != 206:
        progress.add(-sink.tell())
        sink.seek(0)
        sink.truncate()
    for chunk in answer.iter_raw():
        sink.write(chunk)
        progress.add(len(chunk))
        if sink.tell() > size:  # it is another file, and may have no end
            return


def _read_retry_after(headers: Headers) -> float:
    """Read how many seconds the hub asks to wait: Retry-After, or the reset of its limit."""
    text = headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return float(text)
    reset = _RESET.search(headers.get("RateLimit", ""))
    return float(reset[1]) if reset else 0.0


def _unreachable_error(endpoint: str, problem: str, text: str) -> HubError:
    """Explain why the hub gives no answer, or only its beginning."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        action = (
            "if a proxy opens TLS here, name the file of its certificates: SSL_CERT_FILE=FILE (PIP_CERT for images)"
        )
    elif "407" in text:
        action = "write user and password into the proxy's address: https_proxy=http://USER:PASSWORD@HOST:PORT"
    else:
        action = "check the network connection, https_proxy and HF_ENDPOINT"
    possible = "a network, or files that were fetched before"
    return HubError(f"{mask_secrets(endpoint)} {problem}: {text}", possible, action, offline=True)


def _describe_cause(cause: Exception) -> str:
    import httpx2

    if isinstance(cause, httpx2.TimeoutException):
        return f"no answer within {READ_TIMEOUT_SECONDS:g} s"
    text = re.sub(r"^\[Errno \d+\] ", "", str(cause).strip()) or type(cause).__name__
    return mask_secrets(text.splitlines()[0][:200])
