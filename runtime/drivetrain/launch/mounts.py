"""What a container may read beside the project: files and folders that a spec or a command line names.

Each is mounted separately and read-only. A folder with more than data (a home, system folders, keys) is refused, and so
is a folder with symlinks that lead out of it, because the container could not follow them.
"""

from __future__ import annotations

import itertools
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import SpecError, StorageError
from drivetrain.job import Job, dot_key
from drivetrain.job import custom as custom_job
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.images import ImageJob
from drivetrain.job.remote_data import local_paths
from drivetrain.launch import one_line
from drivetrain.launch.project import PROJECT
from drivetrain.storage.remote_address import is_remote
from drivetrain.system.installation import SETUP

WORKSPACE = Path("/workspace")
"""Where compose mounts the project."""
TREES = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/lib", "/var/log", "/var/run", "/var/spool")
"""Never mounted, nor anything below them."""
FOLDERS = ("/", "/bin", "/home", "/lib", "/opt", "/root", "/sbin", "/tmp", "/usr", "/var", "/var/tmp")
"""Never mounted as a whole."""
CACHES = (".cache/huggingface/hub", ".cache/huggingface/datasets", ".cache/torch")
"""In a home folder: the only hidden entries that are mounted, all of them downloads; a token lies beside the first two."""
KEYS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".docker",
    ".kube",
    ".oci",
    ".kaggle",
    ".password-store",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".boto",
    ".s3cfg",
    ".my.cnf",
    ".huggingface",
    ".terraform.d",
    ".pypirc",
    ".pgpass",
    ".vault-token",
    ".databrickscfg",
    "stored_tokens",
)
"""A folder that contains one of these is a home folder, or a copy of one; neither is anything below them mounted."""
MANIFESTS = (".csv", ".tsv", ".jsonl", ".parquet")
"""Tables that, for images, contain paths relative to themselves."""
MOST_LINKS = 10_000
"""Largest number of folder entries that are checked for symlinks."""
_POSSIBLE = "files, and folders with only what the job needs; each is mounted read-only"


@dataclass(frozen=True, order=True)
class Mount:
    """A file or folder of the host, and its path in the container."""

    source: Path
    target: Path


def of_job(path: Path, job: Job, root: Path = WORKSPACE) -> list[Mount]:
    """What a job needs from outside of the project: its spec, data, weights, and folders of user code.

    Args:
        path: the spec.
        job: its content.
        root: the project's path in the container.

    Raises:
        SpecError: if one of them may not be mounted, or cannot be found from inside.
    """
    named = [("the spec", Path(os.path.abspath(path)))]
    for key, text in list_paths(job):
        blame = f"{job.document.place(key)}: {dot_key(key)}"
        _same_inside(blame, text, job, root)
        target = Path(os.path.abspath(job.resolve(text)))
        if isinstance(job, ImageJob) and target.suffix.lower() in MANIFESTS and not target.is_relative_to(PROJECT):
            blame, target = f"{blame}: {text} names files in its folder", target.parent
        named.append((blame, target))
    for key, part, _ in custom_job.parts(job):
        where = Path(os.path.abspath(job.folder / part.file)).parent
        blame = f"{job.document.place((*key, 'file'))}: {dot_key((*key, 'file'))}: {part.file!r} may import files next to it"
        named.append((blame, where))
    return together(mount for blame, where in named for mount in of_path(blame, where, root))


def together(mounts: Iterator[Mount]) -> list[Mount]:
    """Without duplicates, and without mounts that lie inside another one."""
    every = sorted(set(mounts), key=lambda mount: (len(mount.target.parts), mount))
    outermost: list[Mount] = []
    for mount in every:
        if not any(
            mount.target.is_relative_to(other.target)
            and other.source / mount.target.relative_to(other.target) == mount.source
            for other in outermost
        ):
            outermost.append(mount)
    return sorted(outermost)


