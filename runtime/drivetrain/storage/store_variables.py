"""The environment variables of the providers, from which alone a store takes credentials and endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
"""Where the store is, for one that is not the provider's own; not secret."""
NEEDED = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
}
"""Variables that most users set."""
PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_"}
FILES = (
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
)
"""Variables that name a file of this machine with a credential in it."""
RENEWED = tuple(name for name in FILES if name.endswith("_TOKEN_FILE"))
"""Those whose file the platform replaces before its token ends."""
_LOCAL = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_EXECUTION_ENV",
    "AWS_PAGER",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)
"""Read by other programs only."""


def read_known(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Read the variables that a store of this scheme may read and that are set."""
    prefix = PREFIXES.get(scheme)
    if prefix is None:
        return {}
    return {
        name: value
        for name, value in sorted(environ.items())
        if value and name.startswith(prefix) and name not in _LOCAL
    }


def list_files(scheme: str) -> dict[str, str]:
    """List the variables that name a file which the client reads, with its path."""
    known = read_known(scheme, os.environ)
    # With one of these the client needs no file; with the key of a Google account it still reads all.
    direct = {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "GOOGLE_BEARER_TOKEN"}
    files = ("SSL_CERT_FILE",) if direct & known.keys() else ("SSL_CERT_FILE", *FILES)
    known["SSL_CERT_FILE"] = os.environ.get("SSL_CERT_FILE", "")
    return {name: known[name] for name in files if known.get(name)}


def endpoint(scheme: str) -> str:
    """Return the endpoint that is set, as `VARIABLE=address` without a credential; empty if none is."""
    name = next((name for name in ENDPOINTS.get(scheme, ()) if name in os.environ), "")
    match = re.match(r"(https?://)?(?:.*@)?([^?]*)", os.environ.get(name, ""), re.IGNORECASE | re.DOTALL)
    return f"{name}={match[1] or ''}{match[2]}" if name and match else ""
