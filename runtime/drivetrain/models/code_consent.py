"""Records the models with user code that this user trained here; only their code runs without asking.

A run folder can come from anywhere, so nothing inside it can prove that its code is safe. The proof is a file in the
user's state folder. Its name is the SHA-256 of the model's config.json, which contains the digests of all code
files, the function that builds the network, and its arguments. Its content is the SHA-256 of the run's job.yaml, which
names the functions that read the data and compute the loss.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from drivetrain.data.custom import user_code
from drivetrain.errors import CheckpointError
from drivetrain.pretrained.model_config import CONFIG
from drivetrain.system.files import hash_file, is_private
from drivetrain.system.run_files import INPUTS_FILE, JOB_FILE, RunFiles
from drivetrain.system.run_records import read_mapping


def find_records_folder() -> Path | None:
    """Find the folder of the records, `drivetrain/trained` in the user's state folder; None if the user has no home."""
    state, home = os.environ.get("XDG_STATE_HOME"), os.environ.get("HOME")
    if state:
        return Path(state) / "drivetrain" / "trained"
    return Path(home) / ".local" / "state" / "drivetrain" / "trained" if home else None


def record_training(config: Path) -> str | None:
    """Record that this user trained the model with this config.json here; returns the reason if it fails, else None."""
    records = find_records_folder()
    if records is None:
        return "neither XDG_STATE_HOME nor HOME is set"
    try:
        records.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(records):
            return f"{records} is writable by other users"
        record = records / hash_file(config)
        record.touch(mode=0o600)
        record.write_text(_hash_spec(config.parent), encoding="utf-8")
    except OSError as error:
        return f"{records}: {error.strerror or error}"
    return None


def has_consent(config: Path) -> bool:
    """Return whether this user trained the model with this config.json here."""
    return _read_record(config) is not None


def _read_record(config: Path) -> str | None:
    """Read the record of the model with this config.json; None if there is none."""
    records = find_records_folder()
    try:
        return (records / hash_file(config)).read_text(encoding="utf-8") if records and is_private(records) else None
    except (OSError, ValueError):
        return None


def load_code(model: Path, digests: Mapping[str, str], *, consent: bool) -> user_code.Code:
    """Load a copy of the code of a `model/` folder if this user trained the model here or consents to run it.

    Args:
        model: model folder.
        digests: SHA-256 by file name, as in config.json; no other file is loaded.
        consent: whether the user agreed to run the code of models of any origin.

    Raises:
        CheckpointError: if the code may not be run.
    """
    _check_consent(model, digests, consent=consent)
    return user_code.open_stored(model / "code", dict(digests))


def _check_consent(model: Path, digests: Mapping[str, str], *, consent: bool) -> None:
    if not consent and not (_is_in_its_run(model, digests) and has_consent(model / CONFIG)):
        raise _refusal_error(model, digests)


def _refusal_error(model: Path, digests: Mapping[str, str]) -> CheckpointError:
    return CheckpointError(
        f"{model} contains code that runs when the model is used: {', '.join(digests)} in {model / 'code'}",
        "a model that you trained here, in the folder of its run, or a model whose code you have read and trust",
        "read these files, then allow them with --run-code",
    )


def read_allowed_digests(model: Path, *, consent: bool) -> dict[str, str]:
    """Read the SHA-256 of a model's code by file name if the run's job.yaml may call this code.

    Raises:
        CheckpointError: if the code may not be run.
    """
    digests = dict(read_mapping(RunFiles(model).read_object(CONFIG), "code"))
    _check_consent(model, digests, consent=consent)
    # A changed job.yaml may call functions or pass arguments that differ from the training.
    if not consent:
        trained_spec = _read_record(model / CONFIG)
        if not trained_spec or trained_spec != _hash_spec(model):
            raise _refusal_error(model, digests)
    return digests


def _hash_spec(model: Path) -> str:
    spec = model.resolve().parent / JOB_FILE
    return hash_file(spec) if spec.is_file() else ""


def _is_in_its_run(model: Path, digests: Mapping[str, str]) -> bool:
    record = read_mapping(RunFiles(model.resolve().parent).read_object(INPUTS_FILE), "code")
    return len(record) > 0 and record.items() <= digests.items() and model.resolve().name == "model"
