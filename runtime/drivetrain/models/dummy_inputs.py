"""Makes random inputs with the shape and type of a model's preprocessed data, for trying out a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs
from drivetrain.data.tables import features
from drivetrain.errors import CheckpointError
from drivetrain.tasks import find_stored_modality


def make_inputs(preprocessing: dict[str, Any], samples: int, seed: int) -> Inputs:
    """Make random inputs of `samples` samples: normal numbers, random tokens and categories, texts of random length.

    Raises:
        CheckpointError: if this version does not know this kind of data, or if inputs of the user's data are not numbers.
    """
    generator = stateless_random.make_generator(seed, "example", samples)
    inputs: Inputs = find_stored_modality(preprocessing).draw_inputs(generator, preprocessing, samples)
    return inputs


def draw_texts(generator: np.random.Generator, preprocessing: dict[str, Any], samples: int) -> Inputs:
    """Draw token ids, with the types of a pair of texts if the network has them, and the mask."""
    ids, mask = _draw_tokens(generator, samples, preprocessing["vocabulary"], preprocessing["max_length"])
    # The second half of a text is the second text of the pair.
    types = (mask.cumsum(1) * 2 > mask.sum(1, keepdim=True)).to(torch.int64) * mask
    return (ids, types, mask) if preprocessing.get("token_types") else (ids, mask)


def draw_rows(generator: np.random.Generator, preprocessing: dict[str, Any], samples: int) -> Inputs:
    """Draw the numbers and categories of rows."""
    columns = features.from_json(preprocessing)
    numbers = draw_normal(generator, samples, columns.width)
    indices = generator.integers(0, columns.sizes, (samples, len(columns.sizes)), dtype=np.int32)
    return tuple(values for values in (numbers, torch.from_numpy(indices)) if values.shape[1])


def draw_user_inputs(generator: np.random.Generator, preprocessing: dict[str, Any], samples: int) -> Inputs:
    """Draw inputs of the shapes of the user's data."""
    if any(row["type"] != "float32" for row in preprocessing["inputs"]):
        raise CheckpointError(
            "cannot generate random inputs for a model whose inputs are not float32 numbers",
            "float32, images, texts, table, series",
            "pass real ones with --data PATH",
        )
    return tuple(draw_normal(generator, samples, *row["shape"]) for row in preprocessing["inputs"])


def draw_normal(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    """Draw normal numbers."""
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))


def _draw_tokens(generator: np.random.Generator, samples: int, vocabulary: int, longest: int) -> Inputs:
    """Draw token ids and mask; the first text has the full length, the others may be shorter."""
    length = int(generator.integers(min(2, longest), longest, endpoint=True))
    ends = np.concatenate([[length], generator.integers(1, length, samples - 1, endpoint=True)])
    mask = (np.arange(length) < ends[:, None]).astype(np.int64)
    return torch.from_numpy(generator.integers(0, vocabulary, (samples, length)) * mask), torch.from_numpy(mask)
