"""Variables that a run gets from the environment of its starter: the job's own, proxies, the hub's token, stores, certificates.

They reach the container as files in a private folder, which are removed as soon as the run has read them. So no value is
in an image, in the settings of a container, in a log or in a run folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from drivetrain.errors import SpecError
from drivetrain.job import Job, remote_data
from drivetrain.job.track import MLFLOW, WANDB
from drivetrain.launch import engine_traits, network
from drivetrain.launch.mounts import Mount
from drivetrain.pretrained import hub_cache, hub_name
from drivetrain.storage import store_variables
from drivetrain.system.console import say
from drivetrain.system.files import parse_json
from drivetrain.system.secrets import CERTIFICATES_FILE, FILE_SUFFIX, FOLDER
from drivetrain.system.web import is_loopback

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
PROXIES = (*_PROXIES, *map(str.lower, _PROXIES))
HUB = ("HF_TOKEN", "HF_ENDPOINT")
"""Read by the hub's client: the token, and the address of a mirror."""
TRACKERS = {
    MLFLOW: ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    WANDB: ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"),
}
"""Read by the clients of tracking servers."""
AUTHORITIES = ("PIP_CERT", "SSL_CERT_FILE")
"""In the order of scripts/image, which hands the file on to the build."""
_PREFIX = "drivetrain-secrets-"


@dataclass
class RunSecrets:
    """The values of one start, and their folder until the run has read them."""

    values: Mapping[str, bytes]
    folder: Path

    def mounts(self) -> list[Mount]:
        """Return the file of each value, and where the run reads it."""
        return [Mount(self.folder / name, Path(FOLDER, name)) for name in self.values]

    def remove(self) -> None:
        """Remove the files; a container that has started keeps its mounts."""
        shutil.rmtree(self.folder, ignore_errors=True)


def collect(job: Job, online: bool, environ: Mapping[str, str] = os.environ) -> tuple[dict[str, bytes], list[str]]:
    """Collect the variables that a run of this job gets, by name, and the lines that tell the user.

    Args:
        online: whether the run has a network; else it gets only the variables that the job names.
        environ: the variables of this process.

    Raises:
        SpecError: if a variable that the job names is not set, or the certificates or a file of credentials cannot be read.
    """
    job.check_environment(environ)
    if CERTIFICATES_FILE in job.environment:
        description = f"{CERTIFICATES_FILE} is in a container a file of certificates"
        raise job.spec_error(("environment",), description, "any other name", "give the variable another name")
    values = {name: environ[name] for name in job.environment} | _read_client_variables(job, online, environ)
    contents: dict[str, bytes] = {}
    lines = [f"environment: {', '.join(values)} (handed to the run as secrets)"] if values else []
    for name, value in values.items():
        if name in store_variables.FILES:
            # The run does not see a file of this host, so it gets the content.
            possible = "a file with a credential, which the run gets read-only"
            action = f"correct it, or unset {name} and export the variables of another credential"
            contents[f"{name}{FILE_SUFFIX}"] = _read_file(f"{name}: the file {value}", value, possible, action)
        else:
            contents[name] = os.fsencode(value)
    lines += _list_warnings(job, online, values)
    for name in AUTHORITIES:
        if online and environ.get(name):
            path, action = environ[name], f"correct it, or unset {name}"
            contents[CERTIFICATES_FILE] = _read_file(f"{name}: {path}", path, "a file of certificates", action)
            lines.append(f"certificates: those of {name}, {path}")
            break
    return contents, lines


