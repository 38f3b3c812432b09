"""What a store can answer instead of what was asked, in the three parts of every error.

Messages of the client are not repeated: they hold whole addresses, and those of Azure are signed.
"""

from __future__ import annotations

import os
import re
from enum import Enum

from drivetrain.errors import StorageError
from drivetrain.storage import store_variables
from drivetrain.storage.remote_address import RemoteAddress

_MISSING = re.compile(r"Missing(AccessKeyId|SecretAccessKey|Account)|Missing \w*[Kk]ey|Account must be specified")
_ROLE = re.compile(r"/latest/(api|meta-data)|/computeMetadata/|/metadata/identity")
"""Paths of the service that tells a machine its role. The client asks it if no variable holds a credential."""


_TLS = re.compile(
    r"InvalidCertificate|InvalidContentType|UnknownIssuer|CertificateRequired|HandshakeFailure|NotValidForName"
)
"""What the client notes of a connection without trust, or to a port that speaks no TLS."""


class Trouble(Enum):
    """Why a store did not do what was asked."""

    AWAY = "away"
    """No answer, or one that says: later. It passes."""
    NO_BUCKET = "no bucket"
    MISSING = "missing"
    """The bucket is there, the object is not."""
    DENIED = "denied"
    NO_CREDENTIALS = "no credentials"
    FULL = "full"
    CHANGED = "changed"
    """A condition of the request did not hold: it exists already, or has changed since."""
    REFUSED = "refused"
    """Everything else that the store said."""


class RemoteError(StorageError):
    """A store did not do what was asked."""

    def __init__(self, kind: Trouble, description: str, possible: str = "", action: str = "") -> None:
        self.trouble = kind
        super().__init__(description, possible, action)

    @property
    def passing(self) -> bool:
        """Whether the same request may work later."""
        return self.trouble is Trouble.AWAY


_PARTS = {
    Trouble.MISSING: ("{address} is not there", "something that exists", "correct the address"),
    Trouble.NO_BUCKET: (
        "{where}: there is no bucket {bucket}{at}",
        "a bucket that exists; drivetrain creates none",
        "create it with your provider's tool, correct the address, or see that {variables} mean its account",
    ),
    Trouble.DENIED: (
        "{where}: the store refuses it ({said})",
        "credentials that may list, read, write and remove below this address",
        "give them these rights, or export others; set here: {variables}",
    ),
    Trouble.NO_CREDENTIALS: (
        "{where}: no credentials were found",
        "the variables of the provider ({needed}), or the role of this machine; files in a home folder are not read",
        "export them where the command is called; set here: {variables}",
    ),
    Trouble.AWAY: (
        "{where}: the store does not answer ({said})",
        "a store that this machine reaches",
        "check the network, and {endpoint}; try again later",
    ),
    Trouble.CHANGED: ("{where}: it is there already, or has changed ({said})",),
    Trouble.REFUSED: (
        "{where}: {said}",
        "a request that the store accepts",
        "see what the provider says about it; set here: {variables}",
    ),
}
"""The parts of each error; `translate` says what the words in braces are."""


def translate(error: Exception, address: RemoteAddress, task: str) -> RemoteError:
    """What an exception of the client means for the user.

    Args:
        error: of obstore, or the OSError and ValueError that it raises.
        task: the request as a verb: read, write, list, remove.
    """
    text, kind = str(error).partition("\n\nDebug source:")[0], type(error).__name__
    # The store's own word, such as SlowDown.
    code = match[1] if (match := re.search(r"<Code>(\w{1,60})</Code>", text)) else ""
    status = int(match[1]) if (match := re.search(r"status code: (\d{3})", text)) else None
    kind_of_trouble = _trouble(kind, code, status, text)
    said = " ".join(filter(None, (str(status or ""), code))) or _reason(str(error))
    # Not the whole text, which has the name of the object.
    hint = "redirect without LOCATION" if "redirect without LOCATION" in text else ""
    for pattern, known_kind, meaning, possible, action in _KNOWN:
        if pattern.search(f"{code} {hint} {status}"):
            return RemoteError(known_kind, f"{address}: cannot {task}: {meaning} ({said})", possible, action)
    endpoint = store_variables.endpoint(address.scheme)
    fields = {
        "address": address,
        "where": f"{address}: cannot {task}",
        "bucket": address.host,
        "at": f" at {endpoint}" if endpoint else "",
        "endpoint": endpoint or "the address of the provider",
        "needed": ", ".join(store_variables.NEEDED.get(address.scheme, ())) or "none",
        "variables": ", ".join(store_variables.read_known(address.scheme, os.environ)) or "none",  # never their values
        "said": said,
    }
    return RemoteError(kind_of_trouble, *(part.format_map(fields) for part in _PARTS[kind_of_trouble]))


_KNOWN = (
    (
        re.compile("ExpiredToken|TokenRefreshRequired"),
        Trouble.DENIED,
        "the token has ended",
        "credentials that last as long as the run, or a role, which the client renews",
        "export new ones, and give the same command again",
    ),
    (
        re.compile("RequestTimeTooSkewed"),
        Trouble.DENIED,
        "the clock of this machine differs",
        "a clock that is a few minutes off at most",
        "set it (`timedatectl set-ntp true`)",
    ),
    (
        re.compile("PermanentRedirect|AuthorizationHeaderMalformed|redirect without LOCATION"),
        Trouble.REFUSED,
        "the bucket is in another region",
        "the region of the bucket",
        "export AWS_REGION with it, and see that AWS_ENDPOINT_URL means the same",
    ),
    (
        re.compile("QuotaExceeded|InsufficientStorage|StorageFull| 507$"),
        Trouble.FULL,
        "the store has no space",
        "free space, or a larger quota",
        "remove what is not needed there, or raise the quota; a run goes on meanwhile, and sends the rest",
    ),
)
"""Answers by what they hold: trouble, in words, what is possible, what to do."""


def _trouble(kind: str, code: str, status: int | None, text: str) -> Trouble:
    if code in ("NoSuchBucket", "ContainerNotFound") or "The specified bucket does not exist" in text:
        return Trouble.NO_BUCKET
    if kind in ("AlreadyExistsError", "PreconditionError") or status in (409, 412):
        return Trouble.CHANGED
    if kind == "FileNotFoundError" or status == 404:
        return Trouble.MISSING
    if _MISSING.search(text) or (status in (None, 401, 403, 404) and _ROLE.search(text)):
        return Trouble.NO_CREDENTIALS
    if kind in ("UnauthenticatedError", "PermissionDeniedError") or status in (401, 403):
        return Trouble.DENIED
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return Trouble.DENIED
    if status == 501:  # a store without conditional writes
        return Trouble.REFUSED
    if "HTTP error" in text or "after" in text or status in (408, 429) or (status or 0) >= 500:
        return Trouble.AWAY
    return Trouble.REFUSED


def _reason(debug: str) -> str:
    """Why a connection failed, from the kind that the client notes."""
    reasons = {
        "Connect": "no connection",
        "Timeout": "no answer in time",
        "Interrupted": "the connection was cut",
        "Decode": "the answer was cut",
        "Request": "the connection was cut",
    }
    if "without LOCATION" in debug:
        return "a redirect without an address"
    if _TLS.search(debug):
        return "TLS failed: the certificate is not trusted here, or the port speaks no TLS"
    match = re.search(r"kind: (\w+)", debug)
    return reasons.get(match[1], match[1]) if match else "no answer"
