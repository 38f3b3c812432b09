"""The mounts of a container next to the project: files and folders that a spec or a command line names.

Each is mounted separately and read-only. A folder with more than data (a home, system folders, keys) is refused.
So is a folder with symlinks, also in inner folders, that the container could not follow.
"""

from __future__ import annotations

import itertools
import os
import pwd
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from drivetrain.data.file_paths import copy_without_links
from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job.custom import list_user_functions
from drivetrain.job.formatting import printable
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.remote_data import list_local_paths
from drivetrain.launch.project import PROJECT
from drivetrain.storage.remote_address import is_remote
from drivetrain.tasks import modality_of

WORKSPACE = Path("/workspace")
"""Where compose mounts the project."""
SYSTEM_FOLDERS = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/lib", "/var/log", "/var/run", "/var/spool")
"""Folders of the system: neither they nor anything below them is mounted."""
SHARED_FOLDERS = ("/", "/bin", "/home", "/lib", "/opt", "/root", "/sbin", "/tmp", "/usr", "/var", "/var/tmp")
"""Folders that contain more than data: not mounted themselves, but folders below them may be."""
HOME_CACHES = (".cache/huggingface/hub", ".cache/huggingface/datasets", ".cache/torch")
"""The only hidden folders of a home that are mounted: downloads. The hub's token lies next to the first two."""
_CLOUD_KEYS = (".aws", ".azure", ".docker", ".kube", ".oci", ".kaggle", ".huggingface", ".terraform.d")
_USER_KEYS = (".ssh", ".gnupg", ".password-store")
_KEY_FILES = (".netrc", ".git-credentials", ".npmrc", ".boto", ".s3cfg", ".my.cnf")
_TOKEN_FILES = (".pypirc", ".pgpass", ".vault-token", ".databrickscfg", "stored_tokens")
KEY_NAMES = (*_USER_KEYS, *_CLOUD_KEYS, *_KEY_FILES, *_TOKEN_FILES)
"""Names of files and folders with keys: not mounted, nor anything below them, nor a folder that contains one."""
MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of tables of images, whose paths are relative to the folder of the table."""
CODE_KEY = "file"
"""The last part of the key of a file with the user's code."""
MAX_CHECKED_LINKS = 10_000
"""Number of symlinks of a folder that are checked at most."""
_POSSIBLE = "files, and folders with only what the job needs; each is mounted read-only"

_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
"""Control characters, bytes that are not UTF-8, and separators of lines and paragraphs."""


@dataclass(frozen=True, order=True)
class Mount:
    """A file or folder of the host, and its path in the container."""

    source: Path
    target: Path
    writable: bool = False


def list_job_mounts(path: Path, job: Job, root: Path = WORKSPACE) -> list[Mount]:
    """Return the mounts for the files that a job needs from outside of the project: spec, data, weights, user code.

    Args:
        root: the project's path in the container.

    Raises:
        SpecError: if one of them may not be mounted, or its path means something else in the container.
    """
    named_paths = [("the spec", Path(os.path.abspath(path)), False)]
    for key, text in list_files(job):
        origin, target = job.locate_key(key), Path(os.path.abspath(job.resolve(text)))
        if key[-1] == CODE_KEY:
            target = Path(os.path.abspath(job.folder / text)).parent
            origin = f"{origin}: {text!r} may import files next to it"
        else:
            _check_same_inside(origin, text, job, root)
            is_table = modality_of(job).has_sample_files and target.suffix.lower() in MANIFEST_SUFFIXES
            if is_table and not target.is_relative_to(PROJECT):
                # The container must find the images, whose paths start from the folder of the table.
                origin, target = f"{origin}: {text} names files in its folder", target.parent
        named_paths.append((origin, target, key[-1] == CODE_KEY))
    return drop_nested_mounts(
        mount
        for origin, folder, is_code in named_paths
        for mount in list_path_mounts(origin, folder, root, is_code=is_code)
    )


def drop_nested_mounts(mounts: Iterable[Mount]) -> list[Mount]:
    """Return the mounts sorted, without duplicates and without mounts that another one already contains."""
    outer_first = sorted(set(mounts), key=lambda mount: (len(mount.target.parts), mount))
    outermost: list[Mount] = []
    for mount in outer_first:
        if not any(
            mount.target.is_relative_to(outer.target)
            and outer.source / mount.target.relative_to(outer.target) == mount.source
            for outer in outermost
        ):
            outermost.append(mount)
    return sorted(outermost)


