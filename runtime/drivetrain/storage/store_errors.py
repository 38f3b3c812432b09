"""Turns a failed request to a store into an error with the three parts of every error.

Messages of the library obstore are not repeated, because they contain whole addresses, perhaps with credentials.
"""

from __future__ import annotations

import os
import re
from enum import Enum

from drivetrain.errors import StorageError
from drivetrain.storage import store_variables
from drivetrain.storage.remote_address import RemoteAddress


class Trouble(Enum):
    """Kinds of failures that callers distinguish."""

    AWAY = "away"
    """The store does not answer, or asks to try again later; the failure passes."""
    MISSING = "missing"
    """The bucket exists, but the object does not."""
    NO_CREDENTIALS = "no credentials"
    CHANGED = "changed"
    """A condition of the request was not met: the object already exists or has changed."""
    NO_BUCKET = "no bucket"
    REFUSED = "refused"
    """All other failures."""


class RemoteError(StorageError):
    """A request to a store failed."""

    def __init__(self, kind: Trouble, description: str, possible: str = "", action: str = "", status: str = "") -> None:
        self.trouble, self.status = kind, status
        """Kind of the failure, and HTTP status of the answer; empty without an answer."""
        super().__init__(description, possible, action)


_ANSWERS = {
    Trouble.AWAY: (
        "{where}: the store does not answer ({said})",
        "a store that this machine reaches",
        "check the network, and {endpoint}; try again later",
    ),
    Trouble.MISSING: ("{address} does not exist", "an existing file or folder", "correct the address"),
    Trouble.NO_CREDENTIALS: (
        "{where}: no credentials were found",
        "the variables of the provider ({needed}), or the role of this machine; files in a home folder are not read",
        "export them where the command is called; set here: {variables}",
    ),
    Trouble.CHANGED: ("{where}: it already exists, or has changed ({said})", "", ""),
    Trouble.NO_BUCKET: (
        "{where}: there is no bucket {bucket}{at}",
        "a bucket that exists; drivetrain does not create buckets",
        "create it with your provider's tool, correct the address, or check that {variables} belong to its account",
    ),
    Trouble.REFUSED: (
        "{where}: the store refuses the request ({said})",
        "valid credentials with the rights to list, read, write and remove below this address, its region, and free space",
        "look the reason up at your provider, and grant these rights, or export other credentials; set here: {variables}",
    ),
}
"""The three parts of the error for each kind of failure; `translate` fills the braces."""
_NO_CREDENTIALS = re.compile(
    # Without a credential in the variables, obstore asks the service of the machine's role.
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
"""Reasons for a failed connection by patterns of obstore's messages; the first match counts."""


def translate(error: Exception, address: RemoteAddress, task: str) -> RemoteError:
    """Turn an exception of obstore into a RemoteError.

    Args:
        error: exception of obstore, or an OSError or ValueError that it raises.
        address: address of the object or folder.
        task: verb of the request: read, write, list, remove.
    """
    text = str(error).partition("\n\nDebug source:")[0]
    # obstore passes the answer on only in its text: the store's own code, such as SlowDown, and the HTTP status.
    code_match = re.search(r"<Code>(\w{1,60})</Code>", text)
    status_match = re.search(r"status code: (\d{3})", text)
    code, status = code_match[1] if code_match else "", status_match[1] if status_match else ""
    reason = next(reason for pattern, reason in _REASONS if re.search(pattern, str(error)))
    endpoint = store_variables.endpoint(address.scheme)
    fields = {
        "address": address,
        "where": f"{address}: cannot {task}",
        "bucket": address.host,
        "at": f" at {endpoint}" if endpoint else "",
        "endpoint": endpoint or "the address of the provider",
        "needed": ", ".join(store_variables.NEEDED.get(address.scheme, ())) or "none",
        "variables": ", ".join(store_variables.read_known(address.scheme, os.environ)) or "none",  # never their values
        "said": f"{status} {code}".strip() or reason,
    }
    kind = _classify(type(error).__name__, text, code, status)
    description, possible, action = (template.format_map(fields) for template in _ANSWERS[kind])
    return RemoteError(kind, description, possible, action, status)


def _classify(name: str, text: str, code: str, status: str) -> Trouble:
    """Return the kind of a failure; the text, which contains the object's name, is searched for few patterns only."""
    if code == "NoSuchBucket" or "The specified bucket does not exist" in text:
        return Trouble.NO_BUCKET
    if name in ("AlreadyExistsError", "PreconditionError") or status in ("409", "412"):
        return Trouble.CHANGED
    if name == "FileNotFoundError" or status == "404":
        return Trouble.MISSING
    if status in ("408", "429") or (status.startswith("5") and status not in ("501", "507")):
        return Trouble.AWAY  # this can also be an answer of the service of the machine's role
    if _NO_CREDENTIALS.search(text):
        return Trouble.NO_CREDENTIALS
    has_no_answer = not status + code and "without LOCATION" not in text and re.search("HTTP error|after", text)
    return Trouble.AWAY if has_no_answer else Trouble.REFUSED
