"""Random network inputs with the shape and type of a model's preprocessed data, for trying out a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs
from drivetrain.errors import CheckpointError


def inputs(preprocessing: dict[str, Any], samples: int, seed: int) -> Inputs:
    """Random inputs of `samples` samples: normal numbers, random tokens and categories, texts of random length.

    Raises:
        CheckpointError: if this version does not know such data.
    """
    drawn = stateless_random.make_generator(seed, "example", samples)
    match preprocessing.get("kind"):
        case "images":
            side = preprocessing["image_size"]
            return (_normal(drawn, samples, preprocessing["channels"], side, side),)
        case "texts":
            ids, mask = _tokens(drawn, samples, preprocessing["vocabulary"], preprocessing["max_length"])
            # The second half of a text is the second of the pair.
            second = (mask.cumsum(1) * 2 > mask.sum(1, keepdim=True)).to(torch.int64) * mask
            return (ids, second, mask) if preprocessing.get("token_types") else (ids, mask)
        case "series":
            return (_normal(drawn, samples, preprocessing["length"], preprocessing["channels"]),)
        case "table":
            from drivetrain.data.tables import features

            columns = features.from_json(preprocessing)
            numbers = _normal(drawn, samples, columns.width)
            places = torch.from_numpy(drawn.integers(0, columns.sizes, (samples, len(columns.sizes)), dtype=np.int32))
            return tuple(part for part in (numbers, places) if part.shape[1])
        case "own" if all(one["type"] == "float32" for one in preprocessing["inputs"]):
            return tuple(_normal(drawn, samples, *one["shape"]) for one in preprocessing["inputs"])
    raise CheckpointError(
        f"cannot generate random inputs for a model of kind {preprocessing.get('kind')!r}",
        "images, texts, table, series",
        "pass real ones with --data PATH",
    )


def _normal(drawn: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(drawn.standard_normal(shape, dtype=np.float32))


def _tokens(drawn: np.random.Generator, samples: int, vocabulary: int, longest: int) -> Inputs:
    """Token ids and mask; the first text has the full length, the others are shorter."""
    length = int(drawn.integers(min(2, longest), longest, endpoint=True))
    ends = np.concatenate([[length], drawn.integers(1, length, samples - 1, endpoint=True)])
    mask = (np.arange(length) < ends[:, None]).astype(np.int64)
    return torch.from_numpy(drawn.integers(0, vocabulary, (samples, length)) * mask), torch.from_numpy(mask)
