"""Chooses the tokenizer of a text job and the largest text length, and builds the preprocessing that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Head, InputRecord
from drivetrain.data.text import length_buckets, tokenizer
from drivetrain.data.text.encoded import Encoded, Lengths, Ragged
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.errors import DataError
from drivetrain.job.text import PART_TOKENS, TextEncoder, TextJob, TextPretrained, Truncation
from drivetrain.pretrained import earlier_run, families
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained.folder import Pretrained

if TYPE_CHECKING:
    from drivetrain.data.text.tokenizer import Texts

POOLING_NAMES = {"cls": "first token", "mean": "mean of the tokens", "max": "largest values of the tokens"}
"""Descriptions of the values of `model.pooling`: how the vector of a text is made."""
DEFAULT_VOCABULARY_SIZE: int = TextEncoder.model_fields["vocabulary"].default
SAMPLED_BATCHES = 500
"""Largest number of batches used to measure the share of padding."""
MAX_AUTO_LENGTH = 512
"""Largest length that `auto` chooses if the network has no limit."""
_CUT_PLACES = {"right": "", "left": "at their start ", "middle": "in their middle "}
"""Places where texts are cut, in words for notes."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of the network on its inputs."""

    tokens: int | None = None
    """Largest number of tokens of a text; None: unlimited."""
    segments: int = 1
    """Number of token types that the network distinguishes."""
    pooling: str = ""
    """Pooling (`model.pooling`) that the network's folder declares, if it differs from the family's; else empty."""

    @classmethod
    def of_network(cls, config: Any, pooling: str = "") -> Bounds:
        """Return the limits of a network by its configuration of transformers."""
        return cls(families.find_max_tokens(config), families.count_token_types(config), pooling)


@dataclass(frozen=True)
class TextEncoding:
    """Settings of a run or a model that turn texts into tokens."""

    tokenizer: Tokenizer
    longest: int
    """Largest number of tokens of a text."""
    side: Truncation
    """Part of a longer text that is cut off."""
    typed: bool
    """Whether the network gets token types."""
    pooling: str = ""
    """Pooling that the network's folder declares; empty if it declares none."""

    @classmethod
    def of_model(cls, preprocessing: Mapping[str, Any]) -> TextEncoding:
        """Return the encoding that a model was trained with."""
        text_tokenizer = tokenizer.from_json(preprocessing["tokenizer"])
        side = preprocessing.get("truncation", "right")
        return cls(text_tokenizer, preprocessing["max_length"], side, bool(preprocessing.get("token_types")))

    def list_sequences(self, encoded: Encoded) -> list[Ragged]:
        """List the tokens of each text and, if the network has them, their token types."""
        sequences = [encoded.sequences(self.longest, self.side)]
        return [*sequences, encoded.types(self.longest, self.side)] if self.typed else sequences


def choose(job: TextJob, texts: Texts, recorded: InputRecord | None) -> tuple[TextEncoding, Encoded, list[str]]:
    """Choose tokenizer and largest length; a resumed run keeps the length that it started with.

    Args:
        texts: training texts; a network without pretrained weights learns its vocabulary from them.

    Returns:
        The encoding, the texts as tokens, and notes.

    Raises:
        SpecError: if a pretrained network has no tokenizer that fits, or takes fewer tokens than the job sets.
        DataError: if there are several columns of texts, and no special token that can separate them.
    """
    text_tokenizer, limits, notes = _choose_tokenizer(job, texts, recorded)
    encoded = text_tokenizer.encode(texts)
    if recorded and recorded.same_data:
        longest = recorded.preprocessing["max_length"]
    else:
        requested = job.data.max_length
        if requested != "auto" and limits.tokens is not None and requested > limits.tokens:
            raise job.spec_error(
                ("data", "max_length"),
                f"is {requested}",
                f"at most {limits.tokens} tokens in this network",
                "lower it, or write auto",
            )
        longest, length_notes = choose_length(requested, encoded.lengths, limits.tokens, job.data.truncation)
        notes = [*notes, *length_notes]
    # The network gets token types if the texts have several, and the network distinguishes them all.
    typed = 1 < encoded.template.segments <= limits.segments
    return TextEncoding(text_tokenizer, longest, job.data.truncation, typed, limits.pooling), encoded, notes


