"""Makes random inputs with the shape and type of a model's preprocessed data, for trying out a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs
from drivetrain.errors import CheckpointError


def make_inputs(preprocessing: dict[str, Any], samples: int, seed: int) -> Inputs:
    """Make random inputs of `samples` samples: normal numbers, random tokens and categories, texts of random length.

    Raises:
        CheckpointError: if this version does not know this kind of data.
    """
    generator = stateless_random.make_generator(seed, "example", samples)
    match preprocessing.get("kind"):
        case "images":
            side = preprocessing["image_size"]
            return (_draw_normal(generator, samples, preprocessing["channels"], side, side),)
        case "texts":
            ids, mask = _draw_tokens(generator, samples, preprocessing["vocabulary"], preprocessing["max_length"])
            # The second half of a text is the second text of the pair.
            second = (mask.cumsum(1) * 2 > mask.sum(1, keepdim=True)).to(torch.int64) * mask
            return (ids, second, mask) if preprocessing.get("token_types") else (ids, mask)
        case "series":
            return (_draw_normal(generator, samples, preprocessing["length"], preprocessing["channels"]),)
        case "table":
            from drivetrain.data.tables import features

            columns = features.from_json(preprocessing)
            numbers = _draw_normal(generator, samples, columns.width)
            indices = generator.integers(0, columns.sizes, (samples, len(columns.sizes)), dtype=np.int32)
            categories = torch.from_numpy(indices)
            return tuple(part for part in (numbers, categories) if part.shape[1])
        case "own" if all(one["type"] == "float32" for one in preprocessing["inputs"]):
            return tuple(_draw_normal(generator, samples, *one["shape"]) for one in preprocessing["inputs"])
    raise CheckpointError(
        f"cannot generate random inputs for a model of kind {preprocessing.get('kind')!r}",
        "images, texts, table, series",
        "pass real ones with --data PATH",
    )


def _draw_normal(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))


def _draw_tokens(generator: np.random.Generator, samples: int, vocabulary: int, longest: int) -> Inputs:
    """Draw token ids and mask; the first text has the full length, the others may be shorter."""
    length = int(generator.integers(min(2, longest), longest, endpoint=True))
    ends = np.concatenate([[length], generator.integers(1, length, samples - 1, endpoint=True)])
    mask = (np.arange(length) < ends[:, None]).astype(np.int64)
    return torch.from_numpy(generator.integers(0, vocabulary, (samples, length)) * mask), torch.from_numpy(mask)