def of_path(blame: str, path: Path, root: Path = WORKSPACE) -> Iterator[Mount]:
    """The mount for one absolute path; none if it is inside the project.

    Args:
        blame: the name of its source, for the error message.
        path: as given, symlinks included.
        root: the project's path in the container.

    Raises:
        SpecError: if it may not be mounted.
    """
    with_blobs = _with_blobs(path)
    target, real = _path_in_container(with_blobs, root), with_blobs.resolve()
    for mounted in (with_blobs, real):
        one_line.check({blame: str(mounted)})
    if target is not None:
        if obstacle := refusal(real) or refusal(with_blobs):
            raise SpecError(
                f"{blame}: {with_blobs}"
                + (f", which is {real}," if real != with_blobs else "")
                + f" is not mounted: {obstacle}",
                _POSSIBLE,
                "use a smaller folder, or copy what the job needs into a separate folder",
            )
        yield Mount(real, target)
    _refuse_links(blame, real)


def refusal(path: Path) -> str | None:
    """Why a path of the host may not be mounted; None if it may."""
    text = str(path)
    if text in FOLDERS:
        return "it contains more than data"
    if tree := next((tree for tree in TREES if path.is_relative_to(tree)), None):
        return f"{tree} belongs to the system"
    for home in _homes():
        if home.is_relative_to(path):
            return "it is a home folder, or contains one"
        hidden = path.relative_to(home).parts[0] if path.is_relative_to(home) else ""
        if hidden.startswith(".") and not any(path.is_relative_to(home / cache) for cache in CACHES):
            return f"{hidden} in a home folder contains keys and settings"
    if part := next((part for part in path.parts if part.lower() in KEYS), None):
        return f"{part} contains keys"
    if name := next((name for name in KEYS if os.path.lexists(path / name)), None):
        return f"it holds keys: {name}"
    hub = path.parent if path.name == "token" else path
    if (hub / "hub").is_dir() and (hub / "token").is_file():  # the folder of the hub's caches, which can be anywhere
        return "it holds keys: token"
    try:
        mode = path.stat().st_mode
    except OSError:
        return None  # opening it reports what is wrong
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "it is neither a file nor a folder"


def _homes() -> set[Path]:
    """The home folders of this host's users, as written and with symlinks resolved."""
    homes = {Path(entry.pw_dir) for entry in pwd.getpwall() if entry.pw_uid == 0 or 1000 <= entry.pw_uid < 65534}
    homes.add(Path(os.path.expanduser("~")))  # unchanged for a user without a home
    return {form for home in homes if home.is_absolute() for form in (home, home.resolve()) if len(form.parts) > 1}


def list_paths(job: Job) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every existing path in the spec, with its key: data, and pretrained weights."""
    yield from ((key, text) for key, text in local_paths(job) if not is_on_hub(text))
    of_model = ((key, text) for key, text in job.model_paths() if not is_remote(text))
    yield from ((key, text) for key, text in of_model if os.path.exists(job.resolve(text)))


def _same_inside(blame: str, text: str, job: Job, root: Path) -> None:
    """Check that a relative path means the same in the container: relative to the spec, then to the working folder.

    Raises:
        SpecError: if it does not.
    """
    written_path = Path(os.path.expanduser(text))
    if text.startswith("~"):
        raise SpecError(
            f"{blame}: {text!r} is relative to a home folder, which differs in the container",
            "a path relative to the job file or to the project, or an absolute path",
            f"write {written_path}",
        )
    if written_path.is_absolute():
        return
    if os.path.exists(job.folder / written_path):
        _refuse_leaving(blame, text, job, root)
        return
    from_working_folder = Path(os.path.abspath(written_path))
    if not from_working_folder.is_relative_to(PROJECT) or from_working_folder != Path(
        os.path.abspath(PROJECT / written_path)
    ):
        raise SpecError(
            f"{blame}: {text!r} is relative to the working folder, which differs in the container",
            "a path relative to the job file or to the project, or an absolute path",
            f"write {from_working_folder}",
        )


def _refuse_leaving(blame: str, text: str, job: Job, root: Path) -> None:
    """Refuse `..` out of the project, also behind a symlink: in the container the project lies in another folder."""
    unresolved, real = Path(os.path.abspath(job.folder / text)), (job.folder / text).resolve()
    moved = root != PROJECT and job.folder.resolve().is_relative_to(PROJECT)
    if unresolved.resolve() != real or (
        moved and not unresolved.is_relative_to(PROJECT) and not real.is_relative_to(PROJECT)
    ):
        raise SpecError(
            f"{blame}: {text!r} leaves the project or follows a link by `..`, which does not work in the container",
            "a path below the job file or the project, or an absolute path",
            f"write {real}",
        )


def _with_blobs(path: Path) -> Path:
    """Include the blobs of a snapshot in the hub's cache, which consists of symlinks into the folder above."""
    return path.parent.parent if path.parent.name == "snapshots" and (path.parent.parent / "blobs").is_dir() else path