def _choose_tokenizer(job: TextJob, texts: Texts, recorded: InputRecord | None) -> tuple[Tokenizer, Bounds, list[str]]:
    """Choose the tokenizer of a job; also returns the limits of the network, and notes."""
    stored = tokenizer.from_json(recorded.preprocessing["tokenizer"]) if recorded else None
    model = job.model
    if isinstance(model, TextPretrained):
        source = pretrained.find(job, model.name)
        pooling, note = _choose_pooling(model, source, recorded)
        text_tokenizer = stored or tokenizer.load_pretrained(source)
        return text_tokenizer, Bounds.of_network(source.config, pooling), [note]
    if stored and (earlier := earlier_run.find(job)):
        return stored, Bounds.of_network(earlier.config), [f"{stored.vocabulary_size:,} tokens"]
    vocabulary_size = model.vocabulary if isinstance(model, TextEncoder) else DEFAULT_VOCABULARY_SIZE
    text_tokenizer = stored or tokenizer.learn(texts, vocabulary_size, job.data.lower_case)
    rule = tokenizer.describe_rule(job.data.lower_case)
    note = f"{text_tokenizer.vocabulary_size:,} WordPiece tokens learned from the training texts ({rule})"
    return text_tokenizer, Bounds(), [note]


def _choose_pooling(model: TextPretrained, source: Pretrained, recorded: InputRecord | None) -> tuple[str, str]:
    """Choose the pooling that the folder of a pretrained encoder declares; also returns a note on the encoder."""
    is_auto = model.pooling == "auto"
    if recorded and recorded.same_data:
        # A resumed run keeps its pooling, even if it was started by a version that did not read the folder's.
        pooling = recorded.preprocessing.get("pooling", "")
    else:
        pooling = families.read_pooling(source.folder) if is_auto else ""
    pooling_used = (pooling or families.choose_pooling(source.config)) if is_auto else model.pooling
    reason = f", as its {families.POOLING_FILE} says" if pooling else ""
    if not (pooling or recorded) and is_auto and (source.folder / families.POOLING_FILE).exists():
        reason = f"; its {families.POOLING_FILE} names no way that is possible here (model.pooling)"
    note = (
        f"encoder {source.config.model_type} from {source.origin or source.folder}; a text is represented by its "
        f"{POOLING_NAMES[pooling_used]}{reason}"
    )
    return pooling, note


def unknown_words_error(job: TextJob, finding: str) -> DataError:
    """Return the error for training texts that the tokenizer cannot read; `finding` is the note on it."""
    if not job.learns_vocabulary:
        possible = "a network whose tokenizer has words for these texts"
        action = "use another network, or `model: encoder`, which learns its vocabulary from the texts"
    else:
        possible = "a vocabulary that has most letters of these texts: a quarter of its size is for letters"
        action = "raise model.vocabulary of the encoder"
    return DataError(finding, possible, action, key="data.text")


def build_preprocessing(job: TextJob, heads: Mapping[str, Head], encoding: TextEncoding) -> dict[str, Any]:
    """Build the preprocessing to store with the model: the values that `predict` needs for new texts, and pooling."""
    preprocessing = {
        "kind": "texts",
        "text": job.data.text[0] if len(job.data.text) == 1 else list(job.data.text),
        "labels": dict(zip(heads, job.data.labels, strict=True)),
        "max_length": encoding.longest,
        "vocabulary": encoding.tokenizer.vocabulary_size,
        "tokenizer": encoding.tokenizer.to_json(encoding.longest, encoding.side),
    }
    # Default values are skipped, so that models of earlier versions have the same preprocessing.
    preprocessing |= {"truncation": encoding.side} if encoding.side != "right" else {}
    preprocessing |= {"pooling": encoding.pooling} if encoding.pooling else {}
    return preprocessing | ({"token_types": True} if encoding.typed else {})


