"""Explains what a store answers instead of doing what was asked, in the three parts of every error.

Messages of the client are not repeated: they hold whole addresses.
"""

from __future__ import annotations

import os
import re
from enum import Enum

from drivetrain.errors import StorageError
from drivetrain.storage import store_variables
from drivetrain.storage.remote_address import RemoteAddress


class Trouble(Enum):
    """Why a store did not do what was asked, as far as the caller acts on it."""

    AWAY = "away"
    """No answer, or one that says: later. It passes."""
    MISSING = "missing"
    """The bucket is there, the object is not."""
    NO_CREDENTIALS = "no credentials"
    CHANGED = "changed"
    """A condition of the request did not hold: it exists already, or has changed since."""
    NO_BUCKET = "no bucket"
    REFUSED = "refused"
    """Everything else that the store said."""


class RemoteError(StorageError):
    """A store did not do what was asked."""

    def __init__(self, kind: Trouble, description: str, possible: str = "", action: str = "") -> None:
        self.trouble = kind
        super().__init__(description, possible, action)


_ANSWERS = {
    Trouble.AWAY: (
        "{where}: the store does not answer ({said})",
        "a store that this machine reaches",
        "check the network, and {endpoint}; try again later",
    ),
    Trouble.MISSING: ("{address} is not there", "something that exists", "correct the address"),
    Trouble.NO_CREDENTIALS: (
        "{where}: no credentials were found",
        "the variables of the provider ({needed}), or the role of this machine; files in a home folder are not read",
        "export them where the command is called; set here: {variables}",
    ),
    Trouble.CHANGED: ("{where}: it exists already, or has changed ({said})", "", ""),
    Trouble.NO_BUCKET: (
        "{where}: there is no bucket {bucket}{at}",
        "a bucket that exists; drivetrain creates none",
        "create it with your provider's tool, correct the address, or see that {variables} mean its account",
    ),
    Trouble.REFUSED: (
        "{where}: the store refuses it ({said})",
        "credentials that last and may list, read, write and remove below this address, its region, and free space",
        "look the reason up at your provider, and give them these rights, or export others; set here: {variables}",
    ),
}
"""What is said about each trouble; `translate` says what is in braces."""
_NO_CREDENTIALS = re.compile(
    # The client asks the service that tells a machine its role if no variable holds a credential.
    r"Missing(AccessKeyId|SecretAccessKey)|Missing \w*[Kk]ey|/latest/(api|meta-data)|/computeMetadata/|/metadata/identity"
)
_REASONS = (
    ("without LOCATION", "a redirect without an address, as for a bucket in another region"),
    (
        "InvalidCertificate|InvalidContentType|UnknownIssuer|CertificateRequired|HandshakeFailure|NotValidForName",
        "TLS failed: the certificate is not trusted here, or the port speaks no TLS",
    ),
    ("kind: Connect", "no connection"),
    ("kind: Timeout", "no answer in time"),
    ("kind: (Interrupted|Request)", "the connection was cut"),
    ("kind: Decode", "the answer was cut"),
    ("", "no answer"),
)
"""Why a connection failed, by what the client notes."""


def translate(error: Exception, address: RemoteAddress, task: str) -> RemoteError:
    """Explain an exception of the client.

    Args:
        error: of obstore, or the OSError and ValueError that it raises.
        task: the request as a verb: read, write, list, remove.
    """
    text = str(error).partition("\n\nDebug source:")[0]
    # The store's own word, such as SlowDown.
    code = match[1] if (match := re.search(r"<Code>(\w{1,60})</Code>", text)) else ""
    status = match[1] if (match := re.search(r"status code: (\d{3})", text)) else ""
    endpoint = store_variables.endpoint(address.scheme)
    fields = {
        "address": address,
        "where": f"{address}: cannot {task}",
        "bucket": address.host,
        "at": f" at {endpoint}" if endpoint else "",
        "endpoint": endpoint or "the address of the provider",
        "needed": ", ".join(store_variables.NEEDED.get(address.scheme, ())) or "none",
        "variables": ", ".join(store_variables.read_known(address.scheme, os.environ)) or "none",  # never their values
        "said": f"{status} {code}".strip()
        or next(reason for pattern, reason in _REASONS if re.search(pattern, str(error))),
    }
    meaning = _classify(type(error).__name__, text, code, status)
    return RemoteError(meaning, *(part.format_map(fields) for part in _ANSWERS[meaning]))


def _classify(name: str, text: str, code: str, status: str) -> Trouble:
    """Return the trouble that an answer means; the text is searched for little, as it has the name of the object, too."""
    if code == "NoSuchBucket" or "The specified bucket does not exist" in text:
        return Trouble.NO_BUCKET
    if name in ("AlreadyExistsError", "PreconditionError") or status in ("409", "412"):
        return Trouble.CHANGED
    if name == "FileNotFoundError" or status == "404":
        return Trouble.MISSING
    if status in ("408", "429") or (status.startswith("5") and status not in ("501", "507")):
        return Trouble.AWAY  # the service of roles may answer so, too
    if _NO_CREDENTIALS.search(text):
        return Trouble.NO_CREDENTIALS
    has_no_answer = not status + code and "without LOCATION" not in text and re.search("HTTP error|after", text)
    return Trouble.AWAY if has_no_answer else Trouble.REFUSED
