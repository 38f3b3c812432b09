"""The tokenizer of a text job and what follows from it: the largest length, and what is stored for new texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.data.dataset import Head, InputRecord
from runtime.data.text import max_length, tokenizer
from runtime.data.text.encoded import Encoded
from runtime.data.text.tokenizer import Tokenizer
from runtime.errors import SpecError
from runtime.job.text import TextEncoder, TextJob, TextPretrained
from runtime.pretrained import earlier_run, families
from runtime.pretrained import folder as pretrained

if TYPE_CHECKING:
    from runtime.data.text.tokenizer import Texts

POOLED = {"cls": "first token", "mean": "mean of the tokens"}
USUAL_VOCABULARY: int = TextEncoder.model_fields["vocabulary"].default


@dataclass(frozen=True)
class Limits:
    """What the network takes."""

    tokens: int | None = None
    """Largest number of tokens of a text; None: unlimited."""
    segments: int = 1
    """Token types."""

    def typed(self, encoded: Encoded) -> bool:
        """Whether the network gets the token types of these texts."""
        return 1 < encoded.template.segments <= self.segments


def choose(job: TextJob, texts: Texts, settled: InputRecord | None) -> tuple[Tokenizer, Limits, list[str]]:
    """The tokenizer of a job, the limits of its network, and notes.

    Args:
        job: the job.
        texts: training texts, from which a network without pretrained weights learns its vocabulary.
        settled: of the run, or of an earlier one; its tokenizer is used.

    Raises:
        SpecError: if a pretrained network has no tokenizer that fits.
    """
    if isinstance(job.model, TextPretrained):
        found = pretrained.find(job, job.model.name)
        how = families.pooling(found.config) if job.model.pooling == "auto" else job.model.pooling
        note = f"encoder {found.config.model_type} from {found.origin or found.folder}; a text is represented by its {POOLED[how]}"
        words = tokenizer.from_json(settled.preprocessing["tokenizer"]) if settled else tokenizer.of(found)
        return words, Limits(families.longest(found.config), families.segments(found.config)), [note]
    if settled and (earlier := earlier_run.find(job)):
        words = tokenizer.from_json(settled.preprocessing["tokenizer"])
        return words, Limits(earlier.longest(), earlier.segments()), [f"{words.vocabulary:,} tokens"]
    size = job.model.vocabulary if isinstance(job.model, TextEncoder) else USUAL_VOCABULARY
    words = tokenizer.from_json(settled.preprocessing["tokenizer"]) if settled else tokenizer.learn(texts, size)
    return (
        words,
        Limits(),
        [f"{words.vocabulary:,} WordPiece tokens learned from the training texts ({tokenizer.RULE})"],
    )


def length(job: TextJob, lengths: npt.NDArray[np.int64], most: int | None) -> tuple[int, list[str]]:
    """`max_length`, and notes with the reason.

    Args:
        job: the job.
        lengths: tokens of each training text, special tokens included.
        most: the limit of the network; None if it has none.

    Raises:
        SpecError: if the job wants more than the network takes.
    """
    wanted = job.data.max_length
    if wanted != "auto" and most is not None and wanted > most:
        raise SpecError(
            [
                job.problem(
                    ("data", "max_length"),
                    f"is {wanted}",
                    f"at most {most} tokens in this network",
                    "lower it, or write auto",
                )
            ]
        )
    return max_length.choose(wanted, lengths, most, job.data.truncation)


def watched(job: TextJob) -> list[str]:
    """A note on the metric that selects the best weights, if the job does not set one."""
    if job.checkpoint.best or len(job.data.labels) == 1:
        return []
    return [f"the best checkpoint is chosen by {job.best()}, the first column with the largest weight"]


def stored(job: TextJob, heads: Mapping[str, Head], words: Tokenizer, longest: int, typed: bool) -> dict[str, Any]:
    """What `predict` needs to preprocess new texts."""
    side = job.data.truncation
    found = {
        "kind": "texts",
        "text": job.data.text[0] if len(job.data.text) == 1 else list(job.data.text),
        "labels": dict(zip(heads, job.data.labels, strict=True)),
        "max_length": longest,
        "vocabulary": words.vocabulary,
        "tokenizer": words.to_json(longest, side),
    }
    # Left out where they are usual, so that models of earlier versions have the same preprocessing.
    found |= {"truncation": side} if side != "right" else {}
    return found | ({"token_types": True} if typed else {})
