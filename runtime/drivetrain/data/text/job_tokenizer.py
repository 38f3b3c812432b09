"""The tokenizer of a text job and what follows from it: the largest length, and what is stored for new texts."""

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

POOLED = {"cls": "first token", "mean": "mean of the tokens", "max": "largest values of the tokens"}
USUAL_VOCABULARY: int = TextEncoder.model_fields["vocabulary"].default


@dataclass(frozen=True)
class Limits:
    """What the network takes."""

    tokens: int | None = None
    """Largest number of tokens of a text; None: unlimited."""
    segments: int = 1
    """Token types."""
    pooling: str = ""
    """How the network's folder makes a text's vector, if its family does so otherwise."""

    def typed(self, encoded: Encoded) -> bool:
        """Whether the network gets the token types of these texts."""
        return 1 < encoded.template.segments <= self.segments


def choose(job: TextJob, texts: Texts, recorded: InputRecord | None) -> tuple[Tokenizer, Limits, list[str]]:
    """The tokenizer of a job, the limits of its network, and notes.

    Args:
        job: the job.
        texts: training texts, from which a network without pretrained weights learns its vocabulary.
        recorded: of the run, or of an earlier one; its tokenizer is used.

    Raises:
        SpecError: if a pretrained network has no tokenizer that fits.
    """
    if isinstance(job.model, TextPretrained):
        source = pretrained.find(job, job.model.name)
        usual = families.pooling(source.config)
        if recorded and recorded.same_data:  # a run goes on as it began, also if it began before folders were asked
            pooling = recorded.preprocessing.get("pooling", "")
        else:
            pooling = families.read_pooling(source.folder) if job.model.pooling == "auto" else ""
        how = (pooling or usual) if job.model.pooling == "auto" else job.model.pooling
        reason = f", as its {families.POOLING_FILE} says" if pooling else ""
        if (
            not (pooling or recorded)
            and job.model.pooling == "auto"
            and (source.folder / families.POOLING_FILE).exists()
        ):
            reason = f"; its {families.POOLING_FILE} names no way that is possible here (model.pooling)"
        note = (
            f"encoder {source.config.model_type} from {source.origin or source.folder}; a text is represented by its "
            f"{POOLED[how]}{reason}"
        )
        text_tokenizer = tokenizer.from_json(recorded.preprocessing["tokenizer"]) if recorded else tokenizer.of(source)
        limits = Limits(families.longest(source.config), families.segments(source.config), pooling)
        return text_tokenizer, limits, [note]
    if recorded and (earlier := earlier_run.find(job)):
        text_tokenizer = tokenizer.from_json(recorded.preprocessing["tokenizer"])
        return text_tokenizer, Limits(earlier.longest(), earlier.segments()), [f"{text_tokenizer.vocabulary:,} tokens"]
    size = job.model.vocabulary if isinstance(job.model, TextEncoder) else USUAL_VOCABULARY
    text_tokenizer = (
        tokenizer.from_json(recorded.preprocessing["tokenizer"]) if recorded else tokenizer.learn(texts, size)
    )
    return (
        text_tokenizer,
        Limits(),
        [f"{text_tokenizer.vocabulary:,} WordPiece tokens learned from the training texts ({tokenizer.RULE})"],
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
    requested = job.data.max_length
    if requested != "auto" and most is not None and requested > most:
        raise SpecError(
            [
                job.problem(
                    ("data", "max_length"),
                    f"is {requested}",
                    f"at most {most} tokens in this network",
                    "lower it, or write auto",
                )
            ]
        )
    return max_length.choose(requested, lengths, most, job.data.truncation)


def note_watched(job: TextJob) -> list[str]:
    """A note on the metric that selects the best weights, if the job does not set one."""
    if job.checkpoint.best or len(job.data.labels) == 1:
        return []
    return [f"the best checkpoint is chosen by {job.best()}, the first column with the largest weight"]


def store_preprocessing(
    job: TextJob, heads: Mapping[str, Head], text_tokenizer: Tokenizer, longest: int, typed: bool, pooling: str
) -> dict[str, Any]:
    """What `predict` needs to preprocess new texts, and what the folder of the network says of its pooling."""
    side = job.data.truncation
    preprocessing = {
        "kind": "texts",
        "text": job.data.text[0] if len(job.data.text) == 1 else list(job.data.text),
        "labels": dict(zip(heads, job.data.labels, strict=True)),
        "max_length": longest,
        "vocabulary": text_tokenizer.vocabulary,
        "tokenizer": text_tokenizer.to_json(longest, side),
    }
    # Left out where they are usual, so that models of earlier versions have the same preprocessing.
    preprocessing |= {"truncation": side} if side != "right" else {}
    preprocessing |= {"pooling": pooling} if pooling else {}
    return preprocessing | ({"token_types": True} if typed else {})