def choose_length(
    requested: int | Literal["auto"], lengths: Lengths, network_limit: int | None, side: Truncation = "right"
) -> tuple[int, list[str]]:
    """Choose `max_length`, the largest number of tokens of a text; returns it and notes with the reason.

    `auto` takes the 99th percentile, rounded up to a multiple of 8, within the network's limit.

    Args:
        lengths: tokens of each training text, special tokens included.
        network_limit: largest number of tokens that the network takes; None if it has none.
        side: the part of a longer text that is cut off.
    """
    p50, p95, p99 = (int(value) for value in np.percentile(lengths, (50, 95, 99), method="inverted_cdf"))
    spread = f"tokens per text: p50 {p50}, p95 {p95}, p99 {p99}, max {lengths.max()}"
    if requested != "auto":
        return requested, [spread, f"max_length {requested}: set by the job; {_describe_cut(lengths, requested, side)}"]
    rounded = -(-p99 // 8) * 8
    limit = network_limit or MAX_AUTO_LENGTH
    reason = "p99 rounded up to a multiple of 8"
    if rounded > limit:
        whose = "the limit of this network" if network_limit else "the most that auto uses"
        rounded, reason = limit, f"{whose}, less than p99"
    return rounded, [spread, f"max_length {rounded}: {reason}; {_describe_cut(lengths, rounded, side)}"]


def note_truncated(lengths: Lengths, longest: int, side: Truncation) -> list[str]:
    """Return a note on truncated new texts; empty if no text is truncated."""
    return [f"max_length {longest}: {_describe_cut(lengths, longest, side)}"] if (lengths > longest).any() else []


def _describe_cut(lengths: Lengths, longest: int, side: Truncation) -> str:
    is_cut = lengths > longest
    if not is_cut.any():
        return "no text is cut"
    lost_share = int((lengths[is_cut] - longest).sum()) / int(lengths.sum())
    return f"{is_cut.mean():.1%} of the texts are cut {_CUT_PLACES[side]}({int(is_cut.sum()):,} of {len(lengths):,}), {lost_share:.1%} of all tokens"


@dataclass(frozen=True)
class PaddingShares:
    """Shares of padding in the first epoch, for each way of forming batches."""

    max_length: float
    """Batches padded to `max_length`."""
    longest: float
    """Batches padded to their longest text."""
    parts: float
    """Batches split into micro-batches of PART_TOKENS tokens."""

    def note(self) -> str:
        """Return the shares as a line; packed batches have no padding."""
        return (
            f"padding: {self.max_length:.0%} of a batch if filled up to max_length, "
            f"{self.longest:.0%} as filled up to the longest of each batch, "
            f"{self.parts:.0%} if cut into parts of {PART_TOKENS} tokens, none if packed (optimize.unpadding)"
        )


def padding(lengths: Lengths, longest: int, batch_size: int, seed: int) -> PaddingShares:
    """Measure the shares of padding in the first epoch, on at most SAMPLED_BATCHES batches."""
    shuffled = lengths[stateless_random.shuffle_samples(seed, 0, len(lengths))]
    groups = [shuffled[i : i + batch_size] for i in range(0, len(lengths), batch_size)][:SAMPLED_BATCHES]
    real_tokens = sum(int(group.sum()) for group in groups)
    padded_tokens = sum(len(group) * int(group.max()) for group in groups)
    bucketed_tokens = sum(length_buckets.count_computed(group, batch_size, PART_TOKENS) for group in groups)
    return PaddingShares(
        max_length=1 - real_tokens / (sum(map(len, groups)) * longest),
        longest=1 - real_tokens / padded_tokens,
        parts=1 - real_tokens / bucketed_tokens,
    )
