"""Errors about a network or a dataset on the Hugging Face hub; the caller adds the key of the job and its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class HubKind:
    """A kind of repositories of the hub; addresses and messages depend on it."""

    noun: str
    folder: str
    """Part of the API's addresses, and of folder names in the cache."""
    example: str
    revision: str
    """For messages: where a job names the revision."""
    readme: str
    """The file that says which files are the data; empty if none is read."""


NETWORK = HubKind("network", "models", "google-bert/bert-base-cased", "model.revision", "")
DATASET = HubKind("dataset", "datasets", "stanfordnlp/imdb", "the revision after the @", "README.md")


class HubError(Exception):
    """A repository of the hub that cannot be used.

    Args:
        description: what is wrong, to be written after the name of the repository.
        offline: whether the hub could not be reached at all.
    """

    def __init__(self, description: str, possible: str, action: str, *, offline: bool = False) -> None:
        super().__init__(description)
        self.given, self.possible, self.action, self.offline = description, possible, action, offline


_NEW_TOKEN = (
    "export HF_TOKEN=... with a token that may read it ({endpoint}/settings/tokens), "
    "and write environment: [HF_TOKEN] into the job"
)


def explain_refusal(
    status: int, headers: Mapping[str, str], endpoint: str, source: str, pause: float, kind: HubKind
) -> HubError:
    """Return the error for an answer of the hub.

    Args:
        source: variable or file of the token that was sent; empty if none was sent.
        pause: seconds that the hub asks to wait.
    """
    code, text = headers.get("X-Error-Code") or "", headers.get("X-Error-Message") or ""
    new_token = _NEW_TOKEN.format(endpoint=endpoint)
    later = "try again later" if source else f"try again later, or {new_token}"
    if status == 429:
        given = f"the hub answers 429, too many requests, and asks to wait {pause:,.0f} s"
        return HubError(given, "fewer requests, or more with a token", later)
    if status >= 500:
        return HubError(f"the hub answers {status}, an error of its own", "a hub that works", "try again later")
    if status == 401 and source and (code == "InvalidToken" or "nvalid" in text):
        return HubError(f"the hub does not accept the token of {source}", "a valid token, or none", new_token)
    if code == "GatedRepo" or (status == 403 and not code):
        given = f"the hub answers {status}: this {kind.noun} is gated"
        given += f", and the token of {source} has no access" if source else ""
        action = f"ask for access on its page at {endpoint}" + ("" if source else f", then {new_token}")
        return HubError(given, "an account that was given access", action)
    if code == "RevisionNotFound":
        possible = "a branch, a tag or a commit of it"
        return HubError("the hub has no such revision of it", possible, f"correct {kind.revision}")
    if status in (401, 403, 404):
        who = f"the token of {source} sees" if source else "everybody sees"
        given = f"the hub has no {kind.noun} of this name that {who} ({status})"
        check = "check the spelling" + (", and whose token it is" if source else f"; if it is private, {new_token}")
        return HubError(given, f"a name such as {kind.example}, as its page shows it", check)
    return HubError(f"the hub answers {status}", "a file of it", "check HF_ENDPOINT and the name")
