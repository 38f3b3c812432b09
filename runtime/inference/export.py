"""`drivetrain export`: a trained network as ONNX, compared with the original, and a JSON with all that a caller needs.

The ONNX file contains the network only: it takes preprocessed inputs and returns raw outputs. The JSON of the same name
describes the preprocessing and the meaning of the outputs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import CheckpointError, DeviceError
from runtime.inference import thread_limits
from runtime.system.files import storage_error, write_json

if TYPE_CHECKING:
    from runtime.data.dataset import Head, Inputs
    from runtime.models.saved_model import SavedModel

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
CLOSE = 1e-4
"""Largest difference that counts as agreement."""
TRACED, TRIED = 3, (1, 5)
"""Samples in the export's example, and other batch sizes with which the file is tested."""


@dataclass(frozen=True)
class ExportRequest:
    """The options of `drivetrain export`."""

    run: Path
    output: Path | None = None
    """model.onnx in the run if None."""
    data: Path | None = None
    """Samples for the comparison; random ones if None."""
    run_code: bool = False
    """Whether the code of a model folder outside of its run may be run."""
    csv: Mapping[str, str] = field(default_factory=dict)
    """How CSV files are written, with the keys of `data.csv`."""


def export(request: ExportRequest) -> int:
    """Write the ONNX file and its JSON; returns 0.

    Raises:
        DeviceError: if a package is missing.
        CheckpointError: if there is no trained model, it cannot be exported, or the file computes other outputs.
        StorageError: if the output cannot be written.
    """
    _check_packages()
    thread_limits.limit()
    from runtime.inference import onnx_file
    from runtime.models import saved_model

    trained = saved_model.load(request.run, consent=request.run_code)
    output = request.output or request.run / "model.onnx"
    first, *others = _examples(trained, request.data, request.csv)
    names = onnx_file.input_names(trained.network, len(first)), [name or "output" for name in trained.heads]
    network = onnx_file.FlatOutputs(trained.network, tuple(trained.heads))
    beside = output.with_name(f".{os.getpid()}-{output.name}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        onnx_file.write(network, first, names, trained.preprocessing.get("max_length"), beside)
        worst = onnx_file.difference(network, beside, others)
        if worst > CLOSE:
            raise CheckpointError(
                f"the outputs of {output} differ by {worst:.2g} from those of the network",
                f"at most {CLOSE:g}",
                "use the model with `drivetrain predict`, and report this network as a bug",
            )
        beside.replace(output)
        write_json(output.with_suffix(".json"), _description(trained, first, names))
    except OSError as error:
        raise storage_error(output, error) from None
    finally:
        beside.unlink(missing_ok=True)
    _tell(output, request.data, others, worst)
    return 0


def _check_packages() -> None:
    missing = [name for name in ("torch", *PACKAGES) if importlib.util.find_spec(name) is None]
    if missing:
        raise DeviceError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here",
            f"export needs torch and {', '.join(PACKAGES)}, which the images do not contain",
            f"`make setup`, or pip install {' '.join(missing)}, here or where model/ is copied to",
        )


def _examples(trained: SavedModel, data: Path | None, csv: Mapping[str, str]) -> list[Inputs]:
    """Preprocessed inputs of several batch sizes, and for texts of several lengths."""
    from runtime.data import load_new
    from runtime.inference import dummy_inputs

    if data is None:
        return [dummy_inputs.inputs(trained.preprocessing, count, seed=count) for count in (TRACED, *TRIED)]
    import numpy as np

    read = load_new.read([data], trained.preprocessing, trained.heads, labelled=False, csv=csv)
    found, start = [], 0
    for count in (TRACED, *TRIED):
        ids = np.arange(start, start + count, dtype=np.int64) % len(read.split)
        found.append(read.prepare(read.split.gather(ids), ids, None))
        start += count
    return found


def _description(trained: SavedModel, inputs: Inputs, names: tuple[list[str], list[str]]) -> dict[str, object]:
    axes = ["batch", "length"] if "max_length" in trained.preprocessing else ["batch"]
    return {
        "task": trained.task,
        "trained": trained.trained,
        "inputs": [
            {"name": name, "type": str(x.dtype).removeprefix("torch."), "shape": [*axes, *x.shape[len(axes) :]]}
            for name, x in zip(names[0], inputs, strict=True)
        ],
        "outputs": [_output(name, head) for name, head in zip(names[1], trained.heads.values(), strict=True)],
        "preprocessing": trained.preprocessing,
    }


def _output(name: str, head: Head) -> dict[str, object]:
    known = asdict(head)
    if not head.classes:
        return {
            "name": name,
            **{key: known[key] for key in ("columns", "mean", "std")},
            "meaning": "a number is output * std + mean",
        }
    meaning = "the probability of each class is the sigmoid" if head.several else "probabilities are the softmax"
    return {"name": name, "classes": head.classes, "meaning": meaning}


def _tell(output: Path, data: Path | None, others: list[Inputs], worst: float) -> None:
    tried = " and ".join(str(len(inputs[0])) for inputs in others)
    source = f"samples of {data}" if data else "random samples"
    print(
        f"{output}: {output.stat().st_size / 1e6:.2f} MB; under onnxruntime, with {tried} {source}, outputs differ "
        f"from the network's by {worst:.1g} at most"
    )
    print(f"{output.with_suffix('.json')}: how inputs are prepared and what the outputs mean")
