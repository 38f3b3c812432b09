"""Options of `docker run` derived from compose/base.yaml, which alone defines the hardening of a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from runtime.launch.project import COMPOSE

FILE = COMPOSE / "base.yaml"
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def flags(variables: Mapping[str, str]) -> list[str]:
    """Hardening and limits of the service `trainer`.

    Args:
        variables: values for the file's variables; the others keep their defaults.
    """
    trainer = _trainer(variables)
    limits = trainer["deploy"]["resources"]["limits"]
    options = [
        *(("--cap-drop", capability) for capability in trainer["cap_drop"]),
        *(("--security-opt", option) for option in trainer["security_opt"]),
        *(("--tmpfs", mount) for mount in trainer["tmpfs"]),
        ("--cpus", limits["cpus"]),
        ("--memory", limits["memory"]),
        ("--memory-swap", trainer["memswap_limit"]),
        ("--shm-size", trainer["shm_size"]),
        ("--pids-limit", str(limits["pids"])),
    ]
    switches = [flag for flag, on in (("--init", trainer["init"]), ("--read-only", trainer["read_only"])) if on]
    return [*switches, *(word for option in options for word in option)]


def _trainer(variables: Mapping[str, str]) -> dict[str, Any]:
    text = FILE.read_text(encoding="utf-8")
    filled = _VARIABLE.sub(lambda found: variables.get(found[1], found[2]), text)
    trainer: dict[str, Any] = yaml.safe_load(filled)["services"]["trainer"]
    return trainer
