"""The installed torch, the compiler and the libraries for preloading, on planted files."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from drivetrain.hardware.facts import Libraries, Torch
from drivetrain.hardware.software import read_compiler, read_libraries, read_torch
from tests.file_trees import write_files

pytestmark = pytest.mark.host
TRIPLET = f"usr/lib/{platform.machine()}-linux-gnu"
CPU = "__version__ = '2.13.0+cpu'\ndebug = False\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA = '__version__ = "2.7.1+cu126"\ncuda: Optional[str] = "12.6"\n'
PLAIN = "__version__ = '2.13.0'\ncuda = '13.0'\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CPU, Torch(version="2.13.0+cpu", cuda=None)),
        (CUDA, Torch(version="2.7.1+cu126", cuda="12.6")),
        (PLAIN, Torch(version="2.13.0", cuda="13.0")),
    ],
)
def test_torch_by_its_version_file(tmp_path: Path, text: str, expected: Torch) -> None:
    write_files(tmp_path, {"torch/__init__.py": "raise ImportError('must not be imported')", "torch/version.py": text})
    assert read_torch([str(tmp_path)]) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.7.1+cu126", Torch(version="2.7.1+cu126", cuda="12.6")),
        ("2.13.0+cu130", Torch(version="2.13.0+cu130", cuda="13.0")),
        ("2.13.0+cpu", Torch(version="2.13.0+cpu", cuda=None)),
    ],
)
def test_torch_by_its_metadata(tmp_path: Path, version: str, expected: Torch) -> None:
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    files = {"torch/__init__.py": "", "torch/version.py": "garbage", f"torch-{version}.dist-info/METADATA": metadata}
    assert read_torch([str(write_files(tmp_path, files))]) == expected


def test_the_first_torch_on_the_path_counts(tmp_path: Path) -> None:
    for name, text in (("a", CPU), ("b", CUDA)):
        write_files(tmp_path / name, {"torch/__init__.py": "", "torch/version.py": text})
    assert read_torch([str(tmp_path / "none"), str(tmp_path / "b"), str(tmp_path / "a")]) == Torch(
        version="2.7.1+cu126", cuda="12.6"
    )


def test_no_torch(tmp_path: Path) -> None:
    write_files(tmp_path, {"torch/notes.txt": "a folder that happens to be called torch"})
    assert read_torch([str(tmp_path)]) is None


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_compiler_needs_the_headers_too(tmp_path: Path) -> None:
    compiler, include = executable(tmp_path / "bin/g++"), tmp_path / "include"
    environ = {"PATH": str(tmp_path / "bin")}
    assert read_compiler(environ, str(include)) is None
    write_files(include, {"Python.h": ""})
    assert read_compiler(environ, str(include)) == compiler
    assert read_compiler({"PATH": str(include)}, str(include)) is None


def test_cxx_comes_before_gxx_and_gxx_before_cxx_by_name(tmp_path: Path) -> None:
    include = str(write_files(tmp_path, {"Python.h": ""}))
    paths = {name: executable(tmp_path / "bin" / name) for name in ("g++", "c++", "clang++")}
    environ = {"PATH": str(tmp_path / "bin")}
    assert read_compiler(environ, include) == paths["g++"]
    assert read_compiler(environ | {"CXX": "clang++ -O2"}, include) == paths["clang++"]
    assert read_compiler(environ | {"CXX": "missing"}, include) is None
    Path(paths["g++"]).unlink()
    assert read_compiler(environ, include) == paths["c++"]


def test_libraries_in_their_places(tmp_path: Path) -> None:
    names = [
        "env/lib/libiomp5.so",
        "usr/lib/llvm-9/lib/libomp.so.5",
        "usr/lib/llvm-14/lib/libomp.so.5",
        f"{TRIPLET}/libtcmalloc_minimal.so.4",
    ]
    write_files(tmp_path, dict.fromkeys(names, ""))
    assert read_libraries(tmp_path, tmp_path / "env") == Libraries(
        iomp5=f"{tmp_path}/env/lib/libiomp5.so",
        libomp=f"{tmp_path}/usr/lib/llvm-14/lib/libomp.so.5",
        tcmalloc=f"{tmp_path}/{TRIPLET}/libtcmalloc_minimal.so.4",
    )


@pytest.mark.parametrize("library_folder", ["usr/local/lib", "opt/intel/lib"])
def test_libiomp5_outside_of_the_environment(tmp_path: Path, library_folder: str) -> None:
    write_files(tmp_path, {f"{library_folder}/libiomp5.so": ""})
    assert read_libraries(tmp_path, tmp_path / "env").iomp5 == f"{tmp_path}/{library_folder}/libiomp5.so"


def test_no_libraries(tmp_path: Path) -> None:
    assert read_libraries(tmp_path, tmp_path) == Libraries()


def test_the_environments_own_tcmalloc_comes_before_the_systems(tmp_path: Path) -> None:
    write_files(tmp_path, {"env/lib/libtcmalloc_minimal.so.4": "", f"{TRIPLET}/libtcmalloc_minimal.so.4": ""})
    assert read_libraries(tmp_path, tmp_path / "env").tcmalloc == f"{tmp_path}/env/lib/libtcmalloc_minimal.so.4"
