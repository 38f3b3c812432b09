"""Writes a network as an ONNX file, and compares the file with the network in onnxruntime."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Head, Inputs
from drivetrain.errors import CheckpointError
from drivetrain.inference.predictions import compute_probabilities


class FlatOutputs(nn.Module):
    """A network that returns a tuple in the order of the heads.

    Args:
        network: the network.
        heads: names of its heads.
        calibrated: heads whose outputs are converted to probabilities, at their temperature.
    """

    def __init__(self, network: nn.Module, heads: Sequence[str], calibrated: Mapping[str, Head] | None = None) -> None:
        super().__init__()
        self.network, self.heads, self.calibrated = network, tuple(heads), dict(calibrated or {})

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.network(*inputs)
        by_head = outputs if isinstance(outputs, Mapping) else dict.fromkeys(self.heads, outputs)
        return tuple(
            compute_probabilities(self.calibrated[name], by_head[name]) if name in self.calibrated else by_head[name]
            for name in self.heads
        )


def list_input_names(network: nn.Module, count: int) -> list[str]:
    """List the network's own names for `count` inputs, or the parameters of its forward, or numbered names."""
    names_by_count = getattr(network, "INPUT_NAMES", {})
    if count in names_by_count:
        return list(names_by_count[count])
    parameters = inspect.signature(network.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return names if len(names) == count else [f"input_{number}" for number in range(1, count + 1)]


def write(
    network: FlatOutputs, inputs: Inputs, names: tuple[list[str], list[str]], longest: int | None, path: Path
) -> None:
    """Write a network with a dynamic batch size.

    Args:
        network: in evaluation mode, on the CPU.
        inputs: an example.
        names: of inputs and outputs.
        longest: for texts the largest number of tokens, the second axis being dynamic; None for other inputs.
        path: the file.

    Raises:
        CheckpointError: if torch cannot export the network.
    """
    # It logs packages that only other kinds of exports need.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    axes = {0: torch.export.Dim("batch")} | ({1: torch.export.Dim("length", max=longest)} if longest else {})
    try:
        with warnings.catch_warnings():
            # Its warnings are about future changes of the exporter itself.
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network,
                inputs,
                dynamo=True,
                dynamic_shapes=(tuple(axes for _ in inputs),),
                verbose=False,
                input_names=names[0],
                output_names=names[1],
            )
    except Exception as error:  # the exporter passes on whatever the network raises when traced
        raise CheckpointError(
            f"torch.export failed: {_find_cause(error)}",
            "networks whose forward pass torch.export can trace",
            "avoid branches that depend on tensor values in forward, or use the model with `drivetrain predict`",
        ) from None
    assert program is not None
    program.save(path)


def compute_difference(network: FlatOutputs, path: Path, batches: Sequence[Inputs]) -> float:
    """Compute the largest difference between the outputs of file and network; relative for outputs above 1."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    worst = 0.0
    for inputs in batches:
        with torch.inference_mode():
            expected = network(*inputs)
        inputs_by_name = {slot.name: x.numpy() for slot, x in zip(session.get_inputs(), inputs, strict=True)}
        for expected_output, file_output in zip(expected, session.run(None, inputs_by_name), strict=True):
            error = (expected_output - torch.from_numpy(file_output)).abs() / expected_output.abs().clamp_min(1)
            worst = max(worst, float(error.max())) if bool(torch.isfinite(error).all()) else float("inf")
    return worst


def _find_cause(error: Exception) -> str:
    """Find the first cause; the exporter wraps it into long advice."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0][:300]}"
