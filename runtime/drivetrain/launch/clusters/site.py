"""The site file: what belongs to a cluster and to no job, such as its partition, its volumes or its image.

It is YAML, checked like a job file: each mistake with line and column.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, ValidationError
from pydantic_core import PydanticCustomError

from drivetrain.errors import SpecError
from drivetrain.job.values import Duration, Spec, VariableName
from drivetrain.job_spec.validation_errors import list_problems
from drivetrain.job_spec.yaml_file import parse


def _validate_text(pattern: str = ".*", possible: str = "", *, reserved: str = "") -> AfterValidator:
    """Build a check of text on one line, since a line break in a script would begin a command; `reserved` is set elsewhere."""

    def check(text: str) -> str:
        if not text or not text.isprintable():
            raise PydanticCustomError("site", "text on one line")
        if not re.fullmatch(pattern, text):
            raise PydanticCustomError("site", possible)
        if text in reserved.split():
            raise PydanticCustomError("site", "other keys than those that the job, --nodes or the rest of the site set")
        return text

    return AfterValidator(check)


SBATCH_RESERVED = (
    "nodes ntasks ntasks-per-node time signal requeue no-requeue no-kill kill-on-bad-exit chdir output error open-mode "
    "job-name"
)
POD_RESERVED = "restartPolicy subdomain terminationGracePeriodSeconds automountServiceAccountToken containers securityContext volumes"
OPTION = "the long name of an option without dashes before it, such as partition"
OBJECT = "a name as Kubernetes takes it: small letters, digits, dashes and dots"
IMAGE = "an image by its digest: HOST/NAME@sha256:...; `docker images --digests` shows digests"
Line = Annotated[str, _validate_text()]
Folder = Annotated[str, _validate_text("/.*", "the absolute path of a folder, such as /home")]
SbatchOption = Annotated[str, _validate_text("[a-z][a-z0-9-]*", OPTION, reserved=SBATCH_RESERVED)]
PodField = Annotated[str, _validate_text(reserved=POD_RESERVED)]
Label = Annotated[str, _validate_text(reserved="app.kubernetes.io/name app.kubernetes.io/instance")]
ResourceKey = Annotated[str, _validate_text(reserved="image_id job_recovery")]
ObjectName = Annotated[str, _validate_text("[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", OBJECT)]
# A tag can be moved while a job waits or restarts.
PinnedImage = Annotated[str, _validate_text("[a-z0-9][a-z0-9.:/_-]*@sha256:[0-9a-f]{64}", IMAGE)]


class SlurmSite(Spec):
    """A cluster with Slurm."""

    shared: list[Folder] = Field([], description="folders that all nodes see under the same path")
    time: Duration | None = Field(None, description="time limit of a job; that of the partition if absent")
    grace: Duration = Field("2m", description="time before the limit at which training is told to save and stop")
    options: dict[SbatchOption, Line | int | bool] = Field({}, description="of sbatch, by their long names")
    srun: list[Line] = Field([], description="other options of srun, such as --container-image=...")
    setup: list[Line] = Field([], description="shell commands before training, such as module load ...")
    command: list[Line] | None = Field(
        None, min_length=1, description="the words that start drivetrain on a node; this Python environment if absent"
    )


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
    labels: dict[Label, Line] = Field({}, description="labels of the Job and its pods, such as a queue")
    pod: dict[PodField, JsonValue] = Field({}, description="other fields of the pods, such as nodeSelector")
    user: int = Field(1000, ge=1, description="the user that trains, who owns what is written to the claims")
    gpu_resource: Line = Field("nvidia.com/gpu", description="what the cluster calls a GPU")


class SkyPilotSite(Spec):
    """Clouds and clusters that SkyPilot reaches."""

    image: PinnedImage = Field(description="the image of drivetrain, by its digest")
    runs: Folder = Field(description="the folder for runs, below a volume")
    volumes: dict[Folder, JsonValue] = Field({}, description="volumes of SkyPilot by where they are mounted")
    file_mounts: dict[Folder, JsonValue] = Field({}, description="buckets and files by where they are mounted")
    resources: dict[ResourceKey, JsonValue] = Field({}, description="as SkyPilot calls them: accelerators, use_spot")
    command: list[Line] = Field(["python", "-m", "drivetrain"], min_length=1, description="what starts drivetrain")


class Site(Spec):
    """What belongs to a site, by engine."""

    slurm: SlurmSite = Field(SlurmSite(), description="for --on slurm")
    k8s: KubernetesSite | None = Field(None, description="for --on k8s")
    skypilot: SkyPilotSite | None = Field(None, description="for --on skypilot")


def load(path: Path | None, engine: str) -> tuple[Any, str]:
    """The section of an engine, and how messages name the file; raises SpecError with all mistakes in it."""
    name = str(path or "a site file (--site FILE)")
    try:
        document = parse(path.read_bytes() if path else b"{}", name)
        site = Site.model_validate(document.data)
    except OSError as error:
        possible = f"a YAML file with the keys {', '.join(Site.model_fields)}"
        action = "docs/clusters.md shows one for each engine"
        raise SpecError(f"--site {path}: {error.strerror or error}", possible, action) from None
    except ValidationError as error:
        raise SpecError(list_problems(error, Site, document)) from None
    if (section := getattr(site, engine)) is None:
        raise SpecError(f"{name}: no {engine} section", "image and runs, at least", "docs/clusters.md shows one")
    return section, name
