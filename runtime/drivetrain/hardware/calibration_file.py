"""Keeps the calibration of a machine in the cache folder, one file for each set of limits and versions."""

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

SWITCH = "DRIVETRAIN_CALIBRATION"
"""The variable with which trainings neither calibrate nor use a calibration: `off`."""
PROBES_VERSION = 1
"""Version of the probes; with other probes a machine is calibrated again."""


def key(hardware: Hardware) -> str:
    """What a calibration holds for, as a file name: everything that a probe can depend on."""
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


def path(hardware: Hardware) -> Path:
    """Where the calibration of this machine is kept."""
    return Path(hardware.storage.cache) / "calibration" / f"{key(hardware)}.json"


def load(hardware: Hardware) -> tuple[Calibration | None, str | None]:
    """The calibration that is kept for this machine, and why a file that is there cannot be used."""
    file = path(hardware)
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


def is_on() -> bool:
    """Whether calibrations are used at all."""
    return os.environ.get(SWITCH, "on") != "off"


def attach(hardware: Hardware) -> Hardware:
    """The machine with its calibration, if one is kept and can be read."""
    return replace(hardware, calibration=load(hardware)[0] if is_on() else None)


def note(hardware: Hardware, *, elsewhere: bool = False) -> str:
    """What the user should know beside a plan that uses no calibration; empty if there is one.

    Args:
        hardware: the machine of the plan.
        elsewhere: whether that is a container, which keeps its calibration in a volume of its own.
    """
    if not is_on():
        return ""
    if hardware.calibration:
        busy = "this machine was too busy or too slow to be calibrated; `drivetrain calibrate --again` takes longer"
        return "" if hardware.calibration.probes else busy
    if elsewhere:
        return "training there uses the calibration of its own, which is not known here"
    wrong = load(hardware)[1]
    return f"{wrong or 'this machine is not calibrated yet'}; `drivetrain calibrate` does it, or the first training"


def store(hardware: Hardware, calibration: Calibration) -> None:
    """Keep a calibration.

    Raises:
        OSError, StorageError: if the cache cannot be written; it then serves this run only.
    """
    file = path(hardware)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, asdict(calibration))
