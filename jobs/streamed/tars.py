"""Pictures in tar files, read while a run trains: of a folder in place, of a bucket through a cache of bounded size."""

import io
import itertools
import os
import random
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

JOBS = Path(__file__).parent.parent
CLASSES = ("circle", "square", "triangle")
WINDOW = 300
"""Samples that are shuffled together; the order of the files is shuffled, too."""


class Files:
    """The tar files of a folder."""

    def __init__(self, place):
        self.place = place
        self.names = self.list()
        if not self.names:
            raise FileNotFoundError(f"{place} has no .tar files")

    def list(self):
        return sorted(path.name for path in (JOBS / self.place).glob("*.tar"))

    def find(self, name):
        """The path of a tar file on this disk."""
        return JOBS / self.place / name


class Bucket(Files):
    """The tar files of a bucket. They are kept in the folder `cache`, in which all files together take at most `limit` bytes.

    A file that changes in the bucket needs another name there.
    """

    def __init__(self, place, cache, limit):
        import obstore

        self.cache, self.limit = cache, limit
        self.obstore, self.store = obstore, obstore.store.from_url(place)
        super().__init__(place)

    def list(self):
        names = [entry["path"] for page in self.obstore.list(self.store) for entry in page]
        return sorted(name for name in names if name.endswith(".tar"))

    def find(self, name):
        path = self.cache / self.place.replace("/", "_") / name
        if path.exists():
            path.touch()
        else:
            self.fetch(name, path)
        return path

    def fetch(self, name, path):
        answer = self.obstore.get(self.store, name)
        size = answer.meta["size"]
        if size > self.limit:
            raise ValueError(
                f"{name} has {size:,} bytes, and the cache of a process takes {self.limit:,}: raise cache_mb"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        # The least recently used go first, and so does what a killed run has left of a file.
        kept = sorted(
            (file for file in self.cache.rglob("*") if file.is_file()), key=lambda file: -file.stat().st_mtime
        )
        while kept and sum(file.stat().st_size for file in kept) + size > self.limit:
            kept.pop().unlink()
        part = path.with_name(f"{path.name}.part")
        with open(part, "wb") as file:
            file.writelines(answer)
        part.replace(path)


def open_files(place, cache, limit):
    return Bucket(place, cache, limit) if "://" in place else Files(place)


class Pictures:
    """Yields (pixels, class) without an end, in an order by seed and epoch; of several processes each has its own files."""

    def __init__(self, files, seed=0, process=0, processes=1):
        self.files, self.seed, self.process, self.processes = files, seed, process, processes
        self.epoch = self.taken = 0
        if len(files.names) < processes:
            raise ValueError(
                f"{files.place} has {len(files.names)} tar files for {processes} processes: one for each is needed"
            )

    def set_epoch(self, epoch):
        self.epoch, self.taken = epoch, 0

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]

    def __iter__(self):
        # After a resume the samples before are read, but not decoded.
        for picture, kind in itertools.islice(self.shuffle(), self.taken, None):
            self.taken += 1
            yield decode(picture), kind

    def shuffle(self):
        draw, window = random.Random(f"{self.seed} {self.epoch}"), []
        while True:
            names = draw.sample(self.files.names, len(self.files.names))
            for name in names[self.process :: self.processes]:
                for sample in read(self.files.find(name)):
                    window.append(sample)
                    if len(window) == WINDOW:
                        yield window.pop(draw.randrange(WINDOW))


def read(path):
    """The picture and the class of each sample of a tar file: 0001.png with 0001.cls, one after the other."""
    with tarfile.open(path) as tar:
        parts = {}
        for member in tar:
            key, _, ending = member.name.partition(".")
            content = tar.extractfile(member)
            if content is None:  # a folder or a link
                continue
            parts[key, ending] = content.read()
            if (key, "png") in parts and (key, "cls") in parts:
                yield parts.pop((key, "png")), CLASSES.index(parts.pop((key, "cls")).decode())


def decode(picture):
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("L"), np.float32)
    return torch.from_numpy(pixels / 255)[None]


def load(train, validation, cache, cache_mb, seed=0):
    # The runtime sets these where several processes train.
    process, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cache, limit = JOBS / cache / str(process), cache_mb * 2**20 // processes
    held = open_files(validation, cache, limit)
    held_samples = [(decode(picture), kind) for name in held.names for picture, kind in read(held.find(name))]
    return Pictures(open_files(train, cache, limit), seed, process, processes), held_samples
