"""Chooses the tokenizer of a text job and the largest text length, and builds the preprocessing that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import Head, InputRecord
from drivetrain.data.text import max_length, tokenizer
from drivetrain.data.text.encoded import Encoded
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.errors import SpecError
from drivetrain.job.text import TextEncoder, TextJob, TextPretrained
from drivetrain.pretrained import earlier_run, families
from drivetrain.pretrained import folder as pretrained

if TYPE_CHECKING:
    from drivetrain.data.text.tokenizer import Texts

POOLING_NAMES = {"cls": "first token", "mean": "mean of the tokens", "max": "largest values of the tokens"}
"""How each value of `model.pooling` makes the vector of a text, in words."""
DEFAULT_VOCABULARY_SIZE: int = TextEncoder.model_fields["vocabulary"].default


@dataclass(frozen=True)
class Limits:
    """Limits of the network on its inputs."""

    tokens: int | None = None
    """Largest number of tokens of a text; None: unlimited."""
    segments: int = 1
    """Number of token types that the network distinguishes."""
    pooling: str = ""
    """How a text's vector is made (`model.pooling`) by the network's folder, where that differs from its family."""

    def are_types_used(self, encoded: Encoded) -> bool:
        """Whether the network gets token types: the texts have several, and it distinguishes as many."""
        return 1 < encoded.template.segments <= self.segments


def choose_tokenizer(job: TextJob, texts: Texts, recorded: InputRecord | None) -> tuple[Tokenizer, Limits, list[str]]:
    """Choose the tokenizer of a job.

    Args:
        job: the job.
        texts: training texts, from which a network without pretrained weights learns its vocabulary.
        recorded: preprocessing of the run, or of an earlier one, whose tokenizer is used.

    Returns:
        The tokenizer, the limits of the network, and notes.

    Raises:
        SpecError: if a pretrained network has no tokenizer that fits.
    """
    if isinstance(job.model, TextPretrained):
        source = pretrained.find(job, job.model.name)
        family_pooling = families.choose_pooling(source.config)
        if recorded and recorded.same_data:
            # A run goes on as it began, also if it began under a version that did not read the folder's pooling.
            pooling = recorded.preprocessing.get("pooling", "")
        else:
            pooling = families.read_pooling(source.folder) if job.model.pooling == "auto" else ""
        pooling_used = (pooling or family_pooling) if job.model.pooling == "auto" else job.model.pooling
        reason = f", as its {families.POOLING_FILE} says" if pooling else ""
        if (
            not (pooling or recorded)
            and job.model.pooling == "auto"
            and (source.folder / families.POOLING_FILE).exists()
        ):
            reason = f"; its {families.POOLING_FILE} names no way that is possible here (model.pooling)"
        note = (
            f"encoder {source.config.model_type} from {source.origin or source.folder}; a text is represented by its "
            f"{POOLING_NAMES[pooling_used]}{reason}"
        )
        text_tokenizer = (
            tokenizer.from_json(recorded.preprocessing["tokenizer"]) if recorded else tokenizer.load_pretrained(source)
        )
        limits = Limits(families.find_max_tokens(source.config), families.count_token_types(source.config), pooling)
        return text_tokenizer, limits, [note]
    if recorded and (earlier := earlier_run.find(job)):
        text_tokenizer = tokenizer.from_json(recorded.preprocessing["tokenizer"])
        return (
            text_tokenizer,
            Limits(earlier.max_tokens(), earlier.count_token_types()),
            [f"{text_tokenizer.vocabulary_size:,} tokens"],
        )
    vocabulary_size = job.model.vocabulary if isinstance(job.model, TextEncoder) else DEFAULT_VOCABULARY_SIZE
    text_tokenizer = (
        tokenizer.from_json(recorded.preprocessing["tokenizer"])
        if recorded
        else tokenizer.learn(texts, vocabulary_size)
    )
    return (
        text_tokenizer,
        Limits(),
        [f"{text_tokenizer.vocabulary_size:,} WordPiece tokens learned from the training texts ({tokenizer.RULE})"],
    )


def choose_length(job: TextJob, lengths: npt.NDArray[np.int64], limit: int | None) -> tuple[int, list[str]]:
    """Choose `max_length`, the largest number of tokens of a text; returns it and notes with the reason.

    Args:
        job: the job.
        lengths: tokens of each training text, special tokens included.
        limit: largest number of tokens that the network takes; None if it has none.

    Raises:
        SpecError: if the job sets more tokens than the network takes.
    """
    requested = job.data.max_length
    if requested != "auto" and limit is not None and requested > limit:
        raise SpecError(
            [
                job.problem(
                    ("data", "max_length"),
                    f"is {requested}",
                    f"at most {limit} tokens in this network",
                    "lower it, or write auto",
                )
            ]
        )
    return max_length.choose(requested, lengths, limit, job.data.truncation)


def note_watched(job: TextJob) -> list[str]:
    """A note on the metric that selects the best weights, if the job does not set one."""
    if job.checkpoint.best or len(job.data.labels) == 1:
        return []
    return [f"the best checkpoint is chosen by {job.best()}, the first column with the largest weight"]


def build_preprocessing(
    job: TextJob, heads: Mapping[str, Head], text_tokenizer: Tokenizer, longest: int, typed: bool, pooling: str
) -> dict[str, Any]:
    """The preprocessing that is stored with the model: what `predict` needs for new texts, and the pooling."""
    side = job.data.truncation
    preprocessing = {
        "kind": "texts",
        "text": job.data.text[0] if len(job.data.text) == 1 else list(job.data.text),
        "labels": dict(zip(heads, job.data.labels, strict=True)),
        "max_length": longest,
        "vocabulary": text_tokenizer.vocabulary_size,
        "tokenizer": text_tokenizer.to_json(longest, side),
    }
    # Left out where they have the default value, so that models of earlier versions have the same preprocessing.
    preprocessing |= {"truncation": side} if side != "right" else {}
    preprocessing |= {"pooling": pooling} if pooling else {}
    return preprocessing | ({"token_types": True} if typed else {})
