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
CERTIFICATES_FILE = "ca"
"""The file with CA certificates. Every other file is named after the environment variable that it sets."""
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that Python itself, requests and curl read."""
FILE_SUFFIX = ".file"
"""Ends the name of a file whose variable holds its path, not its content."""
MAX_WORD_LENGTH = 5
"""Values of so few characters, such as `1`, are words and no secrets."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def load_secrets(environ: MutableMapping[str, str] = os.environ, folder: Path = FOLDER) -> None:
    """Load every secret into the environment; variables that are set stay.

    Only in an image of ours: on other systems the folder belongs to the system.
    """
    if not environ.get("DRIVETRAIN_IMAGE") or not folder.is_dir():
        return
    # compose/base.yaml empties the proxies, and an empty https_proxy would hide an HTTPS_PROXY.
    for name in [name for name, value in environ.items() if name.lower().endswith("_proxy") and not value]:
        del environ[name]
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(FILE_SUFFIX)
        if not _NAME.fullmatch(name) or not path.is_file() or not path.stat().st_size:
            continue  # compose mounts an empty device for a secret that was not given
        if path.name == CERTIFICATES_FILE:
            for variable in CERTIFICATE_VARIABLES:
                environ.setdefault(variable, str(path))
            continue
        try:
            value = os.fsdecode(path.read_bytes()).removesuffix("\n") if name == path.name else str(path)
        except OSError as error:
            say_aside(f"environment: the secret {name} cannot be read: {error.strerror}")
        else:
            if environ.setdefault(name, value) != value:
                say_aside(f"environment: {name} is set by the image; the value that was handed over is not used")


def mask_secrets(text: str, environ: Mapping[str, str] = os.environ, folder: Path = FOLDER) -> str:
    """Replace the values of secrets in a text, such as a message of a library, by ***."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    values = {
        environ[name]
        for name in (*names, "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY")
        if environ.get(name)
    }
    for name in names:
        if name.endswith(FILE_SUFFIX):
            with contextlib.suppress(OSError):
                values.add(os.fsdecode((folder / name).read_bytes()).strip())
    for value in sorted(values, key=len, reverse=True):
        if len(value) > MAX_WORD_LENGTH:
            text = text.replace(value, "***")
    return text
