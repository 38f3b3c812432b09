"""Options of `docker run` derived from compose/base.yaml, which alone defines the hardening of a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runtime.launch.project import COMPOSE

FILE = COMPOSE / "base.yaml"
GPU_FILE = COMPOSE / "gpu.yaml"
"""What GPU images have beside."""
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def flags(variables: Mapping[str, str]) -> list[str]:
    """Hardening and limits of the service `trainer`.

    Args:
        variables: values for the file's variables; the others keep their defaults.
    """
    service = trainer(variables)
    limits = service["deploy"]["resources"]["limits"]
    options = [
        *(("--cap-drop", capability) for capability in service["cap_drop"]),
        *(("--security-opt", option) for option in service["security_opt"]),
        *(("--ulimit", f"{name}={most}") for name, most in service["ulimits"].items()),
        *(("--tmpfs", mount) for mount in service["tmpfs"]),
        ("--cpus", limits["cpus"]),
        ("--memory", limits["memory"]),
        ("--memory-swap", service["memswap_limit"]),
        ("--shm-size", service["shm_size"]),
        ("--pids-limit", str(limits["pids"])),
    ]
    switches = [flag for flag, on in (("--init", service["init"]), ("--read-only", service["read_only"])) if on]
    return [*switches, *(word for option in options for word in option)]


def trainer(variables: Mapping[str, str], file: Path = FILE) -> dict[str, Any]:
    """The service `trainer` of a compose file, with these values for its variables that have defaults."""
    text = file.read_text(encoding="utf-8")
    filled = _VARIABLE.sub(lambda found: variables.get(found[1], found[2]), text)
    found: dict[str, Any] = yaml.safe_load(filled)["services"]["trainer"]
    return found
