"""Stores the calibration of a machine in the cache folder, one file for each set of limits and versions."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.hardware.calibration import Calibration
from drivetrain.hardware.facts import Hardware, from_json_as
from drivetrain.system.files import parse_json, write_json
from drivetrain.system.version import VERSION

SWITCH_VARIABLE = "DRIVETRAIN_CALIBRATION"
"""The variable with which trainings neither calibrate nor use a calibration: `off`."""
PROBES_VERSION = 1
"""Version of the probes; with other probes a machine is calibrated again."""


def compute_key(hardware: Hardware) -> str:
    """Hash of everything that a probe can depend on."""
    cpu = hardware.cpu
    parts = [
        VERSION,
        PROBES_VERSION,
        [cpu.model, cpu.architecture, cpu.flags, cpu.capped, cpu.cores, cpu.affinity, cpu.budget, cpu.quota],
        [[gpu.name, gpu.driver, gpu.mig] for gpu in hardware.gpus],
        asdict(hardware.torch) if hardware.torch else None,
        asdict(hardware.libraries),
        hardware.place,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def find_path(hardware: Hardware) -> Path:
    """The file of this machine's calibration."""
    return Path(hardware.storage.cache) / "calibration" / f"{compute_key(hardware)}.json"


def read_calibration(hardware: Hardware) -> tuple[Calibration | None, str | None]:
    """The calibration of this machine, and why an existing file cannot be used."""
    file = find_path(hardware)
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        calibration: Calibration = from_json_as(Calibration, data, str(file))
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except (OSError, ValueError, SpecError, TypeError, AttributeError) as error:
        return None, f"the calibration {file} cannot be read: {' '.join(str(error).split())}"
    if calibration.key != file.stem:
        return None, f"the calibration {file} is of another machine or version"
    return calibration, None


def is_enabled() -> bool:
    """Whether calibrations are used."""
    return os.environ.get(SWITCH_VARIABLE, "on") != "off"


def add_calibration(hardware: Hardware) -> Hardware:
    """Return the hardware with its calibration, if one can be read."""
    return replace(hardware, calibration=read_calibration(hardware)[0] if is_enabled() else None)


def describe_missing(hardware: Hardware, *, elsewhere: bool = False) -> str:
    """What the user should know beside a plan that uses no calibration; empty if there is one.

    Args:
        hardware: the machine of the plan.
        elsewhere: whether that is a container, which keeps its calibration in a volume of its own.
    """
    if not is_enabled():
        return ""
    if hardware.calibration:
        busy = "this machine was too busy or too slow to be calibrated; `drivetrain calibrate --again` takes longer"
        return "" if hardware.calibration.probes else busy
    if elsewhere:
        return "training there uses the calibration of its own, which is not known here"
    wrong = read_calibration(hardware)[1]
    return f"{wrong or 'this machine is not calibrated yet'}; `drivetrain calibrate` does it, or the first training"


def write_calibration(hardware: Hardware, calibration: Calibration) -> None:
    """Write a calibration.

    Raises:
        OSError, StorageError: if the cache cannot be written; it then serves this run only.
    """
    file = find_path(hardware)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, asdict(calibration))
