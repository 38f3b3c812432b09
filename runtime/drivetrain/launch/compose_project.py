"""The containers of one job, which compose starts under the job's limits, and those that are over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from drivetrain.errors import Busy, DeviceError
from drivetrain.launch import docker_engine, nvidia_toolkit
from drivetrain.launch import project as checkout
from drivetrain.launch.mounts import Mount
from drivetrain.launch.project import COMPOSE, PROJECT
from drivetrain.system import installation
from drivetrain.system.console import say_aside

VOLUMES = ("compile", "huggingface", "state")
"""Below /cache in every container: compiled code, files from the Hugging Face hub, and records of trained models."""

KEEP = "DRIVETRAIN_KEEP_CONTAINERS"
"""Variable: with 1, containers stay after a run that ended well, for `docker inspect`."""


@dataclass(frozen=True)
class ComposeProject:
    """One project of compose for each job name, user and checkout; without a job it runs the other commands."""

    client: Any
    job: str = ""

    @property
    def name(self) -> str:
        """Return the name for the engine, which accepts neither capitals nor dots."""
        return "-".join(filter(None, [checkout.container_prefix(), self.job.lower().replace(".", "-")]))

    def start(self, override: dict[str, Any], variant: str, variables: Mapping[str, str]) -> Any:
        """Start the trainer; returns its container.

        Args:
            override: the job's additions to the compose files.
            variant: of the image, such as cpu.
            variables: for the compose files.

        Raises:
            Busy: if it is running.
            DeviceError: if the engine cannot start it.
        """
        self._refuse_if_running()
        # Through a pipe: a client installed as a snap does not see the host's /tmp.
        done = subprocess.run(
            [*self.list_words(variant, "-"), "up", "--detach", "--force-recreate", "--no-build", "trainer"],
            env={**os.environ, **variables},
            input=self.to_yaml(override, variables),
            capture_output=True,
            text=True,
            check=False,
        )
        containers = self._containers("trainer")
        if done.returncode or not containers:
            for container in self._containers("prepare"):
                for line in container.logs().decode(errors="replace").splitlines():
                    say_aside(line)
            image = override["services"]["trainer"].get("image") or checkout.image_name(variant)
            docker_engine.check_project_is_seen(image)
            raise nvidia_toolkit.explain_refusal(done.stderr) or DeviceError(
                f"the container could not be started:\n{done.stderr.strip()[-2000:]}",
                "see the engine's message above",
                "`docker compose config` shows the requested settings",
            )
        return containers[0]

    def list_words(self, variant: str, file: str) -> list[str]:
        """Return the command line of compose up to its subcommand.

        Args:
            variant: of the image, such as cpu.
            file: with the job's additions to the compose files; - is standard input.
        """
        files = [*(str(COMPOSE / name) for name in ("base.yaml", f"{variant}.yaml")), file]
        options = [argument for name in files for argument in ("--file", name)]
        # An .env in the folder of an installed program's user is about something else.
        plain = [] if installation.CHECKOUT else ["--env-file", os.devnull]
        return ["docker", "compose", *plain, "--project-directory", str(PROJECT), "-p", self.name, *options]

    def to_yaml(self, override: Mapping[str, Any], variables: Mapping[str, str]) -> str:
        """Return the job's addition to the compose files as text, with the volumes that all jobs of the user share."""
        return _yaml({**override, "volumes": self._caches(variables["DRIVETRAIN_UID"])})

    def remove(self) -> None:
        """Remove its containers, which have ended, unless the user wants to keep them."""
        import docker

        if os.environ.get(KEEP) == "1":
            return
        for container in [*self._containers("trainer"), *self._containers("prepare")]:
            with contextlib.suppress(docker.errors.APIError):  # somebody else was faster, or has started the job again
                container.remove()

    def _refuse_if_running(self) -> None:
        for container in self._containers("trainer"):
            if container.status == "running":
                raise Busy(
                    f"{container.name} is already training this job",
                    "one container per job name, user and checkout",
                    f"follow it with `docker logs -f {container.name}`, "
                    f"or stop it with `{installation.format_stop_command(container.name)}`",
                )

    def _containers(self, service: str) -> list[Any]:
        labels = [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        labels.append("com.docker.compose.oneoff=False")  # not other commands in the same service
        return list(self.client.containers.list(all=True, filters={"label": labels}))

    def _caches(self, uid: str) -> dict[str, Any]:
        """Create the volumes that all jobs of a user share, labelled as compose does in a checkout named drivetrain."""
        caches = {}
        for short in VOLUMES:
            name = f"drivetrain_{short}_{uid}"
            labels = {"com.docker.compose.project": "drivetrain", "com.docker.compose.volume": short}
            self.client.volumes.create(name, labels=labels)
            caches[short] = {"name": name, "external": True}
        return caches


def _yaml(value: Any) -> str:
    """Write JSON that is valid YAML: JSON writes some characters as a surrogate pair, which YAML does not accept."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text)


def literal(value: Any) -> Any:
    """Escape dollar signs, since compose expands variables."""
    if isinstance(value, dict):
        return {key: literal(member) for key, member in value.items()}
    if isinstance(value, list):
        return [literal(member) for member in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def bind_mounts(mounts: Iterable[Mount]) -> list[Any]:
    """Return the mounts of a service in the long form: a path may contain a colon, and a missing one must not be created."""
    return [
        literal(
            {
                "type": "bind",
                "source": str(mount.source),
                "target": str(mount.target),
                "read_only": not mount.writable,
                "bind": {"create_host_path": False},
            }
        )
        for mount in mounts
    ]


BASE_FILE = COMPOSE / "base.yaml"
GPU_FILE = COMPOSE / "gpu.yaml"
"""Settings that only GPU images have."""
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def read_trainer(variables: Mapping[str, str], file: Path = BASE_FILE) -> dict[str, Any]:
    """Read the service `trainer` of a compose file, with these values for its variables that have defaults."""
    text = file.read_text(encoding="utf-8")
    filled = _VARIABLE.sub(lambda found: variables.get(found[1], found[2]), text)
    service: dict[str, Any] = yaml.safe_load(filled)["services"]["trainer"]
    return service
