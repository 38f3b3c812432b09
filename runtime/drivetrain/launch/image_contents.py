"""What of a checkout an image contains, by content; so that no run trains with other code than that of its checkout.

The image has the hashes as a file, and digests of them as labels. `python -m drivetrain.launch.image_contents WORD` prints
the digest of everything and that of the packages, `... WORD FOLDER` prints the hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from drivetrain.errors import DeviceError
from drivetrain.launch.project import PROJECT

LABEL = "drivetrain.contents"
PACKAGES_LABEL = "drivetrain.packages"
RECORD = Path("/opt/drivetrain/contents.json")
"""Written by the build of the image."""
CHECKOUT = Path("/workspace")
"""Where compose mounts the checkout."""
PACKAGES = (
    "docker/Dockerfile",
    "docker/unused",
    "docker/requirements-{}.txt",
    "docker/requirements-{}-arm64.txt",
    "docker/openmp-{}.txt",
)
"""What the layers below the project's code are made of, for all architectures."""
CODE = ("docker/sbom.py", "runtime/__main__.py", "runtime/drivetrain", "scripts/own-runs", "LICENSE")
MAX_LISTED_FILES = 3


def hashes(word: str, root: Path = PROJECT, parts: Sequence[str] = (*PACKAGES, *CODE)) -> dict[str, str]:
    """The SHA-256 of every file of a checkout that goes into an image, by its path."""
    return {
        os.path.relpath(path, root): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in parts
        for path in _files(root / part.format(word))
    }


def digest(files: Mapping[str, str]) -> str:
    """One hash of all of them."""
    lines = "".join(f"{value} {name}\n" for name, value in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def check_in_container(word: str, record: Path = RECORD, checkout: Path = CHECKOUT) -> None:
    """Refuse to train if the checkout that is mounted here has other code than this image.

    Raises:
        DeviceError: if it has. `drivetrain launch` never comes to that: it builds the image again.
    """
    if not record.is_file() or not (checkout / "runtime").is_dir() or not (checkout / "docker").is_dir():
        return
    built, current = json.loads(record.read_text()), hashes(word, checkout)
    if changed := sorted(name for name in {*built, *current} if built.get(name) != current.get(name)):
        raise DeviceError(
            f"this image was built from other code than that of this checkout: {_list_names(changed)} changed since",
            "an image that was built from the checkout as it is now",
            f"`make train-cpu` builds it by itself; for `docker compose up`, first `make image-{word}`",
        )


def _list_names(names: list[str]) -> str:
    unlisted = len(names) - MAX_LISTED_FILES
    return ", ".join(names[:MAX_LISTED_FILES]) + (f" and {unlisted} more" if unlisted > 0 else "")


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def differs(labels: Mapping[str, str] | None, word: str, root: Path = PROJECT) -> bool:
    """Whether an image with these labels contains something else than the checkout."""
    return (labels or {}).get(LABEL) != digest(hashes(word, root))


def other_packages(labels: Mapping[str, str] | None, word: str, root: Path = PROJECT) -> bool:
    """Whether an image with these labels has other packages than the checkout's, whose layers take minutes to build."""
    return (labels or {}).get(PACKAGES_LABEL) != digest(hashes(word, root, PACKAGES))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(hashes(sys.argv[1], Path(sys.argv[2])), indent=1))
    else:
        print(digest(hashes(sys.argv[1])), digest(hashes(sys.argv[1], parts=PACKAGES)))