def check_one_line(texts: Mapping[str, object]) -> None:
    """Check text for a file of another program or for its command line, where a line break would begin a command.

    Args:
        texts: texts and paths, by how messages name them.

    Raises:
        SpecError: if one contains a control character.
    """
    for name, value in texts.items():
        text = str(value)
        if any(unicodedata.category(letter) in _CATEGORIES for letter in text):
            raise SpecError(
                f"{name}: {printable(text, 200)!r} contains a control character, such as a line break",
                "text on one line, in UTF-8",
                "rename it" if "/" in text else "write it without",
            )


def list_path_mounts(origin: str, path: Path, root: Path = WORKSPACE, *, is_code: bool = False) -> Iterator[Mount]:
    """Yield the mount for an absolute path; nothing if it is inside the project.

    Args:
        origin: where the path is named, for the error message.
        path: the path, with its symlinks unresolved.
        root: the project's path in the container.
        is_code: whether it is the folder of the user's code, which may hold environments with links of their own.

    Raises:
        SpecError: if it may not be mounted, or has links that would be broken in the container.
    """
    full_path = _include_blobs(path)
    target, real = _path_in_container(full_path, root), full_path.resolve()
    for checked in (full_path, real):
        check_one_line({origin: checked})
    if target is not None:
        obstacle = find_obstacle(real) or find_obstacle(full_path)
        if obstacle:
            raise SpecError(
                f"{origin}: {full_path}"
                + (f", which is {real}," if real != full_path else "")
                + f" is not mounted: {obstacle}",
                _POSSIBLE,
                "use a smaller folder, or copy what the job needs into a separate folder",
            )
        yield Mount(real, target)
    _refuse_broken_links(origin, real, target, root, deep=not is_code)


def find_obstacle(path: Path) -> str | None:
    """Return why a path of the host may not be mounted; None if it may."""
    text = str(path)
    if text in SHARED_FOLDERS:
        return "it contains more than data"
    for folder in SYSTEM_FOLDERS:
        if path.is_relative_to(folder):
            return f"{folder} belongs to the system"
    for home in _list_homes():
        if home.is_relative_to(path):
            return "it is a home folder, or contains one"
        hidden = path.relative_to(home).parts[0] if path.is_relative_to(home) else ""
        if hidden.startswith(".") and not any(path.is_relative_to(home / cache) for cache in HOME_CACHES):
            return f"{hidden} in a home folder contains keys and settings"
    for name in path.parts:
        if name.lower() in KEY_NAMES:
            return f"{name} contains keys"
    for name in KEY_NAMES:
        if os.path.lexists(path / name):
            return f"it holds keys: {name}"
    hub = path.parent if path.name == "token" else path
    # The folder of the hub's caches can be anywhere.
    return "it holds keys: token" if (hub / "hub").is_dir() and (hub / "token").is_file() else None


def _list_homes() -> set[Path]:
    """Return the home folders of this host's users, each as written and with its symlinks resolved."""
    # Accounts of services (uid below 1000) and `nobody` (65534) have no home with keys, but often a system folder.
    homes = {Path(entry.pw_dir) for entry in pwd.getpwall() if entry.pw_uid == 0 or 1000 <= entry.pw_uid < 65534}
    homes.add(Path(os.path.expanduser("~")))  # unchanged for a user without a home
    return {form for home in homes if home.is_absolute() for form in (home, home.resolve()) if len(form.parts) > 1}


def list_files(job: Job) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every local path in the spec with its key: data, pretrained weights that exist here, and the user's code."""
    for key, text in list_local_paths(job):
        if not is_on_hub(text):
            yield key, text
    for key, text in job.model_paths():
        if os.path.exists(job.resolve(text)) and not is_remote(text):
            yield key, text
    for key, function, _ in list_user_functions(job):
        yield (*key, CODE_KEY), function.file


