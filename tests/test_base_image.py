"""The base image is made of packages that Debian has signed."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT


def test_no_package_is_taken_without_a_signature() -> None:
    text = (ROOT / "scripts" / "base-image").read_text().replace("\\\n", "")
    lines = [shlex.split(line.partition(">")[0]) for line in text.splitlines() if line.startswith("debootstrap ")]
    assert [line[:3] for line in lines] == [["debootstrap", "--force-check-gpg", "--keyring=$KEYS"]]
    assert "--allow-unauthenticated" not in text
    assert "trusted=yes" not in text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be in the way of others")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_root_leaves_build_to_whom_the_checkout_belongs(tmp_path: Path, umask: int) -> None:
    """`sudo make base-image` in a fresh clone made a build/ in which its owner could build nothing."""
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 1000, 1000)
    lock = tmp_path / "build" / "base.lock"
    subprocess.run([ROOT / "scripts" / "locked", lock, "waiting", "true"], check=True, umask=umask)
    assert [(path.stat().st_uid, path.stat().st_gid) for path in (lock.parent, lock)] == [(1000, 1000)] * 2
    for name in ("image", "base-image"):
        assert "mkdir -p build" not in (ROOT / "scripts" / name).read_text().replace("../build", "build")
