"""Builds text classifiers: an encoder (built-in or from transformers), pooling, and a linear output per head."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Inputs, find_known_lengths
from drivetrain.job.text import Pooling
from drivetrain.models import packed_attention
from drivetrain.models.frozen_split import FrozenSplit
from drivetrain.models.networks import bert
from drivetrain.models.networks.hf_vision import build_untrained
from drivetrain.pretrained.folder import ENCODERS, Pretrained, quiet_transformers


class _LayerReached(Exception):
    """Raised by a hook to stop the forward pass at a layer."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class PassedEmbeddings(nn.Module):
    """Replacement for the embeddings of an encoder, which returns the hidden states that are passed to it."""

    def forward(self, *args: object, **named: object) -> Tensor:
        """Return the hidden states (N, tokens, width), the only floating-point argument; all others are indices."""
        (hidden,) = [x for x in (*args, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        return hidden


def name_inputs(encoder: nn.Module, inputs: Inputs) -> dict[str, Tensor | None]:
    """Name the inputs of a text network (ids, token types if it has them, and mask) as in transformers."""
    ids, *types, mask = inputs
    arguments = {"input_ids": ids, "attention_mask": reduce_mask(encoder.config, mask)}
    return arguments | ({"token_type_ids": types[0]} if types else {})


def count_untrained(encoder: nn.Module, layers: nn.ModuleList, inputs: Inputs) -> int:
    """Count the first layers whose output needs no gradient."""
    inputs_need_gradient: list[bool] = []

    def note_input(_: nn.Module, args: tuple[object, ...], keywords: dict[str, object]) -> None:
        inputs_need_gradient.append(_get_hidden(args, keywords).requires_grad)

    with contextlib.ExitStack() as hooks, torch.enable_grad():
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(note_input, with_kwargs=True))
        last = encoder(**name_inputs(encoder, inputs)).last_hidden_state
    if not last.requires_grad:
        return len(layers)
    # The output of a layer is the input of the next layer.
    return [*inputs_need_gradient[1:], True].index(True)


def compute_layer_input(encoder: nn.Module, layer: nn.Module, inputs: Inputs) -> Tensor:
    """Compute the input of a layer, hidden states (N, tokens, width), without computing the layers above it."""

    def stop_at_layer(_: nn.Module, args: tuple[object, ...], keywords: dict[str, object]) -> None:
        raise _LayerReached(_get_hidden(args, keywords))

    with layer.register_forward_pre_hook(stop_at_layer, with_kwargs=True):
        try:
            encoder(**name_inputs(encoder, inputs))
        except _LayerReached as layer_input:
            return layer_input.hidden
    raise AssertionError("an encoder calls all of its layers")


def build_upper_encoder(
    encoder: nn.Module, embeddings: nn.Module, layers: nn.ModuleList, skipped: int
) -> Callable[..., Any]:
    """Build the encoder without its embeddings and `skipped` layers; it takes hidden states as `inputs_embeds`.

    It shares the encoder's modules with their weights and training mode; only the modules around them are copied.
    """
    upper = _replace(encoder, _find_path(encoder, layers), nn.ModuleList(list(layers)[skipped:]))
    return _replace(upper, _find_path(encoder, embeddings), PassedEmbeddings())


def _get_hidden(args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return args[0] if args else keywords["hidden_states"]  # type: ignore[no-any-return]


def _find_path(root: nn.Module, searched: nn.Module) -> list[str]:
    names: list[str] = [name for name, module in root.named_modules() if module is searched]
    return names[0].split(".")


def _replace(module: nn.Module, path: list[str], replacement: nn.Module) -> nn.Module:
    """Copy the modules along a path, and replace the last one; all other modules are shared."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    name, *remaining_path = path
    child = module._modules[name]
    assert child is not None
    copied._modules[name] = _replace(child, remaining_path, replacement) if remaining_path else replacement
    return copied


ENCODERS_PASSING_MASKS = (
    *packed_attention.PACKABLE_ENCODERS,
    "albert",
    "data2vec-text",
    "ernie",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
)
"""Encoders that pass a mask of four dimensions unchanged to the attention of every layer. Others derive several masks
from a mask of two dimensions, as for windows of tokens, or search for padding themselves if there is no mask."""


def reduce_mask(config: Any, mask: Tensor) -> Tensor | None:
    """Return the mask to pass as `attention_mask`; None if the host knows that nothing is padded.

    transformers reads on the host whether a mask of two dimensions is all true, and so waits for the GPU.

    Args:
        config: configuration of the encoder.
        mask: (N, tokens), 1 for real tokens, which come first.
    """
    # Only torch's attention and ours accept booleans; the mask of a decoder must also hide later tokens.
    takes_booleans = config._attn_implementation in ("sdpa", packed_attention.ATTENTION_NAME)
    is_decoder = getattr(config, "is_decoder", False)
    if not takes_booleans or is_decoder or config.model_type not in ENCODERS_PASSING_MASKS:
        return mask
    # A compiled or exported network must also work for other texts.
    lengths = None if torch.compiler.is_compiling() else find_known_lengths(mask)
    if lengths is not None and len(lengths) and lengths.min() == mask.shape[1]:
        return None
    return mask[:, None, None].bool()


class TextNetwork(nn.Module):
    """An encoder with one linear output per head.

    Inputs are token ids, token types if the tokenizer has them for these texts, and attention mask, all (N, tokens)
    int64. The output is a dict of (N, classes) by head name, or the tensor alone for a single head with the empty name.
    """

    INPUT_NAMES: ClassVar = {2: ("ids", "mask"), 3: ("ids", "types", "mask")}
    """Names of the inputs by number of inputs."""

    def __init__(self, encoder: nn.Module, outputs: Mapping[str, int], pooling: str, dropout: float) -> None:
        super().__init__()
        # The pooler is unused and need not be saved and optimized.
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
        return self.encoder(**name_inputs(self.encoder, inputs)).last_hidden_state  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool hidden states (N, tokens, width) to one vector per text, (N, width)."""
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "max":
            return hidden.masked_fill(mask.unsqueeze(2) == 0, torch.finfo(hidden.dtype).min).amax(dim=1)
        weights = mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1)

    def outputs(self, vector: Tensor) -> Tensor | dict[str, Tensor]:
        """Compute the outputs of all heads by name from vectors (N, width)."""
        vector = self.dropout(vector)
        outputs: dict[str, Tensor] = {name: head(vector) for name, head in zip(self.names, self.heads, strict=True)}
        return outputs.get("", outputs)

    def packed(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        """Compute the outputs of `forward`, but only the real tokens in the layers, without padding."""
        assert isinstance(self.layers, nn.ModuleList), "a trial of packing has counted the layers"
        upper = UpperLayers(self, build_upper_encoder(self.encoder, self.embeddings, self.layers, 0))
        return upper.packed(compute_layer_input(self.encoder, self.layers[0], inputs), inputs[-1])

    def split_at_frozen(self, *inputs: Tensor) -> FrozenSplit | None:
        """Split before the first trainable layer; if the whole encoder is frozen, after its pooled vectors."""
        encoder, layers, embeddings = self.encoder, self.layers, self.embeddings
        if not any(p.requires_grad for p in encoder.parameters()):
            return FrozenSplit(
                "the whole encoder",
                lambda *inputs: (self.pooled(self._hidden(*inputs), inputs[-1]),),
                self.outputs,
            )
        count = count_untrained(encoder, layers, inputs) if isinstance(layers, nn.ModuleList) else 0
        if not count or not isinstance(layers, nn.ModuleList) or count == len(layers):
            return None
        upper = UpperLayers(self, build_upper_encoder(encoder, embeddings, layers, count))
        return FrozenSplit(
            f"the embeddings and {count} of {len(layers)} layers",
            lambda *inputs: (compute_layer_input(encoder, layers[count], inputs), inputs[-1]),
            upper.padded,
            upper.packed,
        )

    @property
    def embeddings(self) -> nn.Module:
        """The module that `freeze: {embeddings: true}` freezes."""
        module = getattr(self.encoder, "embeddings", None)
        return module if isinstance(module, nn.Module) else self.encoder.get_input_embeddings()  # type: ignore[operator]

    @property
    def layers(self) -> nn.Module | None:
        """The layers counted by `freeze: {layers: N}`; None if the encoder shares one layer's weights."""
        count = getattr(self.encoder.config, "num_hidden_layers", 0)
        lists = (module for module in self.encoder.modules() if isinstance(module, nn.ModuleList))
        return next((layers for layers in lists if len(layers) == count), None)


@dataclass(frozen=True)
class UpperLayers:
    """The upper layers of a network and its heads, which take the input of the first of these layers and the mask."""

    network: TextNetwork
    layers: Callable[..., Any]

    def padded(self, hidden: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """Compute the outputs from padded hidden states (N, tokens, width)."""
        encoder_mask = reduce_mask(self.network.encoder.config, mask)
        return self._outputs(self.layers(inputs_embeds=hidden, attention_mask=encoder_mask).last_hidden_state, mask)

    def packed(self, hidden: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """Compute the outputs from the real tokens only."""
        return self._outputs(
            packed_attention.encode_packed(self.layers, self.network.encoder.config, hidden, mask), mask
        )

    def _outputs(self, hidden: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        return self.network.outputs(self.network.pooled(hidden, mask))


def build(*, config: Mapping[str, object], outputs: Mapping[str, int], pooling: Pooling, dropout: float) -> nn.Module:
    """Build the network with random weights. Arguments are plain values, stored in `model/`.

    Args:
        config: configuration of the encoder, as in the config.json of transformers.
        outputs: number of classes by head name.
        pooling: kind of pooling to a text's vector.
        dropout: rate before the outputs.

    Raises:
        ValueError: if the library would load more than the configuration.
    """
    encoder = bert.Bert(config) if bert.can_build(config) else build_untrained(config)
    return TextNetwork(encoder, outputs, pooling, dropout)


def check_text_length(network: TextNetwork, source: Pretrained, longest: int, *, types: bool) -> None:
    """Check that the network accepts a text of `longest` tokens, with or without token types.

    Raises:
        SpecError: if the encoder cannot process it.
    """
    ones = torch.ones(1, longest, dtype=torch.int64)
    network.eval()
    try:
        with quiet_transformers(), torch.inference_mode():
            network(*[ones] * (3 if types else 2))
    except Exception as error:  # the library's networks may raise anything; here it means that the length does not fit
        source.refuse(
            f"{source.folder} is a {source.config.model_type}, which does not accept texts of {longest} tokens here: "
            f"{type(error).__name__}: {str(error)[:200]}",
            ENCODERS,
            "use another folder",
        )
    network.train()
