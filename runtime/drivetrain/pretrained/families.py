"""Reads from the configuration of a pretrained network how to use it; the keys differ between families of networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.system.files import read_json

FIRST_TOKEN_FAMILIES = {
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
"""Families whose own classifiers use the first token; for all other families the tokens are averaged."""
_FIRST_PATCH_FAMILIES = {"deit", "dinov2", "vit", "vit_msn"}
"""Families of image networks whose own classifiers use the first token."""
POOLING_FILE = "1_Pooling/config.json"
"""File in which sentence-transformers stores its pooling of the tokens of a text."""
_POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
_FAMILIES_OFFSET_BY_PAD = {
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
}
_DROPOUT_KEYS = (
    "classifier_dropout",
    "seq_classif_dropout",
    "classifier_dropout_prob",
    "hidden_dropout_prob",
    "dropout",
)

_EXTERNAL_SETTINGS = ("backbone", "use_pretrained_backbone", "use_timm_backbone", "use_kernels")
"""Settings that let transformers load another network by its name, a network of timm, or weights or kernels of the hub."""


def find_external_entry(config: object) -> str:
    """Find an entry of a configuration that lets transformers load other files or code; empty if there is none.

    The configuration comes from the internet. It could name a network of timm whose file is unpickled, or an attention
    implementation whose repository is downloaded and run.

    Args:
        config: content of config.json, or a value in it.
    """
    if isinstance(config, list):
        return next(filter(None, map(find_external_entry, config)), "")
    if not isinstance(config, Mapping):
        return ""
    for name, value in config.items():
        if (
            (name == "model_type" and str(value).startswith("timm_"))
            or (name in _EXTERNAL_SETTINGS and value)
            or (str(name).endswith("_implementation") and "/" in str(value))
        ):
            return f"{name}: {value}"
        entry = find_external_entry(value)
        if entry:
            return entry
    return ""


def choose_pooling(config: Any) -> str:
    """Choose how the family pools the tokens of a text: `cls` for the first token, `mean` for the average."""
    return "cls" if config.model_type in FIRST_TOKEN_FAMILIES else "mean"


def read_pooling(folder: Path) -> str:
    """Read how the network of a folder pools tokens: `cls`, `mean` or `max`; empty for anything else."""
    settings = read_json(folder / POOLING_FILE)
    if not isinstance(settings, dict):
        return ""
    modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    return _POOLING_MODES.get(modes[0], "") if len(modes) == 1 else ""


def choose_vision_pooling(config: Any) -> str:
    """Choose how the family pools an image: `cls` for the first token, `pooled` for the network's own pooling."""
    return "cls" if config.model_type in _FIRST_PATCH_FAMILIES else "pooled"


def find_max_tokens(config: Any) -> int | None:
    """Return the largest number of tokens, special tokens included; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return None
    if config.model_type in _FAMILIES_OFFSET_BY_PAD:
        positions -= config.pad_token_id + 1  # these families count positions from the padding token's id plus one
    return int(positions)


def count_token_types(config: Any) -> int:
    """Return the number of token types (segments), which distinguish the texts of a pair; 1 for a network without them."""
    return int(getattr(config, "type_vocab_size", 0) or 1)


def find_dropout(config: object) -> float:
    """Find the dropout rate before the outputs of the family's own classifiers."""
    values = (getattr(config, name, None) for name in _DROPOUT_KEYS)
    return next((float(value) for value in values if value is not None), 0.1)


def make_bert_config(
    *, vocabulary: int, pad: int, longest: int, layers: int, width: int, heads: int, dropout: float
) -> dict[str, object]:
    """Make the configuration of a BERT (Devlin et al. 2019) of a given size, without dropout on attention weights.

    torch has no fused attention with such dropout on a CPU, and a step would take twice as long.
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
