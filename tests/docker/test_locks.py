"""The locks: the image for arm64 has the same releases as that for amd64, in files for its own processor."""

from __future__ import annotations

import re

from tests.paths import ROOT

X86, ARM = "requirements-cpu.txt", "requirements-cpu-arm64.txt"


def read_lock(name: str) -> dict[str, tuple[str, set[str]]]:
    """By package: its release, and the hashes of its files."""
    text = (ROOT / "docker" / name).read_text(encoding="utf-8")
    rows = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert len(rows) == text.count("=="), name
    return {package: (release, set(re.findall("[0-9a-f]{64}", hashes))) for package, release, hashes in rows}


def test_arm64_has_the_releases_of_amd64_except_torch() -> None:
    x86, arm = read_lock(X86), read_lock(ARM)
    assert x86.pop("torch")[0] == "2.13.0+cpu"
    assert arm.pop("torch")[0] == "2.10.0"
    assert (x86.pop("torchvision")[0], arm.pop("torchvision")[0]) == ("0.28.0", "0.25.0"), "those of these torches"
    assert {package: row[0] for package, row in arm.items()} == {package: row[0] for package, row in x86.items()}


def test_compiled_packages_have_files_of_their_own() -> None:
    x86, arm = read_lock(X86), read_lock(ARM)
    for package in ("numpy", "pyarrow", "pillow", "tokenizers", "safetensors", "pydantic_core", "grpcio"):
        assert not x86[package][1] & arm[package][1], package
    assert x86["rich"][1] == arm["rich"][1]
