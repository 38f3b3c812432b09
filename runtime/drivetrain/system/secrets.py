"""Secrets of a container: files that its starter mounts, taken into the environment of this process and its children.

A variable of the container itself could be read by everybody who may ask the engine about it (`docker inspect`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from drivetrain.system.console import say_aside

FOLDER = Path("/run/secrets")
"""Where compose mounts secrets too."""
AUTHORITY = "ca"
"""A file of certificates, those that the build of the image is given; the others are called like their variable."""
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""What Python itself, requests and curl read."""
CONTENT = ".file"
"""Ends the name of a file whose variable names it, and does not hold what is in it."""
MIN_SECRET_LENGTH = 5
"""Values of so few characters, such as `1`, are words and no secrets."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def take(environ: MutableMapping[str, str] = os.environ, folder: Path = FOLDER) -> None:
    """Take every secret into the environment; what is set already stays.

    Only in an image of ours: on other systems the folder belongs to the system.
    """
    if not environ.get("DRIVETRAIN_IMAGE") or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(CONTENT)
        if not _NAME.fullmatch(name) or not path.is_file() or not path.stat().st_size:
            continue  # compose mounts an empty device for a secret that was not given
        if path.name == AUTHORITY:
            for name in CERTIFICATES:
                environ.setdefault(name, str(path))
            continue
        try:
            value = os.fsdecode(path.read_bytes()).removesuffix("\n") if name == path.name else str(path)
        except OSError as error:
            say_aside(f"environment: the secret {name} cannot be read: {error.strerror}")
        else:
            if environ.setdefault(name, value) != value:
                say_aside(f"environment: {name} is set by the image; the value that was handed over is not used")


def mask(text: str, environ: Mapping[str, str] = os.environ, folder: Path = FOLDER) -> str:
    """A text without the values of the secrets, for messages of libraries."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    values = {environ[name] for name in (*names, "HF_TOKEN") if environ.get(name)}
    for name in names:
        if name.endswith(CONTENT):
            with contextlib.suppress(OSError):
                values.add(os.fsdecode((folder / name).read_bytes()).strip())
    for value in sorted(values, key=len, reverse=True):
        if len(value) > MIN_SECRET_LENGTH:
            text = text.replace(value, "***")
    return text
