"""How pretrained networks are used, read from their configuration, whose keys differ between families."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.system.files import read_json

FIRST_TOKEN = {
    "albert",
    "bert",
    "camembert",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "longformer",
    "modernbert",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
}
"""Families whose own classifiers use the first token; for all others tokens are averaged."""
_FIRST_PATCH = {"deit", "dinov2", "vit", "vit_msn"}
"""The same for images."""
POOLING_FILE = "1_Pooling/config.json"
"""Where sentence-transformers keeps how a text's vector is made."""
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
_POSITIONS_AFTER_PAD = {
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
}
_DROPOUT = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob", "hidden_dropout_prob", "dropout")

_ELSEWHERE = ("use_pretrained_backbone", "use_timm_backbone", "use_kernels")
"""Settings that make transformers load a network of timm, or weights or kernels of the hub."""


def entry_from_elsewhere(config: object) -> str:
    """The entry of a configuration with which transformers would load more than it says; empty if there is none.

    Its writer may be anybody. A network of timm in it takes a file to unpickle, and a repository as implementation of
    attention is downloaded and run.

    Args:
        config: content of config.json, or a part of it.
    """
    if isinstance(config, list):
        return next(filter(None, map(entry_from_elsewhere, config)), "")
    if not isinstance(config, Mapping):
        return ""
    for name, value in config.items():
        if (
            (name == "model_type" and str(value).startswith("timm_"))
            or (name in _ELSEWHERE and value)
            or (str(name).endswith("_implementation") and "/" in str(value))
        ):
            return f"{name}: {value}"
        if entry := entry_from_elsewhere(value):
            return entry
    return ""


def pooling(config: Any) -> str:
    """How a text's vector is made: `cls`, its first token, or `mean`, the average of its tokens."""
    return "cls" if config.model_type in FIRST_TOKEN else "mean"


def read_pooling(folder: Path) -> str:
    """How the folder of a network makes a text's vector: `cls`, `mean` or `max`; empty if it does not say it, or names
    another way, or several at once.
    """
    settings = read_json(folder / POOLING_FILE)
    if not isinstance(settings, dict):
        return ""
    modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    return _POOLING_MODES.get(modes[0], "") if len(modes) == 1 else ""


def vision_pooling(config: Any) -> str:
    """How an image's vector is made: `cls`, its first token, or `pooled`, by the network's own pooling."""
    return "cls" if config.model_type in _FIRST_PATCH else "pooled"


def longest(config: Any) -> int | None:
    """Largest number of tokens, special tokens included; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return None
    # These number positions from the padding token's id plus one.
    return int(positions - config.pad_token_id - 1 if config.model_type in _POSITIONS_AFTER_PAD else positions)


def segments(config: Any) -> int:
    """Number of token types (segments), which tell the texts of a pair apart; 1 if the network has none."""
    return int(getattr(config, "type_vocab_size", 0) or 1)


def dropout(config: object) -> float:
    """Dropout before the outputs, as in the family's own classifiers."""
    values = (getattr(config, name, None) for name in _DROPOUT)
    return next((float(value) for value in values if value is not None), 0.1)


def bert(
    *, vocabulary: int, pad: int, longest: int, layers: int, width: int, heads: int, dropout: float
) -> dict[str, object]:
    """The configuration of a BERT (Devlin et al. 2019) of a given size, without dropout on attention weights.

    With that dropout, torch has no fused attention on a CPU, and a step takes twice as long.
    """
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "pad_token_id": pad,
        "max_position_embeddings": longest,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": 1,
    }
