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
    REFUSED = "refused"
    """Everything else that the store said."""


class RemoteError(StorageError):
    """A store did not do what was asked."""

    def __init__(self, kind: Trouble, description: str, possible: str = "", action: str = "") -> None:
        self.trouble = kind
        super().__init__(description, possible, action)


_HINTS = {
    # The client asks the service that tells a machine its role if no variable holds a credential.
    "NoCredentials": re.compile(
        r"Missing(AccessKeyId|SecretAccessKey)|Missing \w*[Kk]ey"
        r"|/latest/(api|meta-data)|/computeMetadata/|/metadata/identity"
    ),
    "NoLocation": re.compile("redirect without LOCATION"),
    "NoBucket": re.compile("The specified bucket does not exist"),
    "NoAnswer": re.compile("HTTP error|after"),
}
"""Words that stand for what the client's text says; the text itself also has the name of the object."""
_AWAY = (
    Trouble.AWAY,
    "{where}: the store does not answer ({said})",
    "a store that this machine reaches",
    "check the network, and {endpoint}; try again later",
)
_ANSWERS = (
    (
        "ExpiredToken|TokenRefreshRequired",
        Trouble.REFUSED,
        "{where}: the token has ended ({said})",
        "credentials that last as long as the run, or a role, which the client renews",
        "export new ones, and give the same command again",
    ),
    (
        "RequestTimeTooSkewed",
        Trouble.REFUSED,
        "{where}: the clock of this machine differs ({said})",
        "a clock that is a few minutes off at most",
        "set it (`timedatectl set-ntp true`)",
    ),
    (
        "PermanentRedirect|AuthorizationHeaderMalformed|NoLocation",
        Trouble.REFUSED,
        "{where}: the bucket is in another region ({said})",
        "the region of the bucket",
        "export AWS_REGION with it, and see that AWS_ENDPOINT_URL means the same",
    ),
    (
        "QuotaExceeded|InsufficientStorage|StorageFull| 507",
        Trouble.REFUSED,
        "{where}: the store has no space ({said})",
        "free space, or a larger quota",
        "remove what is not needed there, or raise the quota; a run goes on meanwhile, and sends the rest",
    ),
    (
        "NoSuchBucket|NoBucket",
        Trouble.REFUSED,
        "{where}: there is no bucket {bucket}{at}",
        "a bucket that exists; drivetrain creates none",
        "create it with your provider's tool, correct the address, or see that {variables} mean its account",
    ),
    (
        "AlreadyExistsError|PreconditionError| 409| 412",
        Trouble.CHANGED,
        "{where}: it exists already, or has changed ({said})",
        "",
        "",
    ),
    (
        "FileNotFoundError| 404",
        Trouble.MISSING,
        "{address} is not there",
        "something that exists",
        "correct the address",
    ),
    (r" (?!501)(408|429|5\d\d)", *_AWAY),  # the service of roles may answer so, too
    (
        "NoCredentials",
        Trouble.NO_CREDENTIALS,
        "{where}: no credentials were found",
        "the variables of the provider ({needed}), or the role of this machine; files in a home folder are not read",
        "export them where the command is called; set here: {variables}",
    ),
    (
        "UnauthenticatedError|PermissionDeniedError|InvalidAccessKeyId|SignatureDoesNotMatch| 401| 403",
        Trouble.REFUSED,
        "{where}: the store refuses it ({said})",
        "credentials that may list, read, write and remove below this address",
        "give them these rights, or export others; set here: {variables}",
    ),
    ("^(?!.* 501).*NoAnswer", *_AWAY),
    (
        "",
        Trouble.REFUSED,
        "{where}: {said}",
        "a request that the store accepts",
        "see what the provider says about it; set here: {variables}",
    ),
)
"""Answers by the words that they hold, the first that fits; `translate` says what is in braces."""
_REASONS = (
    ("NoLocation|without LOCATION", "a redirect without an address"),
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
    hints = (name for name, pattern in _HINTS.items() if pattern.search(text))
    words = " ".join((type(error).__name__, code, status, *hints))
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
    trouble, *parts = next(answer[1:] for answer in _ANSWERS if re.search(answer[0], words))
    return RemoteError(trouble, *(part.format_map(fields) for part in parts))
