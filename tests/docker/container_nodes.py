"""Two containers of our image as two machines: a network of their own, and what an engine or a scheduler gives them."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.supervisor.tiny_run import TEXT, write_images

HARDENED = (
    *("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--user=1000:1000"),
    *("--tmpfs=/tmp:exec,mode=1777", "--tmpfs=/cache:exec,mode=1777", "--shm-size=64m"),
)
USER = 1000


def run_docker(*arguments: str, check: bool = True) -> str:
    """What a command of docker prints, with its errors."""
    done = subprocess.run(
        ["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300
    )
    assert done.returncode == 0 or not check, f"docker {' '.join(arguments)}: {done.stdout}"
    return done.stdout


def prepare_job(folder: Path, epochs: int = 4, data: str = "images.npz") -> Path:
    """A folder with a small job that the user of the image may write to; returns the job file."""
    folder.mkdir(parents=True)
    write_images(folder / "images.npz")
    job = folder / "tiny.yaml"
    # Each run would measure for itself whether bf16 pays.
    text = TEXT.replace("cpu_threads: 1", "cpu_threads: 1, precision: fp32")
    job.write_text(text.replace("epochs: 4", f"epochs: {epochs}").replace("images.npz", data))
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER)
    for parent in folder.parents[:3]:  # pytest's folders are of root alone
        parent.chmod(parent.stat().st_mode | 0o011)
    return job


def train_reference(image: str, folder: Path, job: str) -> Path:
    """The run of two processes in one container; the folder is /data there."""
    options = ["--set", "limits.processes=2", "--set", "limits.gpus=none", "--runs", "/data/reference"]
    run_docker("run", "--rm", "--network=none", *HARDENED, f"--volume={folder}:/data", image, "train", job, *options)
    return folder / "reference" / "tiny-001"


class ContainerNodes:
    """Containers on one network; each is called NAME-NUMBER and found by more names."""

    def __init__(self, image: str, tag: str) -> None:
        self.image, self.tag = image, tag
        self.started: list[str] = []

    def start(self, number: int, command: Sequence[str], options: Sequence[str] = (), *, hostname: str = "") -> str:
        """Start a container; returns its name."""
        name = f"{self.tag}-{number}-{len(self.started)}"
        self.started.append(name)
        names = [f"--hostname={hostname.partition('.')[0]}", f"--network-alias={hostname}"] if hostname else []
        run_docker("run", "--detach", f"--name={name}", f"--network={self.tag}", *names, *options, self.image, *command)
        return name

    def codes(self, names: Sequence[str]) -> list[int]:
        """Wait for the ends of containers."""
        return [int(run_docker("wait", name)) for name in names]


@contextlib.contextmanager
def container_nodes(image: str) -> Iterator[ContainerNodes]:
    """A network for containers; it and they are gone after the block."""
    nodes = ContainerNodes(image, f"dt{secrets.token_hex(3)}")
    run_docker("network", "create", nodes.tag)
    try:
        yield nodes
    finally:
        run_docker("rm", "--force", *nodes.started, check=False)
        run_docker("network", "rm", nodes.tag, check=False)
