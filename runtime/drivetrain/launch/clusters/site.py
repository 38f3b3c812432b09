"""The site file: what belongs to a cluster and to no job, such as its partition, its volumes or its image.

It is YAML, checked like a job file: each mistake with line and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, ValidationError
from pydantic_core import PydanticCustomError

from drivetrain.errors import SpecError
from drivetrain.job.values import Duration, Spec, VariableName
from drivetrain.job_spec.validation_errors import list_problems
from drivetrain.job_spec.yaml_file import parse

SBATCH_OURS = (
    *("nodes", "ntasks", "ntasks-per-node", "time", "signal", "requeue", "no-requeue", "no-kill", "kill-on-bad-exit"),
    *("chdir", "output", "error", "open-mode", "job-name"),
)
"""Options of sbatch that the job, the command line or another key of the site file decides."""
POD_OURS = (
    *("restartPolicy", "subdomain", "terminationGracePeriodSeconds", "automountServiceAccountToken", "containers"),
    *("securityContext", "volumes"),
)
"""Fields of a pod that the job, the command line or another key of the site file decides."""
RESOURCES_OURS = ("image_id", "job_recovery")
"""Keys of the resources of SkyPilot that another key of the site file, or our exit codes, decide."""
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9.:/_-]*@sha256:[0-9a-f]{64}")


def _line(text: str) -> str:
    """Check that a text is one line: a line break in a script would begin a command."""
    if not text or not text.isprintable():
        raise PydanticCustomError("line", "text on one line")
    return text


def _folder(text: str) -> str:
    """Check an absolute path."""
    if not _line(text).startswith("/"):
        raise PydanticCustomError("folder", "the absolute path of a folder, such as /home")
    return text


def _option(text: str) -> str:
    """Check the long name of an option."""
    if not _OPTION.fullmatch(text):
        raise PydanticCustomError("option", "the long name of an option without dashes before it, such as partition")
    return _others(text, SBATCH_OURS)


def _others(text: str, ours: tuple[str, ...]) -> str:
    if text in ours:
        raise PydanticCustomError("ours", "other keys than those that the job, --nodes or the rest of the site decide")
    return text


def _object(text: str) -> str:
    """Check the name of an object of Kubernetes."""
    if not _OBJECT.fullmatch(text):
        raise PydanticCustomError("object", "a name as Kubernetes takes it: small letters, digits, dashes and dots")
    return text


def _image(text: str) -> str:
    """Check that an image is named by what it contains: a tag can be moved while a job waits or restarts."""
    if not _IMAGE.fullmatch(text):
        raise PydanticCustomError(
            "image", "an image by its digest: HOST/NAME@sha256:...; `docker images --digests` shows digests"
        )
    return text


Line = Annotated[str, AfterValidator(_line)]
Folder = Annotated[str, AfterValidator(_folder)]
SbatchOption = Annotated[str, AfterValidator(_option)]
PodField = Annotated[str, AfterValidator(lambda text: _others(text, POD_OURS))]
ResourceKey = Annotated[str, AfterValidator(lambda text: _others(text, RESOURCES_OURS))]
ObjectName = Annotated[str, AfterValidator(_object)]
PinnedImage = Annotated[str, AfterValidator(_image)]


class SlurmSite(Spec):
    """A cluster with Slurm."""

    shared: list[Folder] = Field([], description="folders that all nodes see under the same path")
    time: Duration | None = Field(None, description="time limit of a job; that of the partition if absent")
    grace: Duration = Field("2m", description="time before the limit at which training is told to save and stop")
    options: dict[SbatchOption, Line | int | bool] = Field(
        {}, description="other options of sbatch, by their long names"
    )
    srun: list[Line] = Field([], description="other options of srun, such as --container-image=...")
    setup: list[Line] = Field([], description="shell commands before training, such as module load ...")
    command: list[Line] | None = Field(
        None, min_length=1, description="the words that start drivetrain on a node; this Python environment if absent"
    )

    def list_options(self) -> list[str]:
        """The other options of sbatch, each as one word."""
        options = ((name, value) for name, value in self.options.items() if value is not False)
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options]

    def sets(self, options: Iterable[str]) -> bool:
        """Whether one of these options of sbatch is set."""
        return any(self.options.get(name, False) is not False for name in options)


class Claim(Spec):
    """A persistent volume claim, and where it is mounted."""

    claim: ObjectName
    at: Folder


class SecretKey(Spec):
    """A key of a secret."""

    name: ObjectName
    key: Line


class KubernetesSite(Spec):
    """A namespace of Kubernetes."""

    image: PinnedImage = Field(description="the image of drivetrain, by its digest")
    runs: Folder = Field(description="the folder for runs, below a claim")
    claims: list[Claim] = Field(min_length=1, description="persistent volume claims, and where they are mounted")
    namespace: ObjectName | None = Field(None, description="kubectl's own if absent")
    grace: Duration = Field("2m", description="time between the signal and the end of a pod")
    secrets: dict[VariableName, SecretKey] = Field({}, description="where the job's environment variables come from")
    labels: dict[Line, Line] = Field({}, description="labels of the Job and its pods, such as a queue")
    pod: dict[PodField, JsonValue] = Field({}, description="other fields of the pods, such as nodeSelector")
    user: int = Field(1000, ge=1, description="the user that trains, who owns what is written to the claims")
    gpu_resource: Line = Field("nvidia.com/gpu", description="what the cluster calls a GPU")


class SkyPilotSite(Spec):
    """Clouds and clusters that SkyPilot reaches."""

    image: PinnedImage = Field(description="the image of drivetrain, by its digest")
    runs: Folder = Field(description="the folder for runs, below a volume")
    volumes: dict[Folder, JsonValue] = Field({}, description="volumes of SkyPilot by where they are mounted")
    file_mounts: dict[Folder, JsonValue] = Field(
        {}, description="buckets and files by where they are mounted, as SkyPilot takes them"
    )
    resources: dict[ResourceKey, JsonValue] = Field(
        {}, description="other resources, as SkyPilot calls them: accelerators, infra, use_spot"
    )
    command: list[Line] = Field(
        ["python", "-m", "drivetrain"], min_length=1, description="the words that start drivetrain in the image"
    )


class Site(Spec):
    """What belongs to a site, by engine."""

    slurm: SlurmSite = Field(SlurmSite(), description="for --on slurm")
    k8s: KubernetesSite | None = Field(None, description="for --on k8s")
    skypilot: SkyPilotSite | None = Field(None, description="for --on skypilot")

    def section(self, engine: str, named: str) -> Spec:
        """What an engine needs to know.

        Args:
            engine: as `--on` names it.
            named: how messages name the file.

        Raises:
            SpecError: if the file does not say it.
        """
        settings: Spec | None = getattr(self, engine)
        if settings is None:
            raise SpecError(f"{named}: no {engine} section", "image and runs, at least", "docs/clusters.md shows one")
        return settings


def load(path: Path | None) -> tuple[Site, str]:
    """The site, and how messages name it.

    Raises:
        SpecError: if the file cannot be read, with all mistakes in it.
    """
    if path is None:
        return Site(), "a site file (--site FILE)"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"--site {path}: {error.strerror or error}",
            f"a YAML file with the keys {', '.join(Site.model_fields)}",
            "docs/clusters.md shows one for each engine",
        ) from None
    document = parse(text, str(path))
    try:
        return Site.model_validate(document.data), str(path)
    except ValidationError as error:
        raise SpecError(list_problems(error, Site, document)) from None
