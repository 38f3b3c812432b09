"""Consent: which models with code of their own were trained by this user, kept outside of every run folder.

A run folder can come from anywhere, so nothing inside it can prove that its code may be run. What proves it is a file
in the user's own state folder, named by the SHA-256 of the model's configuration, which holds the digests of all code
files, what is called, and with which arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from runtime.data.custom import user_code
from runtime.errors import CheckpointError
from runtime.system.files import is_private, read_json, sha256

CONFIG = "config.json"
"""In a model folder: its configuration, by which consent is kept."""


def folder(environ: Mapping[str, str]) -> Path | None:
    """Where consent is kept: `drivetrain/trained` in the user's state folder; None for a user without a home."""
    if found := environ.get("XDG_STATE_HOME"):
        return Path(found) / "drivetrain" / "trained"
    if found := environ.get("HOME"):
        return Path(found) / ".local" / "state" / "drivetrain" / "trained"
    return None


def keep(config: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Remember that the model with this configuration was trained here; returns why that could not be done.

    Args:
        config: config.json of the model.
        environ: the process environment.
    """
    place = folder(environ)
    if place is None:
        return "neither XDG_STATE_HOME nor HOME is set"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(place):
            return f"{place} can be written by other users"
        (place / sha256(config)).touch(mode=0o600)
    except OSError as error:
        return f"{place}: {error.strerror or error}"
    return None


def given(config: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the model with this configuration was trained here, by this user."""
    place = folder(environ)
    try:
        return place is not None and is_private(place) and (place / sha256(config)).is_file()
    except OSError:
        return False


def stored(model: Path, digests: Mapping[str, str], *, consent: bool = False) -> user_code.Code:
    """The code in a `model/` folder: of a run that this user trained here, or with the user's consent.

    Args:
        model: the folder.
        digests: SHA-256 by name, as config.json has them; anything else is not loaded.
        consent: whether the user has agreed to run the code of a model that lies anywhere.

    Raises:
        CheckpointError: if the code may not be run.
    """
    if not consent and not (_in_its_run(model, digests) and given(model / CONFIG)):
        raise CheckpointError(
            f"{model} runs code of its own when it is used: {', '.join(digests)} in {model / 'code'}",
            "a model in the folder of its run that you trained here, or one whose code you have read and trust",
            "read these files, then agree with --run-code",
        )
    return user_code.at(model / "code", dict(digests))


def agreed(model: Path, *, consent: bool = False) -> dict[str, str]:
    """SHA-256 by name of the code that a model was trained with, if it may be run.

    Raises:
        CheckpointError: if it may not.
    """
    config = read_json(model / CONFIG)
    digests = config.get("code") if isinstance(config, dict) else None
    digests = digests if isinstance(digests, dict) else {}
    stored(model, digests, consent=consent)
    return digests


def _in_its_run(model: Path, digests: Mapping[str, str]) -> bool:
    record = read_json(model.resolve().parent / user_code.RECORD)
    known = isinstance(record, dict) and len(record) > 0 and record.items() <= digests.items()
    return known and model.resolve().name == "model"
