"""Finds the installed torch, the C++ compiler, and libraries for preloading; reads files only."""

from __future__ import annotations

import glob
import mmap
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from drivetrain.hardware.facts import Libraries, Torch

_VERSION = re.compile(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_CODES = re.compile(rb"(sm_\d+[af]?(?: (?:sm|compute)_\d+[af]?)*)\0")
_CUDA = re.compile(r"^cuda\s*(?::[^=]+)?=\s*(?:['\"]([^'\"]*)['\"]|None)", re.MULTILINE)


def read_torch(path: Sequence[str] | None = None) -> Torch | None:
    """Read the torch that `import torch` would load, found without importing it.

    Args:
        path: folders to search, as in `sys.path` (the default).
    """
    folders = [Path(folder or ".") for folder in (sys.path if path is None else path)]
    package = next((f / "torch" for f in folders if (f / "torch/__init__.py").exists()), None)
    if package is None:
        return None
    try:
        text = (package / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    version, cuda = _VERSION.search(text), _CUDA.search(text)
    if version and cuda:
        codes = read_architectures(package) if cuda[1] else ()
        return Torch(version=version[1], cuda=cuda[1] or None, architectures=codes)
    return _from_metadata(package.parent)


def read_architectures(package: Path) -> tuple[str, ...]:
    """Read the architectures that a CUDA build has code for, as torch.cuda.get_arch_list() returns them on a GPU.

    Args:
        package: the folder of torch. The list is a string in one of its libraries; the others are not read.
    """
    try:
        with (
            open(package / "lib/libtorch_python.so", "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as code,
        ):
            lists = [tuple(text[1].decode().split()) for text in _CODES.finditer(code)]
    except (OSError, ValueError):  # it does not exist, or is empty
        return ()
    # Other strings may contain a single architecture: the list is the longest match.
    return max(lists, key=len, default=())


def _from_metadata(folder: Path) -> Torch | None:
    """Read the package's metadata, as a fallback: only the local version (+cu126) tells the CUDA version."""
    import importlib.metadata  # slow to import and rarely needed

    for distribution in importlib.metadata.distributions(name="torch", path=[str(folder)]):
        digits = re.search(r"\+cu(\d+)(\d)$", distribution.version)
        return Torch(version=distribution.version, cuda=f"{digits[1]}.{digits[2]}" if digits else None)
    return None


def read_compiler(environ: Mapping[str, str], include: str | None = None) -> str | None:
    """Find the path of the C++ compiler: $CXX, g++ or c++. None without one, or without Python.h in `include`."""
    folder = Path(sysconfig.get_path("include") if include is None else include)
    if not (folder / "Python.h").exists():
        return None
    names = shlex.split(environ.get("CXX", ""))[:1] or ["g++", "c++"]
    paths = (shutil.which(name, path=environ.get("PATH")) for name in names)
    return next((path for path in paths if path), None)


def read_libraries(root: Path, prefix: Path | None = None) -> Libraries:
    """Find the libraries for preloading below `root`, as full paths.

    Args:
        prefix: where Python packages install libraries (`lib` below it); the default is this environment's.
    """
    python = str((Path(sys.prefix) if prefix is None else prefix) / "lib")
    triplet = str(root / f"usr/lib/{platform.machine()}-linux-gnu")
    local, optional = str(root / "usr/local/lib"), str(root / "opt/*/lib")
    return Libraries(
        iomp5=_find_first("libiomp5.so", [python, local, optional]),
        libomp=_find_first("libomp.so.5", [str(root / "usr/lib/llvm-*/lib"), triplet, local]),
        tcmalloc=_find_first("libtcmalloc_minimal.so.4", [python, triplet, str(root / "usr/lib64"), local]),
    )


def _find_first(name: str, folders: Iterable[str]) -> str | None:
    """Find the first folder's copy of a library; if a pattern matches several, the highest version."""
    for folder in folders:
        matches = glob.glob(f"{folder}/{name}")
        if matches:
            return os.path.normpath(max(matches, key=_list_numbers))
    return None


def _list_numbers(path: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path)]
