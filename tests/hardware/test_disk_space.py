"""Sizes, exec and write permission of the folders that training and compiling need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.hardware.disk_space import read_storage

MIB = 2**20


def mounts(*noexec: Path, size: int = 64 * MIB) -> Callable[[Path], Any]:
    """Stands for the kernel's answer: a mount of `size` bytes, half of it free, noexec below the given folders."""

    def answer(path: Path) -> SimpleNamespace:
        os.stat(path)  # as the kernel: an error for what is not there
        flag = os.ST_NOEXEC if any(path.is_relative_to(folder) for folder in noexec) else 0
        return SimpleNamespace(f_blocks=size // 4096, f_frsize=4096, f_bavail=size // 8192, f_flag=flag)

    return answer


def test_sizes_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in ("dev/shm", "tmp", "runs", "home"):
        (tmp_path / name).mkdir(parents=True)
    answer = mounts(tmp_path / "dev/shm", tmp_path / "home")
    storage = read_storage(tmp_path, tmp_path / "runs", {"HOME": str(tmp_path / "home")}, answer)
    assert (storage.shm, storage.shm_exec, storage.tmp_exec) == (64 * MIB, False, True)
    assert storage.runs_free == 32 * MIB
    assert (storage.cache_exec, storage.cache_writable) == (False, True)
    assert storage.cache_room == 32 * MIB


def test_decoded_images_may_be_removed_for_new_ones(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "decoded").mkdir(parents=True)
    (cache / "decoded" / "one.u8").write_bytes(bytes(MIB))
    assert read_storage(tmp_path, tmp_path, {"TORCHINDUCTOR_CACHE_DIR": str(cache)}, mounts()).cache_room == 33 * MIB


def test_without_shared_memory(tmp_path: Path) -> None:
    storage = read_storage(tmp_path, tmp_path, {}, mounts())
    assert (storage.shm, storage.shm_exec) == (None, False)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TORCHINDUCTOR_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/drivetrain/compile"),
        ({"HOME": "/c"}, "/c/.cache/drivetrain/compile"),
        ({"TMPDIR": "/d"}, f"/d/drivetrain-{os.getuid()}/compile"),
        ({"HOME": ""}, f"/tmp/drivetrain-{os.getuid()}/compile"),
    ],
)
def test_cache_folder(tmp_path: Path, environ: dict[str, str], folder: str) -> None:
    assert read_storage(tmp_path, tmp_path, environ).cache == folder


@pytest.mark.parametrize("obstacle", ["somebody may write", "link", "file"])
def test_a_cache_folder_of_another_user_is_not_used(tmp_path: Path, obstacle: str) -> None:
    """Compiled code is run: it must not come from a folder whose name everybody knows."""
    usual_folder = tmp_path / f"drivetrain-{os.getuid()}"
    if obstacle == "link":
        (tmp_path / "theirs").mkdir()
        usual_folder.symlink_to(tmp_path / "theirs")
    elif obstacle == "file":
        usual_folder.touch()
    else:
        usual_folder.mkdir()
        usual_folder.chmod(0o777)
    cache = Path(read_storage(tmp_path, tmp_path, {"TMPDIR": str(tmp_path)}).cache)
    assert cache.parent != usual_folder
    assert cache.parent.name.startswith(f"{usual_folder.name}-")
    assert cache.parent.stat().st_mode & 0o777 == 0o700


def test_a_private_cache_folder_is_reused(tmp_path: Path) -> None:
    first, second = (read_storage(tmp_path, tmp_path, {"TMPDIR": str(tmp_path)}).cache for _ in range(2))
    assert first == second == str(tmp_path / f"drivetrain-{os.getuid()}" / "compile")
    assert (tmp_path / f"drivetrain-{os.getuid()}").stat().st_mode & 0o777 == 0o700


def test_a_missing_folder_is_checked_by_its_parent(tmp_path: Path) -> None:
    storage = read_storage(
        tmp_path, tmp_path / "runs/deep/down", {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/a/b"}, mounts()
    )
    assert (storage.runs_free, storage.cache_writable, storage.cache_exec) == (32 * MIB, True, True)


def test_a_file_in_the_way_of_the_cache_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not read_storage(tmp_path, tmp_path, {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/file/cache"}).cache_writable


@pytest.mark.host
def test_the_real_machine_answers(tmp_path: Path) -> None:
    storage = read_storage(Path("/"), tmp_path, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert storage.runs_free is not None
    assert storage.runs_free > 0
    assert storage.cache_exec == (not os.statvfs(tmp_path).f_flag & os.ST_NOEXEC)
