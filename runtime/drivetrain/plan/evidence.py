"""Evidence: measurements for one network on one machine, cached so that each is made only once.

The key covers everything that can change a speed: the network's structure, the batch, the machine, torch and this
package. Whether the numbers are still right is checked in every job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import Value
from drivetrain.system.files import read_json, write_json
from drivetrain.system.version import VERSION


@dataclass(frozen=True)
class Measurement:
    """The result for one decision: the value that won, and how the others did."""

    value: Value
    text: str
    """Such as `bf16 0.66x [0.63-0.70], loss ok`."""
    date: str

    @property
    def vetoed(self) -> bool:
        """Return whether a value was excluded because of its numerical results."""
        return "vetoed: " in self.text


def format_date() -> str:
    """Format the date of a measurement."""
    return datetime.now(UTC).date().isoformat()


def make_key(
    hardware: Hardware, workload: Workload, batch_size: int, structure: Mapping[str, object], settings: object
) -> str:
    """Make a cache key for one network on one machine.

    Args:
        hardware: the chip, its flags, the usable share of the machine, and the installed torch.
        workload: layer kinds and sample size.
        batch_size: samples per step.
        structure: names and shapes of all weights and inputs.
        settings: settings of the job that change the computation of a step.
    """
    return compute_hash(
        [VERSION, _describe_machine(hardware), workload.to_json(), batch_size, dict(structure), settings]
    )


def may_measure(job: Job) -> bool:
    """Return whether a trainer may measure anything before its first step."""
    return job.optimize.get("measure") != "off" or job.optimize.get("micro_batch") == "auto"


def _describe_machine(hardware: Hardware) -> dict[str, object]:
    return {
        "cpu": [hardware.cpu.model, hardware.cpu.flags, hardware.cpu.budget, hardware.cpu.quota],
        "gpus": [[gpu.name, gpu.driver] for gpu in hardware.gpus],
        "torch": asdict(hardware.torch) if hardware.torch else None,
        "libraries": asdict(hardware.libraries),
    }


def compute_hash(content: object) -> str:
    """Compute the hash of JSON data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _folder(hardware: Hardware) -> Path:
    return Path(hardware.storage.cache) / "evidence"


def load(hardware: Hardware, key: str) -> dict[str, Measurement]:
    """Load the measurements under a key; empty if there are none."""
    data = read_json(_folder(hardware) / f"{key}.json")
    try:
        return {decision: Measurement(**row) for decision, row in data.items()} if isinstance(data, dict) else {}
    except TypeError:
        return {}


def store(hardware: Hardware, key: str, measurements: Mapping[str, Measurement], report: Callable[[str], None]) -> None:
    """Store measurements under a key; `report` takes a line if that fails: then they serve this run only."""
    folder = _folder(hardware)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{key}.json", {decision: asdict(row) for decision, row in measurements.items()})
    except (OSError, StorageError) as error:
        report(f"the measurements could not be stored: {error}")
