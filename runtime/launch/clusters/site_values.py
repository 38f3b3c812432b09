"""Types of values in a site file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

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
