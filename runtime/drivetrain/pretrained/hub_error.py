"""Errors about a network or a dataset on the Hugging Face hub; the caller adds the key of the job and its place."""

from __future__ import annotations

import email.utils
import re
import time
from dataclasses import dataclass
from email.message import Message

_BUSY_STATUSES = (408, 429, 500, 502, 503, 504)
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")
_NEW_TOKEN = (
    "export HF_TOKEN=... with a token that may read it ({endpoint}/settings/tokens), "
    "and write environment: [HF_TOKEN] into the job"
)


@dataclass(frozen=True)
class HubKind:
    """A kind of repositories of the hub, on which addresses and messages depend."""

    noun: str
    folder: str
    """Part of the API's addresses, and of folder names in the cache."""
    address: str
    """Part before the name in addresses of files."""
    example: str
    revision: str
    """For messages: where a job names the revision."""
    readme: str
    """The file that says which files are the data; empty if none is read."""


NETWORK = HubKind("network", "models", "", "google-bert/bert-base-cased", "model.revision", "")
DATASET = HubKind("dataset", "datasets", "datasets/", "stanfordnlp/imdb", "the revision after the @", "README.md")


class HubError(Exception):
    """A repository of the hub that cannot be used.

    Args:
        description: what is wrong, to be written after the name of the repository.
        offline: whether the hub could not be reached at all.
        pause: seconds that the hub asks to wait before another attempt; None if that is useless.
    """

    def __init__(
        self, description: str, possible: str, action: str, *, offline: bool = False, pause: float | None = None
    ) -> None:
        super().__init__(description)
        self.given, self.possible, self.action, self.offline, self.pause = description, possible, action, offline, pause


def explain_refusal(status: int, headers: Message, endpoint: str, source: str, kind: HubKind) -> HubError:
    """The error for an answer of the hub.

    Args:
        source: variable or file of the token that was sent; empty if none was sent.
    """
    code, text = headers.get("X-Error-Code") or "", headers.get("X-Error-Message") or ""
    new_token = _NEW_TOKEN.format(endpoint=endpoint)
    pause = _read_retry_after(headers) if status in _BUSY_STATUSES else None
    if pause is not None or status >= 500:
        cause = "an error of its own" if status != 429 else f"too many requests, and asks to wait {pause:,.0f} s"
        action = "try again later" if source or status != 429 else f"try again later, or {new_token}"
        return HubError(f"the hub answers {status}, {cause}", "a hub that is not busy", action, pause=pause)
    if status == 401 and source and (code == "InvalidToken" or "nvalid" in text):
        return HubError(f"the hub does not accept the token of {source}", "a valid token, or none", new_token)
    if code == "GatedRepo" or (status == 403 and not code):
        return HubError(
            f"the hub answers {status}: this {kind.noun} is gated"
            + (f", and the token of {source} has no access" if source else ""),
            "an account that was given access",
            f"ask for access on its page at {endpoint}" + ("" if source else f", then {new_token}"),
        )
    if code == "RevisionNotFound":
        return HubError(
            "the hub has no such revision of it", "a branch, a tag or a commit of it", f"correct {kind.revision}"
        )
    if status in (401, 403, 404):
        who = f"the token of {source} sees" if source else "everybody sees"
        return HubError(
            f"the hub has no {kind.noun} of this name that {who} ({status})",
            f"a name such as {kind.example}, as its page shows it",
            f"check the spelling; if it is private, {new_token}"
            if not source
            else "check the spelling, and whose token it is",
        )
    possible = "a file as long as its entry in the list" if status == 416 else "a file of it"
    return HubError(f"the hub answers {status}", possible, "check HF_ENDPOINT and the name")


def _read_retry_after(headers: Message) -> float:
    """Seconds that the hub asks to wait: Retry-After as a number or a date, or the reset of its limit."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        reset = _RESET.search(headers.get("RateLimit") or "")
        return float(reset[1]) if reset else 0.0