def _check_same_inside(origin: str, text: str, job: Job, root: Path) -> None:
    """Check that a relative path means the same in the container: relative to the spec, then to the working folder.

    Raises:
        SpecError: if the path means something else there.
    """
    path = Path(os.path.expanduser(text))
    if text.startswith("~"):
        fault = "is relative to a home folder, which differs in the container"
    elif path.is_absolute():
        return
    elif os.path.exists(job.folder / path):
        if not _leaves_project(job.folder, text, root):
            return
        path = (job.folder / text).resolve()
        fault = "leaves the project or follows a link by `..`, which does not work in the container"
    else:
        in_project, path = Path(os.path.abspath(PROJECT / path)), Path(os.path.abspath(path))
        if path == in_project and path.is_relative_to(PROJECT):
            return
        fault = "is relative to the working folder, which differs in the container"
    possible = "a path below the job file or the project, or an absolute path"
    raise SpecError(f"{origin}: {text!r} {fault}", possible, f"write {path}")


def _leaves_project(folder: Path, text: str, root: Path) -> bool:
    """Return whether a path leaves the project by `..`, also behind a symlink: a container has it at another path."""
    unresolved, real = Path(os.path.abspath(folder / text)), (folder / text).resolve()
    has_other_path = root != PROJECT and folder.resolve().is_relative_to(PROJECT)
    is_outside = not unresolved.is_relative_to(PROJECT) and not real.is_relative_to(PROJECT)
    return unresolved.resolve() != real or (has_other_path and is_outside)


def _include_blobs(path: Path) -> Path:
    """Return the model's folder for a snapshot in the hub's cache, whose symlinks lead to the blobs in there."""
    return path.parent.parent if path.parent.name == "snapshots" and (path.parent.parent / "blobs").is_dir() else path


def _path_in_container(path: Path, root: Path) -> Path | None:
    """Return the container's path for a path of the host, after following the project's symlinks.

    None if it lies in the project, which is mounted anyway.
    """
    if not path.is_relative_to(PROJECT):
        return path
    # Each link is followed as the container sees it; more than 40 are refused by the kernel, too.
    names, folder = list(path.relative_to(PROJECT).parts), PROJECT
    for _ in range(40):
        while names and not (folder / names[0]).is_symlink():
            folder /= names.pop(0)
        if not names:
            return None
        link = Path(os.readlink(folder / names.pop(0)))
        link_target = Path(os.path.normpath(root / folder.relative_to(PROJECT) / link)).joinpath(*names)
        if not link_target.is_relative_to(root):
            return link_target
        names, folder = list(link_target.relative_to(root).parts), PROJECT
    return None  # a cycle of symlinks; opening it reports that


def _refuse_broken_links(origin: str, folder: Path, target: Path | None, root: Path, *, deep: bool) -> None:
    """Refuse a folder with symlinks that would be broken in the container, where training would miss these files.

    Args:
        folder: without symlinks.
        target: its path in the container; None if it lies in the project.
        root: the project's path in the container.
        deep: whether folders in it are looked at.
    """
    for link in itertools.islice(_iterate_links(folder, deep=deep), MAX_CHECKED_LINKS):
        real = link.resolve()
        if target is None:
            is_visible = not link.is_relative_to(PROJECT) or _path_in_container(link, root) is None
        else:
            address = Path(os.readlink(link))
            is_visible = real.is_relative_to(folder) and (not address.is_absolute() or address.is_relative_to(target))
            is_visible |= root == PROJECT and real.is_relative_to(PROJECT)
        if not is_visible:
            raise SpecError(
                f"{origin}: {link} is a link to {real}, which is not mounted in the container",
                _POSSIBLE,
                f"write the link's target into the job file, or use a copy without links: {copy_without_links(folder)}",
            )


def _iterate_links(folder: Path, *, deep: bool) -> Iterator[Path]:
    """Yield the symlinks in a folder, and in the folders in it if `deep`; hidden folders and links are skipped there."""
    for path, folders, files in os.walk(folder):
        is_inner = path != str(folder)
        names = [name for name in (*folders, *files) if not (is_inner and name.startswith("."))]
        for name in names:
            if os.path.islink(os.path.join(path, name)):
                yield Path(path, name)
        folders[:] = [name for name in folders if deep and not name.startswith(".")]