def _path_in_container(path: Path, root: Path) -> Path | None:
    """The path at which the container looks for a path of the host, after the project's symlinks; None if in the
    project.
    """
    if not path.is_relative_to(PROJECT):
        return path
    parts, reached = list(path.relative_to(PROJECT).parts), PROJECT
    for _ in range(40):
        while parts and not (reached / parts[0]).is_symlink():
            reached /= parts.pop(0)
        if not parts:
            return None
        link = Path(os.readlink(reached / parts.pop(0)))
        inside = Path(os.path.normpath(root / reached.relative_to(PROJECT) / link)).joinpath(*parts)
        if not inside.is_relative_to(root):
            return inside
        parts, reached = list(inside.relative_to(root).parts), PROJECT
    return None  # a cycle of symlinks; opening it reports that


def _refuse_links(blame: str, folder: Path) -> None:
    """Refuse a folder with symlinks that lead out of it, which would be broken in the container."""
    try:
        with os.scandir(folder) as entries:
            links = [entry.path for entry in itertools.islice(entries, MOST_LINKS) if entry.is_symlink()]
    except OSError:
        return
    for link in links:
        real = Path(link).resolve()
        if not real.is_relative_to(folder) and not real.is_relative_to(PROJECT):
            raise SpecError(
                f"{blame}: {link} is a link to {real}, which is not mounted in the container",
                _POSSIBLE,
                "write the link's target into the job file, or copy the file",
            )


def mount_output(output: Path | None, option: str = "--output ") -> Path | None:
    """The existing folder that is mounted for writing, at its own path; None if the output lies in the project.

    Args:
        output: as on the command line.
        option: what stands before it there.

    Raises:
        SpecError: if that folder contains more than a container should be able to change.
    """
    if output is None or Path(os.path.abspath(output)).is_relative_to(PROJECT):
        return None
    folder = _find_existing(output).resolve()
    for path in (output, folder):
        one_line.check({option.strip(" =") or "the output": str(path)})
    if obstacle := refusal(folder):
        raise SpecError(
            f"{option}{output}: a container would have to write to {folder}, and {obstacle}",
            f"a folder of its own, or one in {PROJECT}",
            f"{option}runs/{output.name}, or name a folder that exists and has nothing else in it",
        )
    return folder


def check_output_writable(output: Path | None, uid: int) -> None:
    """Check the output folder for root, whose container runs as another user that cannot write everywhere.

    Args:
        output: as on the command line.
        uid: the user of the container.

    Raises:
        StorageError: if the output is in a folder owned by root.
    """
    if output is None or uid == os.getuid():
        return
    folder = _find_existing(output)
    if folder.stat().st_uid != uid and not folder.stat().st_mode & 0o002:
        raise StorageError(
            f"--output {output}: {folder} belongs to uid {folder.stat().st_uid}, and for root the container runs as "
            f"uid {uid}",
            "a folder of that user, as runs/ is",
            f"--output runs/{output.name}, or `{SETUP}`, then no container is needed for this",
        )


def _find_existing(output: Path) -> Path:
    return next(path for path in Path(os.path.abspath(output)).parents if path.exists())
