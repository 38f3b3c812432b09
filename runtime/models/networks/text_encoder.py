"""Text classifiers: an encoder from the transformers library, pooling, and one linear output per head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from runtime.models import encoder_tail, packed_attention
from runtime.models.frozen_split import FrozenSplit
from runtime.pretrained import families
from runtime.pretrained.folder import ENCODERS, Pretrained, quiet


class TextNetwork(nn.Module):
    """An encoder with one linear output per head.

    Inputs are token ids, token types if the tokenizer has them for these texts, and attention mask, all (N, tokens)
    int64. The output is a dict of (N, classes) by head name, or the tensor alone for a single head with the empty name.
    """

    INPUT_NAMES: ClassVar = {2: ("ids", "mask"), 3: ("ids", "types", "mask")}
    """By number of inputs."""

    def __init__(self, encoder: nn.Module, outputs: Mapping[str, int], pooling: str, dropout: float) -> None:
        super().__init__()
        # The pooler is unused; its weights would be saved and optimized for nothing.
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None  # type: ignore[assignment]
        self.encoder, self.pooling, self.names = encoder, pooling, tuple(outputs)
        self.dropout = nn.Dropout(dropout)
        width = encoder.config.hidden_size  # type: ignore[union-attr]
        self.heads = nn.ModuleList(nn.Linear(width, classes) for classes in outputs.values())  # type: ignore[arg-type]
        for head in self.heads:
            nn.init.normal_(head.weight, std=0.02)  # type: ignore[arg-type]
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]

    def forward(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        return self.outputs(self.pooled(self._hidden(*inputs), inputs[-1]))

    def _hidden(self, *inputs: Tensor) -> Tensor:
        return self.encoder(**encoder_tail.named(inputs)).last_hidden_state  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """One vector per text, (N, width)."""
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1)

    def outputs(self, vector: Tensor) -> Tensor | dict[str, Tensor]:
        """The outputs of all heads, by name."""
        vector = self.dropout(vector)
        outputs: dict[str, Tensor] = {name: head(vector) for name, head in zip(self.names, self.heads, strict=True)}
        return outputs.get("", outputs)

    def packed(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        """As `forward`, but the layers compute only the real tokens, without padding."""
        assert isinstance(self.layers, nn.ModuleList), "tried before, where the layers are counted"
        upper = UpperLayers(self, encoder_tail.tail(self.encoder, self.embeddings, self.layers, 0))
        return upper.packed(encoder_tail.entering(self.encoder, self.layers[0], inputs), inputs[-1])

    def divided(self, *inputs: Tensor) -> FrozenSplit | None:
        """Split before the first trainable layer; if the whole encoder is frozen, behind its pooled vectors."""
        encoder, layers, embeddings = self.encoder, self.layers, self.embeddings
        if not any(p.requires_grad for p in encoder.parameters()):
            return FrozenSplit(
                "the whole encoder",
                lambda *inputs: (self.pooled(self._hidden(*inputs), inputs[-1]),),
                self.outputs,
            )
        count = encoder_tail.untrained(encoder, layers, inputs) if isinstance(layers, nn.ModuleList) else 0
        if not count or not isinstance(layers, nn.ModuleList) or count == len(layers):
            return None
        upper = UpperLayers(self, encoder_tail.tail(encoder, embeddings, layers, count))
        return FrozenSplit(
            f"the embeddings and {count} of {len(layers)} layers",
            lambda *inputs: (encoder_tail.entering(encoder, layers[count], inputs), inputs[-1]),
            upper.padded,
            upper.packed,
        )

    @property
    def embeddings(self) -> nn.Module:
        """The module that `freeze: {embeddings: true}` freezes."""
        found = getattr(self.encoder, "embeddings", None)
        return found if isinstance(found, nn.Module) else self.encoder.get_input_embeddings()  # type: ignore[operator]

    @property
    def layers(self) -> nn.Module | None:
        """The layers that `freeze: {layers: N}` counts; None if the encoder shares one layer's weights."""
        count = getattr(self.encoder.config, "num_hidden_layers", 0)
        lists = (part for part in self.encoder.modules() if isinstance(part, nn.ModuleList))
        return next((part for part in lists if len(part) == count), None)


@dataclass(frozen=True)
class UpperLayers:
    """The upper layers of a network and its heads; takes the first layer's input and the mask."""

    network: TextNetwork
    layers: Callable[..., Any]

    def padded(self, hidden: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """The outputs from padded hidden states (N, tokens, width)."""
        return self._outputs(self.layers(inputs_embeds=hidden, attention_mask=mask).last_hidden_state, mask)

    def packed(self, hidden: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """The outputs, computed from the real tokens only."""
        return self._outputs(packed_attention.through(self.layers, self.network.encoder.config, hidden, mask), mask)

    def _outputs(self, hidden: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        return self.network.outputs(self.network.pooled(hidden, mask))


def build(*, config: Mapping[str, object], outputs: Mapping[str, int], pooling: str, dropout: float) -> nn.Module:
    """Build the network with random weights. Arguments are plain values, stored in `model/`.

    Args:
        config: of the encoder, as in the config.json of transformers.
        outputs: number of classes by head name.
        pooling: `cls` or `mean`.
        dropout: rate before the outputs.

    Raises:
        ValueError: if the library would load more than the configuration.
    """
    if entry := families.entry_from_elsewhere(config):
        raise ValueError(f"{entry} would load something from elsewhere")
    settings = {name: value for name, value in config.items() if name != "model_type"}
    with quiet() as transformers:
        made = transformers.AutoModel.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **settings), trust_remote_code=False
        )
    return TextNetwork(made, outputs, pooling, dropout)


def probe(network: TextNetwork, found: Pretrained, longest: int, *, types: bool) -> None:
    """Run one text of the maximum length through the network, with token types or without.

    Raises:
        SpecError: if the encoder cannot process it.
    """
    ones = torch.ones(1, longest, dtype=torch.int64)
    network.eval()
    try:
        with quiet(), torch.inference_mode():
            network(*[ones] * (3 if types else 2))
    except Exception as error:  # networks of the library raise anything; all of it means that the length does not fit
        found.refuse(
            f"{found.folder} is a {found.config.model_type}, which does not accept texts of {longest} tokens here: "
            f"{type(error).__name__}: {str(error)[:200]}",
            ENCODERS,
            "use another folder",
        )
    network.train()
