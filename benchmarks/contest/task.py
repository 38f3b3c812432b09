"""Task: a row as a peer sees it: samples, network with its first weights, loss, and the score of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models.build import build

LEARNING_RATE, CLIP_NORM = 1e-3, 1.0
WORKERS = 2


class Photos(torch.utils.data.Dataset[Any]):
    """Image files, decoded each time: as torchvision's ImageFolder with Resize, CenterCrop, ToTensor and Normalize."""

    def __init__(self, paths: Sequence[str], labels: Tensor, preprocessing: dict[str, Any]) -> None:
        self.paths, self.labels, self.size = paths, labels, int(preprocessing["image_size"])
        self.mean, self.std = (torch.tensor(preprocessing[key]).view(3, 1, 1) for key in ("mean", "std"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        scale = self.size / min(image.size)
        width, height = (max(self.size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)))
        x = torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous().float().div(255)
        return (x - self.mean) / self.std, self.labels[index]


class Texts(torch.utils.data.Dataset[Any]):
    """Texts as token ids, with a label for each head."""

    def __init__(self, split: Any) -> None:
        ids, mask = split.gather(np.arange(len(split)))
        self.tokens = [row[: int(length)] for row, length in zip(ids, mask.sum(1), strict=True)]
        self.labels = torch.stack(list(split.targets.values()), dim=1)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tokens[index], self.labels[index]


def pad_batch(samples: list[tuple[Tensor, Tensor]], pad: int, longest: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and labels of some texts, filled up to `longest` tokens or to the longest of them."""
    tokens = [ids for ids, _ in samples]
    ids = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=pad)
    ids = functional.pad(ids, (0, (longest or ids.shape[1]) - ids.shape[1]), value=pad)
    lengths = torch.tensor([len(t) for t in tokens])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return ids, mask, torch.stack([labels for _, labels in samples])


class Windows(torch.utils.data.Dataset[Any]):
    """Windows of a long table: a slice for an index, one gather for a list of indices."""

    def __init__(self, split: Any) -> None:
        self.values, self.length = split.values, split.length
        self.starts, self.labels = torch.from_numpy(split.starts), split.targets[""]
        self.rows = torch.arange(self.length)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        if isinstance(index, list):
            return self.values[self.starts[index, None] + self.rows], self.labels[index]
        start = int(self.starts[index])
        return self.values[start : start + self.length], self.labels[index]


class GatheredSamples(torch.utils.data.Dataset[Any]):
    """Samples that come a batch at a time, by one gather; torch's loader asks for them so where it can."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def __getitems__(self, indices: list[int]) -> Any:
        return self.samples[indices]


def keep_batch(batch: Any) -> Any:
    """The collation of samples that are a batch already."""
    return batch


@dataclass
class Task:
    """What a contender trains."""

    job: Job
    data: Dataset
    epochs: int
    precision: str = "fp32"
    """What a tuned contender computes in: the format in which SOL was faster here."""

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return self.job.train.batch_size  # type: ignore[return-value]

    @property
    def has_images(self) -> bool:
        """Whether samples are images."""
        return self.job.task.startswith("image")

    @property
    def has_texts(self) -> bool:
        """Whether samples are texts."""
        return self.job.task.startswith("text")

    def build_network(self) -> nn.Module:
        """The network with its first weights, the frozen parts without gradient."""
        return build(self.job, self.data).module

    def make_dataset(self, split: Any) -> Any:
        """A torch dataset of a split, as tutorials write it for such data."""
        if self.has_images:
            files = getattr(split.images, "files", split.images)
            return Photos([files.title(row) for row in split.rows.tolist()], split.targets[""], self.data.preprocessing)
        if self.has_texts:
            return Texts(split)
        if self.job.task.startswith("series"):
            return Windows(split)
        return TensorDataset(*split.gather(np.arange(len(split))), split.targets[""])

    def make_loader(self, split: Any, *, tuned: bool, padding: bool, train: bool = True) -> Any:
        """Batches of a split.

        Args:
            split: of the data.
            tuned: as an expert writes it: workers where decoding is work, rows gathered by batch where it is none.
            padding: whether texts are filled up to the greatest length, not to the longest of their batch.
            train: shuffled.
        """
        dataset = self.make_dataset(split)
        if self.has_texts:
            longest = self.data.preprocessing["max_length"] if padding else None
            collate = partial(pad_batch, pad=split.pad, longest=longest)
            return DataLoader(dataset, batch_size=self.batch_size, shuffle=train, collate_fn=collate)
        if tuned and not self.has_images:
            return DataLoader(
                GatheredSamples(dataset), batch_size=self.batch_size, shuffle=train, collate_fn=keep_batch
            )
        worker_settings = {"num_workers": WORKERS, "persistent_workers": True} if tuned else {}
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=train, **worker_settings)  # type: ignore[arg-type]

    def count_samples(self, inputs: Sequence[Tensor], labels: Tensor) -> int:
        """Samples of a batch, or for texts their tokens without padding, as some order texts by length."""
        return int(inputs[-1].sum()) if self.has_texts else len(labels)

    def compute_loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """The job's loss: cross entropy, weighted over the heads."""
        if isinstance(outputs, Tensor):
            return functional.cross_entropy(outputs, labels)
        terms = [
            head.weight * functional.cross_entropy(outputs[name], labels[:, column])
            for column, (name, head) in enumerate(self.data.heads.items())
        ]
        return torch.stack(terms).sum()

    def count_right(self, outputs: Any, labels: Tensor) -> float:
        """Samples of a batch that are right, mean over the heads."""
        if isinstance(outputs, Tensor):
            return float((outputs.argmax(1) == labels).sum())
        return sum(
            float((head_outputs.argmax(1) == labels[:, column]).sum())
            for column, head_outputs in enumerate(outputs.values())
        ) / len(outputs)

    @torch.no_grad()
    def score_model(self, model: nn.Module, batches: Any) -> float:
        """Validation accuracy, mean over the heads."""
        model.eval()
        right, count = 0.0, 0
        for *inputs, labels in batches:
            right += self.count_right(model(*inputs), labels)
            count += len(labels)
        model.train()
        return right / count


def read_task(path: Path, precision: str = "fp32") -> Task:
    """The task of a job file."""
    job = job_spec.load(path)
    return Task(job, load(job), job.train.epochs, precision)
