"""Environment variables of the providers, the only source of a store's credentials and endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
"""Variables with the endpoint of a store that is not the provider's own; they are not secret."""
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
"""Variables with the path of a local file that contains a credential."""
RENEWED = tuple(name for name in FILES if name.endswith("_TOKEN_FILE"))
"""Variables whose file the platform replaces before its token expires."""
_LOCAL = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_EXECUTION_ENV",
    "AWS_PAGER",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)
"""Variables that obstore does not read."""


def read_known(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with a value that a store of this scheme may read."""
    prefix = PREFIXES.get(scheme)
    if prefix is None:
        return {}
    return {
        name: value
        for name, value in sorted(environ.items())
        if value and name.startswith(prefix) and name not in _LOCAL
    }


def list_files(scheme: str) -> dict[str, str]:
    """List the variables with the path of a file that obstore reads, and the paths."""
    variables = read_known(scheme, os.environ)
    # With one of these variables obstore reads no file; with the key of a Google account it still reads all files.
    direct = {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "GOOGLE_BEARER_TOKEN"}
    files = ("SSL_CERT_FILE",) if direct & variables.keys() else ("SSL_CERT_FILE", *FILES)
    variables["SSL_CERT_FILE"] = os.environ.get("SSL_CERT_FILE", "")
    return {name: variables[name] for name in files if variables.get(name)}


def endpoint(scheme: str) -> str:
    """Return the endpoint from the environment as `VARIABLE=address`, without a credential; empty if none is set."""
    name = next((name for name in ENDPOINTS.get(scheme, ()) if name in os.environ), "")
    match = re.match(r"(https?://)?(?:.*@)?([^?]*)", os.environ.get(name, ""), re.IGNORECASE | re.DOTALL)
    return f"{name}={match[1] or ''}{match[2]}" if name and match else ""
