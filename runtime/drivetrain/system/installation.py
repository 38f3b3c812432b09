"""Whether this program runs from a checkout or was installed, and the commands that messages name in either case."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from shutil import which

_ROOT = Path(__file__).resolve().parents[3]
"""The checkout, or a folder above the installed packages."""
CHECKOUT = _ROOT if all((_ROOT / part).is_file() for part in ("scripts/image", "compose/base.yaml")) else None
"""The checkout that this program runs from; None if it was installed, and in our images."""

# In a container nobody knows what is on its host, and most of our containers are started in a checkout.
_HAS_MAKE = CHECKOUT is not None or "DRIVETRAIN_IMAGE" in os.environ
INSTALL_TORCH = "make setup" if _HAS_MAKE else "pip install 'drivetrain[train,text,tables]'"
"""Installs torch and all that training needs into the local environment."""
INSTALL_HOST = "make setup" if _HAS_MAKE else "pip install 'drivetrain[host]'"
"""Installs what starts containers."""
INSTALL_SWEEP = "make setup" if _HAS_MAKE else "pip install 'drivetrain[sweep]'"
"""Installs what chooses the values of a sweep."""
INSTALL_STORAGE = "make setup" if _HAS_MAKE else "pip install 'drivetrain[storage]'"
"""Installs what reads and writes object stores."""
INSTALL_EXPORT = "make setup" if _HAS_MAKE else "pip install 'drivetrain[export]'"
"""Installs what exports to ONNX."""
INSTALL_ENGINE = "make engine" if _HAS_MAKE else "install Docker Engine or Docker Desktop (docs.docker.com/get-docker)"
"""Installs a Docker engine."""
TRAIN_ON_CPU = "make train-cpu" if _HAS_MAKE else "drivetrain launch JOB"
"""Trains on the CPU in a container."""
TRAIN_ON_GPU = "make train-gpu" if _HAS_MAKE else "drivetrain launch JOB --device gpu"
"""Trains on the GPU in a container."""


def format_train_command(job: Path) -> str:
    """Format the command that trains a job on the CPU: in a container, unless only torch is installed."""
    path = shlex.quote(str(job))
    # make would keep the quotes as part of the path.
    if Path.cwd() == CHECKOUT and path == str(job):
        return f"make train-cpu JOB={path}"
    has_docker = which("docker") is not None
    return f"drivetrain {'train' if find_spec('torch') and not has_docker else 'launch'} {path}"


def format_stop_command(container: str) -> str:
    """Format the command that stops a container after it has saved a checkpoint."""
    return "make stop" if _HAS_MAKE else f"docker stop -t 60 {container}"
