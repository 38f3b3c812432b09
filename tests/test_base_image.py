"""The base image is made of packages that Debian has signed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import says, says_only
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
    """`sudo scripts/base-image` in a fresh clone made a build/ in which its owner could build nothing."""
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 1000, 1000)
    lock = tmp_path / "build" / "base.lock"
    subprocess.run(["bash", "-c", f". scripts/common && locked {lock} waiting true"], cwd=ROOT, check=True, umask=umask)
    assert [(path.stat().st_uid, path.stat().st_gid) for path in (lock.parent, lock)] == [(1000, 1000)] * 2
    for name in ("image", "base-image"):
        assert "mkdir -p build" not in (ROOT / "scripts" / name).read_text()


DOCKER = """#!/bin/sh
echo "$*" >> "{log}"
case "$1" in
    info) echo '{{"NCPU": 2, "MemTotal": 4000000000}}' ;;
    image) exit 1 ;;
    pull) echo "Error response from daemon: no such host" >&2; exit 1 ;;
esac
"""


def test_a_missing_base_is_told_once_and_only_by_a_build(tmp_path: Path) -> None:
    """`make setup` asked the registry and made a base, too, whose failure was told by both; each time in two lines."""
    for name in ("scripts", "docker", "runtime", "compose"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
    for name, text in {"docker": DOCKER.format(log=tmp_path / "log"), "base-image": "#!/bin/sh\n"}.items():
        path = tmp_path / "scripts" / name
        path.write_text(text)
        path.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "BASE_IMAGE"}
    environ |= {"PATH": f"{tmp_path}/scripts:{os.environ['PATH']}", "PYTHON": sys.executable}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [str(tmp_path / "scripts" / "env"), *words]
        return subprocess.run(line, env=environ, capture_output=True, text=True, check=True)

    assert run().stderr == ""
    assert "BASE_IMAGE" not in (tmp_path / ".env").read_text()
    assert "pull" not in (tmp_path / "log").read_text()
    chosen = run("base")
    assert chosen.stdout == "localhost/drivetrain/base:bookworm\n"
    assert says_only(chosen.stderr.strip(), "base-image-cannot-be-pulled", "debian:bookworm-slim")


@pytest.mark.parametrize("section", ["global", "install"])
@pytest.mark.parametrize("is_there", [True, False])
def test_certificates_of_pip_conf_are_handed_to_a_build(tmp_path: Path, section: str, is_there: bool) -> None:
    """A company's own certificate stood in pip.conf, and pip inside of the build did not know it."""
    settings, certificates = tmp_path / "pip.conf", tmp_path / "company.pem"
    settings.write_text(f"[{section}]\ncert = {certificates}\n")
    if is_there:
        certificates.touch()
    unset = ("PIP_CERT", "SSL_CERT_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PIP_CONFIG_FILE": str(settings), "PYTHON": sys.executable}
    line = ["bash", "-c", ". scripts/common && authority"]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    if is_there:
        assert done.stdout.splitlines() == [str(certificates)]
    else:
        assert done.returncode != 0
        assert says(done.stderr, "certificates-of-pip-conf", certificates)
    assert '--secret "id=ca,src=$authority"' in (ROOT / "scripts" / "image").read_text()
