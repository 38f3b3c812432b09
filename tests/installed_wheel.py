"""The wheel, installed in an environment of its own: what people have who never saw the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.paths import ROOT


def build_wheel(folder: Path) -> Path:
    """The wheel of a clone of today's files."""
    clone = folder / "clone"
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    done = subprocess.run(
        [clone / "scripts" / "wheel", folder / "dist"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(clone)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path, *, torch: bool) -> Path:
    """A virtual environment with the wheel and its host extra; returns its `drivetrain`.

    Args:
        folder: a new folder.
        wheel: the wheel.
        torch: whether all packages of this test's environment can be imported too; this saves a gigabyte.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    if torch:
        (Path(packages) / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    requirements = ["--no-deps", str(wheel)] if torch else [f"{wheel}[host]"]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", *requirements]
    # On PYTHONPATH, the checkout would count as installed already.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(pip, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "drivetrain"


def run_installed(
    command: Path, *arguments: str, folder: Path, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with nothing that leads to the checkout."""
    inherited = ("HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
    clean = {name: os.environ[name] for name in inherited if name in os.environ}
    path = f"{command.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.run(
        [command, *arguments],
        cwd=folder,
        env={**clean, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
