"""Implements the encoder of `model: encoder`: BERT (Devlin et al. 2019), in torch alone.

The transformers library computes the same bits, but its import takes three seconds of CPU time. Names of weights and
the order of random numbers are the same as in the library, which trained the runs of earlier versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain.models import packed_attention
from drivetrain.models.packed_attention import PackedRow
from drivetrain.pretrained import families

NORM_EPS, INITIAL_STD = 1e-12, 0.02


class EncoderOutput(NamedTuple):
    """Output of an encoder, by its name in transformers."""

    last_hidden_state: Tensor


class Embeddings(nn.Module):
    """Embeds token ids (N, tokens) as hidden states (N, tokens, width), with their positions and one token type."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, positions = config.hidden_size, config.max_position_embeddings
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.register_buffer("position_ids", torch.arange(positions)[None], persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        summed = self.word_embeddings(input_ids) + self.token_type_embeddings(torch.zeros_like(input_ids))
        position_ids = self.get_buffer("position_ids")[:, : input_ids.shape[1]]
        return self.dropout(self.LayerNorm(summed + self.position_embeddings(position_ids)))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Attention of several heads over hidden states (N, tokens, width)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.head_width = width // config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, hidden: Tensor, mask: Tensor | None, packed_row: PackedRow | None) -> Tensor:
        layers = (self.query, self.key, self.value)
        query, key, value = (layer(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in layers)
        scale = self.head_width**-0.5
        if packed_row is None:
            attended = functional.scaled_dot_product_attention(query, key, value, mask, scale=scale).transpose(1, 2)
        else:
            attended, _ = packed_attention.attend(self, query, key, value, None, scaling=scale, packed_row=packed_row)
        return attended.contiguous().flatten(-2)


class Output(nn.Module):
    """A linear layer whose outputs are added to hidden states."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(inputs)) + hidden)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A layer of the encoder: attention, and two linear layers for each token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, wide = config.hidden_size, config.intermediate_size
        self.attention = nn.ModuleDict({"self": SelfAttention(config), "output": Output(width, config)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, wide)})
        self.output = Output(wide, config)

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *, packed_row: PackedRow | None = None) -> Tensor:
        """Compute the layer's hidden states (N, tokens, width).

        Args:
            hidden: hidden states of the previous layer.
            mask: (N, 1, 1, tokens), true for real tokens; None if all tokens are real.
            packed_row: positions of the texts in the single row, if they are packed.
        """
        hidden = self.attention["output"](self.attention["self"](hidden, mask, packed_row), hidden)
        return self.output(functional.gelu(self.intermediate["dense"](hidden)), hidden)  # type: ignore[no-any-return]


class Bert(nn.Module):
    """The encoder; it can replace the encoders of transformers, and `config` uses their names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        # The layers accept packed texts without further settings.
        self.config = SimpleNamespace(**config, _attn_implementation=packed_attention.ATTENTION_NAME)
        self.embeddings = Embeddings(self.config)
        layers = nn.ModuleList(Layer(self.config) for _ in range(self.config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        # It is unused, but its random numbers are drawn before the random numbers of the heads.
        self.pooler: nn.Module | None = nn.Linear(self.config.hidden_size, self.config.hidden_size)
        self.apply(_initialize)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        packed_row: PackedRow | None = None,
    ) -> EncoderOutput:
        """Encode token ids (N, tokens), or the hidden states `inputs_embeds` instead of embedded ids."""
        hidden = self.embeddings(input_ids if inputs_embeds is None else inputs_embeds)
        for layer in self.encoder["layer"]:  # type: ignore[attr-defined]
            hidden = layer(hidden, attention_mask, packed_row=packed_row)
        return EncoderOutput(hidden)


@torch.no_grad()
def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        module.weight.normal_(std=INITIAL_STD)
    if isinstance(module, nn.Linear):
        module.bias.zero_()
    elif isinstance(module, nn.Embedding) and module.padding_idx is not None:
        module.weight[module.padding_idx].zero_()


def can_build(config: Mapping[str, object]) -> bool:
    """Return whether the configuration comes from `families.make_bert_config`, and not from another BERT."""
    usual = families.make_bert_config(vocabulary=1, pad=0, longest=1, layers=1, width=1, heads=1, dropout=0.0)
    fixed = ("model_type", "attention_probs_dropout_prob", "type_vocab_size")
    return config.keys() == usual.keys() and all(config[name] == usual[name] for name in fixed)
