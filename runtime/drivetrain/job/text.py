"""Text classification: one encoder, and one output per label column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from drivetrain.errors import Problem
from drivetrain.job.data import TableFileData
from drivetrain.job.job import CLASS_METRICS, Job
from drivetrain.job.model import BuiltIn, CustomModel, EarlierRun, WithWeights, choose_model_kind
from drivetrain.job.train import ClassWeights
from drivetrain.job.values import (
    Column,
    FilePath,
    Fraction,
    OneOrMore,
    Positive,
    Revision,
    ShortForm,
    Spec,
    accept_name,
)
from drivetrain.system.spelling import clean_text

Truncation = Literal["right", "left", "middle"]

MAX_TEXT_LENGTH = 4096
"""Largest `max_length`; the memory of attention grows with its square."""
PART_TOKENS = 512
"""Tokens of a micro-batch of texts on a CPU (`optimize.unpadding`): enough for efficient matrix kernels, with little padding."""
PASS_TOKENS = 64
"""Cost of an additional pass through a network on a CPU, expressed in tokens."""


class TextHead(Spec):
    """A label column: its weight in the loss, and settings that differ from `train:`."""

    weight: Positive = Field(1.0, description="weight of this column's loss in the sum")
    class_weights: ClassWeights | None = Field(
        None, description="class weights of this column; train.class_weights if absent"
    )
    label_smoothing: Fraction | None = Field(None, description="of this column; the value of train.loss if absent")


@dataclass(frozen=True)
class _ExpandColumns(ShortForm):
    """Accepts `causa`, `[modo, causa]` and `{modo: 0.4, causa: 0.6}` as short forms of a mapping of columns to settings."""

    def expand(self, value: object) -> object:
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            names = [clean_text(name) for name in names]
            if len(set(names)) < len(names):
                raise PydanticCustomError("columns", "column names that differ")
            names = {name: {} for name in names}
        if not isinstance(names, dict) or not names or "" in names:
            raise PydanticCustomError("columns", "a column, a list of columns, or a mapping of columns to weights")
        expanded: dict[object, object] = {}
        for name, settings in names.items():
            column = clean_text(name) if isinstance(name, str) else name
            expanded[column] = {"weight": settings} if _is_number(settings) else settings
        return expanded

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, object]:
        long = handler(schema["schema"])
        weight = {"type": "number", "exclusiveMinimum": 0}
        long["additionalProperties"] = {"anyOf": [weight, long["additionalProperties"]]}
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}, long]}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class TextData(TableFileData):
    """Texts and labels: a .csv, .jsonl or .parquet file with a text column and one or several label columns."""

    COLUMN_KEYS = ("text", "labels")

    text: OneOrMore = Field(
        description="column of the texts; or a list of columns: two are encoded as a pair, more are joined with separator "
        "tokens between them"
    )
    labels: Annotated[dict[str, TextHead], _ExpandColumns()] = Field(
        description="label columns: one name, a list of names, or a mapping of names to weights or settings"
    )
    groups: Column | None = Field(
        None,
        description="column that groups texts, such as a user: a fraction or a fold takes whole groups",
    )
    lower_case: bool = Field(
        True,
        description="false: a learned vocabulary distinguishes capital from small letters",
    )
    max_length: Annotated[int, Field(ge=8, le=MAX_TEXT_LENGTH)] | Literal["auto"] = Field(
        "auto", description="largest number of tokens per text; auto: chosen from the texts"
    )
    truncation: Truncation = Field(
        "right",
        description="side that is cut from a longer text: its end (right), start (left), or middle",
    )


Pooling = Literal["cls", "mean", "max"]


class TextEncoder(WithWeights):
    """An encoder as in BERT (Devlin et al. 2019) with random weights, or a linear model of the same tokens.

    The WordPiece vocabulary is learned from the job's texts.
    """

    name: Literal["encoder", "linear"] = Field(
        description="linear: a bag of words and pairs (hashed) with a linear layer, which is solved in seconds"
    )
    layers: Annotated[int, Field(ge=1, le=48)] = Field(4, description="transformer layers")
    width: Annotated[int, Field(ge=8, le=4096)] = Field(128, description="size of a token's vector")
    heads: Annotated[int, Field(ge=1, le=64)] = Field(4, description="attention heads; they divide the width")
    vocabulary: Annotated[int, Field(ge=100, le=200_000)] = Field(8000, description="largest size of the vocabulary")
    dropout: Fraction = Field(0.1, description="dropout of embeddings, of each layer and before the outputs")
    pooling: Pooling = Field(
        "mean", description="a text's vector: mean of its tokens, the first token (cls), or the largest values (max)"
    )


class TextPretrained(BuiltIn):
    """A pretrained encoder in Hugging Face format: bert, distilbert, roberta, any AutoModel encoder."""

    source: Literal["transformers"]
    name: FilePath = Field(description="a local folder, or a name on the Hugging Face hub")
    revision: Revision | None = Field(None, description="branch, tag or commit on the hub; main if absent")
    dropout: Fraction | None = Field(None, description="dropout before the outputs; the folder's value if absent")
    pooling: Pooling | Literal["auto"] = Field(
        "auto",
        description="a text's vector: first token (cls), mean or largest values (max) of its tokens; auto: from "
        "1_Pooling/config.json in the folder, else by family",
    )


TextModel = Annotated[
    Annotated[TextEncoder, Tag("built-in")]
    | Annotated[TextPretrained, Tag("transformers")]
    | Annotated[EarlierRun, Tag("run")]
    | Annotated[CustomModel, Tag("own")],
    Discriminator(choose_model_kind),
    accept_name("encoder"),
]


class TextJob(Job):
    """Text classification with one or several label columns."""

    METRICS = CLASS_METRICS
    BEST = "f1"
    LOSSES = ("cross-entropy", "focal")

    task: Literal["text-classification"]
    data: TextData = Field(description="the training and validation data")
    model: TextModel = Field(TextEncoder(name="encoder"), description="the network")

    def heads(self) -> tuple[str, ...]:
        """Return the label columns; a single column has an empty name, so that its metrics are `validation/accuracy` etc."""
        return tuple(self.data.labels) if len(self.data.labels) > 1 else ("",)

    @property
    def learns_vocabulary(self) -> bool:
        """Whether the vocabulary is learned from the texts, and does not come from a trained network."""
        return not isinstance(self.model, TextPretrained | EarlierRun)

    def best(self) -> str:
        """Return the metric of the best checkpoint: F1 of the column with the largest weight, the first in a tie."""
        if self.checkpoint.best or len(self.data.labels) == 1:
            return super().best()
        heaviest = max(self.data.labels, key=lambda name: self.data.labels[name].weight)
        return f"validation/{heaviest}/{self.BEST}"

    def problems(self) -> Iterator[Problem]:
        """Yield settings that do not fit together."""
        if isinstance(self.train.class_weights, dict) and len(self.data.labels) > 1:
            label = next(iter(self.data.labels))
            yield self.problem(
                ("train", "class_weights"),
                f"names classes, and there are {len(self.data.labels)} label columns",
                "classes by name in each label column",
                f"move it: data.labels.{label}.class_weights",
            )
        if not self.data.lower_case and not self.learns_vocabulary:
            yield self.problem(
                ("data", "lower_case"),
                "is false, and the network has its own vocabulary",
                "a vocabulary that is learned from the texts: `model: encoder`, or your own network",
                "remove it; some networks keep capital letters and are called cased",
            )
        yield from self._check_model()

    def _check_model(self) -> Iterator[Problem]:
        """Yield settings that the built-in network cannot use."""
        model = self.model
        if not isinstance(model, TextEncoder):
            return
        if model.name == "linear":
            yield from self.refuse_idle_keys(("layers", "width", "heads", "pooling"), "vocabulary and dropout")
        elif model.width % model.heads:
            yield self.problem(
                ("model", "heads"),
                f"is {model.heads}, and width is {model.width}",
                "heads that divide the width",
                "change one of the two",
            )
