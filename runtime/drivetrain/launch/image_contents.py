"""Hashes of the checkout's files that go into an image, to detect an image that was built from other code.

A variant is cpu, ampere and so on, as in docker/requirements-VARIANT.txt. The image has the hashes as a file. Its label
LABEL holds the digest of all hashes, PACKAGES_LABEL the digest of PACKAGES only.
`python -m drivetrain.launch.image_contents VARIANT` prints both digests, `... VARIANT FOLDER` prints the hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from drivetrain.errors import DeviceError
from drivetrain.launch.project import PROJECT
from drivetrain.system.files import parse_json

LABEL = "drivetrain.contents"
PACKAGES_LABEL = "drivetrain.packages"
RECORD = Path("/opt/drivetrain/contents.json")
"""The hashes, a file that the build of the image writes."""
CHECKOUT = Path("/workspace")
"""Where compose mounts the checkout."""
PACKAGES = (
    "docker/Dockerfile",
    "docker/unused",
    "docker/requirements-{}.txt",
    "docker/requirements-{}-arm64.txt",
    "docker/openmp-{}.txt",
    *(f"docker/extras-{name}{architecture}.txt" for name in ("mlflow", "wandb") for architecture in ("", "-arm64")),
)
"""Files that decide the layers below the project's code, for all architectures."""
CODE = ("docker/sbom.py", "runtime/drivetrain", "docker/own-runs", "LICENSE")
TRAINING_LIBRARIES = ("torch", "numpy", "safetensors", "PIL", "threadpoolctl")
"""Some of these libraries are missing while `make setup` is at work, or after it was interrupted."""
MAX_LISTED_FILES = 3
"""Number of changed files that an error message names."""


def torch_is_missing() -> bool:
    """Return whether torch, or a library that `make setup` installs with it, exists in the image only."""
    return not all(map(find_spec, TRAINING_LIBRARIES)) and "DRIVETRAIN_IMAGE" not in os.environ


def hash_files(variant: str, root: Path = PROJECT, patterns: Sequence[str] = (*PACKAGES, *CODE)) -> dict[str, str]:
    """Return the SHA-256 of every file of a checkout that goes into an image, by its path relative to `root`."""
    return {
        os.path.relpath(path, root): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in patterns
        for path in _list_files(root / pattern.format(variant))
    }


def combine_hashes(files: Mapping[str, str]) -> str:
    """Return one digest of all hashes."""
    lines = "".join(f"{value} {name}\n" for name, value in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def check_in_container(variant: str, record: Path = RECORD, checkout: Path = CHECKOUT) -> None:
    """Refuse to start if the checkout that is mounted here has other code than this image.

    Raises:
        DeviceError: if it has. `drivetrain launch` updates the image first, so this never fails after it.
    """
    if not record.is_file() or not (checkout / "runtime").is_dir() or not (checkout / "docker").is_dir():
        return  # not in an image, or no checkout is mounted: there is nothing to compare
    built_hashes, current_hashes = parse_json(record.read_text(), dict), hash_files(variant, checkout)
    names = {*built_hashes, *current_hashes}
    changed = sorted(name for name in names if built_hashes.get(name) != current_hashes.get(name))
    if changed:
        raise DeviceError(
            f"this image was built from other code than that of this checkout: {_list_names(changed)} changed since",
            "an image that was built from the checkout as it is now",
            ("`docker compose build trainer`" if variant == "cpu" else f"`make image-{variant}`")
            + ", then the same command again; `make` and `drivetrain launch` build it by themselves",
        )


def _list_names(names: list[str]) -> str:
    unlisted = len(names) - MAX_LISTED_FILES
    return ", ".join(names[:MAX_LISTED_FILES]) + (f" and {unlisted} more" if unlisted > 0 else "")


def _list_files(path: Path) -> Iterator[Path]:
    """Yield a file itself, or all files below a folder except hidden and compiled ones."""
    if path.is_file():
        yield path
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def differs(labels: Mapping[str, str] | None, variant: str, root: Path = PROJECT) -> bool:
    """Return whether an image with these labels contains other files than the checkout."""
    return (labels or {}).get(LABEL) != combine_hashes(hash_files(variant, root))


def packages_differ(labels: Mapping[str, str] | None, variant: str, root: Path = PROJECT) -> bool:
    """Return whether an image with these labels has other packages than the checkout; rebuilding takes minutes."""
    return (labels or {}).get(PACKAGES_LABEL) != combine_hashes(hash_files(variant, root, PACKAGES))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(hash_files(sys.argv[1], Path(sys.argv[2])), indent=1))
    else:
        print(combine_hashes(hash_files(sys.argv[1])), combine_hashes(hash_files(sys.argv[1], patterns=PACKAGES)))