def _read_client_variables(job: Job, online: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """Read the variables of the clients that this job uses: proxies, the hub, trackers and stores."""
    names: list[str] = []
    values: dict[str, str] = {}
    if online:
        values |= read_client_proxies(environ)
        names += PROXIES
    uses_hub = hub_name.find_hub_weights(job) is not None or bool(hub_name.list_hub_data(job))
    if online and uses_hub:
        names += HUB
    if job.track and (online or network.is_offline(job.track)):
        names += TRACKERS.get(job.track.target[0], ())
    if online:
        names += list_store_variables(job, environ)
    values |= {name: environ[name] for name in names if environ.get(name)}
    if online and uses_hub and "HF_TOKEN" not in job.environment:
        token, _ = hub_cache.find_token(environ)
        if token:
            values["HF_TOKEN"] = token
    return values


def _list_warnings(job: Job, online: bool, values: Mapping[str, str]) -> list[str]:
    """List a line for each value that means something else in a container than on this host."""
    lines = []
    renewed = [name for name in store_variables.RENEWED if name in values]
    if renewed:
        lines.append(
            f"{', '.join(renewed)}: the file is handed over as it is now; a token that is renewed here is not renewed in the run"
        )
    addresses = {name: values.get(name, "") for name in PROXIES if not name.lower().startswith("no_")}
    if online:
        if job.track and job.track.mlflow:
            addresses = {"track.mlflow": job.track.mlflow} | addresses
        for scheme in remote_data.list_schemes(job):
            addresses |= {name: values.get(name, "") for name in store_variables.ENDPOINTS[scheme]}
    for name, address in addresses.items():
        host = _loopback(address)
        if host:
            lines.append(f"{name} names this host by {host}, which in a container is the container itself")
    return lines


def read_client_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Read the proxies that Docker's client is configured with, by variable; not those that the environment names too."""
    folder = environ.get("DOCKER_CONFIG") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".docker")
    config: Any = {}
    with contextlib.suppress(OSError, ValueError):  # the client itself reports a broken file
        config = parse_json(Path(folder, "config.json").read_bytes(), dict)
    for key in ("proxies", "default"):
        config = config.get(key) if isinstance(config, dict) else None
    variables: dict[str, str] = {}
    for name in _PROXIES:
        scheme, _, suffix = name.lower().partition("_")  # HTTP_PROXY is httpProxy there
        value = config.get(scheme + suffix.title()) if isinstance(config, dict) else None
        if value and isinstance(value, str) and not (environ.get(name) or environ.get(name.lower())):
            variables |= {name: value, name.lower(): value}
    return variables


def list_store_variables(job: Job, environ: Mapping[str, str], note: str = "") -> list[str]:
    """List the names of the variables that the job's stores read.

    Args:
        note: printed for each store that has none, with {} for how its variables begin, and another for its scheme.
    """
    names: list[str] = []
    for scheme in remote_data.list_schemes(job):
        known = store_variables.read_known(scheme, environ)
        names += known
        if note and not known and scheme in store_variables.PREFIXES:
            say(note.format(store_variables.PREFIXES[scheme], scheme))
    return names


@contextmanager
def write_for_block(
    values: Mapping[str, bytes], info: Mapping[str, Any], uid: int, environ: Mapping[str, str] = os.environ
) -> Iterator[RunSecrets]:
    """Write the values to private files, which exist until the end of the block at most.

    Args:
        values: as collected.
        info: information from the engine (`docker info`), which decides which folders it sees.
        uid: the user of the container, who must be able to read them.
        environ: the variables of this process.
    """
    parent = engine_folder(info, environ)
    secrets = RunSecrets(values, parent / f"{_PREFIX}{os.getpid()}")
    try:
        if values:
            make_engine_folder(info, environ)
            _sweep(parent)
            secrets.folder.mkdir(mode=0o700)
        for name, value in values.items():
            handle = os.open(secrets.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
            with os.fdopen(handle, "wb") as file:
                file.write(value)
            if os.getuid() == 0 and uid:
                os.chown(secrets.folder / name, uid, -1)
        yield secrets
    finally:
        secrets.remove()


def engine_folder(info: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    """Return a folder of this user that the engine sees: in memory if possible, never /tmp."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    engine = engine_traits.find(info)
    if engine.snap:
        return home / "snap" / "docker" / "common"  # a snap sees no hidden folders, and neither /tmp nor /run/user
    memory = environ.get("XDG_RUNTIME_DIR")
    # The machine of Docker Desktop sees the home folders of its host.
    if memory and Path(memory).is_dir() and not engine.desktop:
        return Path(memory)
    return home / ".cache" / "drivetrain"


def make_engine_folder(info: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Path:
    """Create that folder if it is missing, and return it."""
    folder = engine_folder(info, environ)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _sweep(parent: Path) -> None:
    """Remove the folders of killed starters."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            owner = int(folder.name.removeprefix(_PREFIX))
            if owner == os.getpid():
                raise ProcessLookupError  # another process has its number, as happens soon in a container
            os.kill(owner, 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (ValueError, OSError):
            continue  # not ours, or a process of another user


def _loopback(url: str) -> str:
    try:
        host = urlsplit(url if "://" in url else f"http://{url}").hostname or ""
    except ValueError:
        return ""
    return host if is_loopback(host) or host.startswith("127.") else ""  # 127.1 is 127.0.0.1 for the resolver


def _read_file(origin: str, path: str, possible: str, action: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"{origin} cannot be read here: {error.strerror}", possible, action) from None
