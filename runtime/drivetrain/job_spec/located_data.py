"""Finds the data that a job names on the Hugging Face hub, in a store or on a web server, and downloads it if needed.

Afterwards each address on the hub contains the commit and the files of its split, so that the run, its children and every
resume read the same files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from drivetrain.data.formats import shards
from drivetrain.errors import DataError, DrivetrainError
from drivetrain.hardware.disk_space import FETCHED_FOLDER, find_cache_folder
from drivetrain.job import Job, dot_key, hub_address
from drivetrain.job.hub_address import FORM, HubAddress, is_on_hub
from drivetrain.job.model import EarlierRun
from drivetrain.job.remote_data import list_remote_paths
from drivetrain.job_spec import named_splits
from drivetrain.pretrained import hub, hub_cache, hub_dataset_files
from drivetrain.pretrained.hub import Fetched
from drivetrain.pretrained.hub_dataset_files import IMAGES, SPLITS, TABLES, Files
from drivetrain.pretrained.hub_error import DATASET, HubError
from drivetrain.storage import stored_copy
from drivetrain.storage.remote_address import RemoteAddress, parse
from drivetrain.storage.stored_copy import StoredCopy
from drivetrain.system.units import format_bytes
from drivetrain.tasks import modality_of
from drivetrain.tasks.modality import MANIFESTS

Key = tuple[str, ...]
Say = Callable[[str], None]
USES = {"train": "for training", "validation": "for validation", "test": "for the final test"}


def fetch(job: Job, say: Say) -> Job:
    """Download the remote data of a job that is not in the caches or has changed in a store; returns the located job.

    Raises:
        DrivetrainError: if something cannot be downloaded or stored; names the position of the key.
    """
    return fetch_copies(locate_on_hub(job, say)[0], say)[0]


def use_cached(job: Job, say: Say | None = None) -> Job:
    """Locate the remote data of a job without asking stores, and without `say` without asking the hub.

    Addresses that the caches lack stay unchanged.

    Raises:
        DrivetrainError: as `fetch`.
    """
    return _locate(locate_on_hub(job, say)[0], lambda key, address, cache: stored_copy.find_cached(address, cache))[0]


def locate_on_hub(job: Job, say: Say | None = None, *, update: bool = False) -> tuple[Job, list[Fetched]]:
    """Replace the hub addresses in a job by the files of its datasets; returns the job and the datasets.

    Args:
        job: job with addresses.
        say: function that prints a line about a download; None looks only in the cache, and keeps other addresses.
        update: whether to ask the hub for the current commit of a branch.

    Raises:
        SpecError: if a dataset does not exist, cannot be downloaded, or has no usable splits.
        StorageError: if the cache cannot be written.
    """
    located: list[Fetched] = []
    keys_and_texts = [(key, text) for key, text in job.data_paths() if is_on_hub(text)]
    for key, text in keys_and_texts:
        address = hub_address.parse(text)
        if address is None:
            action = "correct it; write %2F for a slash in a revision"
            raise job.spec_error(key, f"is {text!r}", FORM, action)
        try:
            files = _find_files(job, key, address, say, update=update)
            if files is None:
                continue
            located.append(files)
            job = _name_files(job, key, address, files)
        except HubError as error:
            action = error.action
            if error.offline:
                action += f"; on a machine with a network, `drivetrain fetch {job.document.name}` fills the cache"
            raise job.spec_error(key, f"{text}: {error.given}", error.possible, action) from None
    return job, located


def _find_files(job: Job, key: Key, address: HubAddress, say: Say | None, *, update: bool) -> Fetched | None:
    """Find the files of an address; None if they are not in the cache and must not be downloaded."""

    def choose(paths: Sequence[str], readme: str) -> Iterable[str]:
        has_images = modality_of(job).has_sample_files
        used = _select_used(job, key, hub_dataset_files.find_splits(paths, readme, address, images=has_images))
        for split, files in used.items():
            named_path = _choose_path(split, files, address)
            yield from files if "" not in used else shards.siblings(named_path, paths)
            # The images that a manifest names are below its folder.
            if has_images and named_path.endswith(MANIFESTS):
                folder = os.path.dirname(named_path)
                prefix = f"{folder}/" if folder else ""
                yield from (path for path in paths if path.startswith(prefix) and path.lower().endswith(IMAGES))

    repository = hub_cache.find_repository(address.name, DATASET)
    if say is None:
        return hub.find_cached(repository, address.revision, choose)
    return hub.fetch(repository, address.revision, choose, say, update=update and not address.is_fixed)


def _select_used(job: Job, key: Key, files: Files) -> Files:
    """Select the splits that the job takes from an address: several for data.train, one for any other key."""
    if "" in files:
        return files
    description = f"has the splits {', '.join(files)}"
    if key[-1] != "train":
        if key[-1] in files:
            return {key[-1]: files[key[-1]]}
        if len(files) != 1:
            raise HubError(description, f"data for {dot_key(key)}", "name one of its files or folders")
        return {key[-1]: next(iter(files.values()))}
    if "train" not in files:
        raise HubError(f"{description}, and none for training", "a split for training", "name a file or folder")
    used = {split: split_files for split, split_files in files.items() if split == "train" or _is_free(job, split)}
    for split in used:
        named_splits.check_groups(job, split, job.data.train)
    return used


def _is_free(job: Job, split: str) -> bool:
    """Return whether the job does not set a split itself, so that it is taken from the training data."""
    deciding_key = "fold" if split == "validation" and getattr(job.data, "fold", None) else split
    return split in SPLITS and deciding_key not in job.data.model_fields_set


def _name_files(job: Job, key: Key, address: HubAddress, located: Fetched) -> Job:
    """Return the job with an address replaced by its files at their commit, and with a note about the splits."""
    paths, readme = located.paths, located.readme
    all_splits = hub_dataset_files.find_splits(paths, readme, address, images=modality_of(job).has_sample_files)
    used = _select_used(job, key, all_splits)
    fixed = address.at(located.commit)
    update, use_notes = {}, []
    for split, files in used.items():
        path = _choose_path(split, files, address)
        update[split or key[-1]] = str(fixed.below(path))
        if split:
            use_notes.append(f"{path or 'all'} {USES[split]}")
    for split in all_splits:
        if split not in used:
            reason = ", because the job names other data" if split in SPLITS else ""
            use_notes.append(f"{split} is not used{reason}")
    name = f"{dot_key(key)}: {address.name}"
    if not address.is_fixed:
        name += f", {address.revision} is commit {located.commit[:12]}"
    note = ": ".join(filter(None, [name, ", ".join(use_notes), located.note]))
    named_job = job.model_copy(update={"data": job.data.model_copy(update=update)})
    named_job._hub_folders = {**job._hub_folders, fixed.root: located.folder}
    named_job._notes = (*job.notes, note)
    return named_job


def _choose_path(split: str, files: Sequence[str], address: HubAddress) -> str:
    """Choose the path that names the files of a split: a folder of images, a table, or the first shard of a table.

    Raises:
        HubError: if the files are several tables.
    """
    first_file = min(files)
    if not first_file.lower().endswith(TABLES) and split:
        return _find_image_folder(split, files)
    unrelated = set(files) - set(shards.siblings(first_file, files))
    if unrelated:
        raise HubError(
            f"has {len(files)} files {USES.get(split, '')}: {', '.join(sorted(files)[:4])}",
            "one table for each split, or its shards numbered as in train-00000-of-00002.parquet and 0000.parquet",
            f"name one: data.{split}: {address.below(first_file)}",
        )
    return first_file


def _find_image_folder(split: str, files: Sequence[str]) -> str:
    """Find the folder of a split: the folder with its name, or else the parent of the class folders of all images."""
    folders = files[0].split("/")[:-1]
    for depth, name in enumerate(folders, start=1):
        prefix = "/".join(folders[:depth])
        if name.lower() in SPLITS[split] and all(path.startswith(f"{prefix}/") for path in files):
            return prefix
    return os.path.commonpath([os.path.dirname(os.path.dirname(path)) for path in files])


def fetch_copies(job: Job, report: Say) -> tuple[Job, list[StoredCopy]]:
    """Copy the data that a job names in stores into the cache, if it is new or has changed; returns job and copies.

    Args:
        job: job with addresses.
        report: function that prints a line about a download.

    Raises:
        DrivetrainError: if store, cache or data cannot be used; names the position of the key.
    """

    def fetch(key: Key, address: RemoteAddress, cache: Path) -> StoredCopy:
        copy = stored_copy.fetch(address, cache, report, needed_files(job, key))
        if copy.note:
            report(f"{dot_key(key)}: {copy.note}")
        return copy

    return _locate(job, fetch)


def _locate(job: Job, find: Callable[[Key, RemoteAddress, Path], StoredCopy | None]) -> tuple[Job, list[StoredCopy]]:
    """Let the job read addresses from the copies that `find` returns, with a note for each; returns job and copies."""
    copies: dict[str, StoredCopy] = {}
    notes = []
    for key, text in list_remote_paths(job):
        address = parse(text)
        try:
            _check_alone(job, key, address)
            copy = find(key, address, find_cache_folder() / FETCHED_FOLDER)
        except DrivetrainError as error:
            raise add_location(job, key, error) from None
        if copy is not None:
            copies[text.rstrip("/")] = copy
            notes.append(f"{dot_key(key)}: {text}, fetched at {copy.fetched}, {format_bytes(copy.bytes)}")
    located = job.model_copy()
    located._copies = {**job._copies, **{address: copy.path for address, copy in copies.items()}}
    located._notes = (*job.notes, *notes)
    return located, list(copies.values())


def _check_alone(job: Job, key: Key, address: RemoteAddress) -> None:
    """Refuse a file that needs other files, because an address of a file fetches only this file.

    Raises:
        DataError: for a shard of a table, or a table that names images.
    """
    shard = shards.SHARD.fullmatch(address.name)
    names_images = key[0] == "data" and modality_of(job).has_sample_files and address.name.lower().endswith(MANIFESTS)
    if names_images or (shard and int(shard["count"]) > 1):
        description = "names images, which are other files" if names_images else "is one of several files of a table"
        raise DataError(f"{address} {description}", "the folder with all of them", f"name it: {address.parent}")


def needed_files(job: Job, key: Key) -> Callable[[str], bool]:
    """Return a function that decides whether a file of a folder is needed; a run's checkpoints are not.

    The function refuses tar files before they are downloaded, because only code of the user reads them.
    """
    is_run = key[0] == "model" and isinstance(getattr(job, "model", None), EarlierRun)

    def is_needed(name: str) -> bool:
        if key[0] == "data" and name.endswith(".tar"):
            raise DataError(
                f"{dict(list_remote_paths(job))[key]} has tar files, such as {name}",
                "images in folders, or a table",
                "name other data, or read it with your own iterable, as jobs/streamed.yaml does",
            )
        return not (is_run and name.startswith("checkpoints/"))

    return is_needed


def add_location(job: Job, key: Key, error: DrivetrainError) -> DrivetrainError:
    """Add the position of a key in the spec to an error, and return it."""
    description = error.description if isinstance(error, DataError) else error.given
    error.given = f"{job.locate_key(key)}: {description}"
    error.args = ("\n".join(error.lines()),)
    return error
