"""Builds networks with a function of the user, and checks them on a few samples before training.

The function is called with the `arguments` of the spec. It also gets these values if its signature has their names and
`arguments` do not set them:

    outputs      number of outputs per sample; by head name, if there are several heads
    classes      the same for a classification
    inputs       shape of each input of one sample, as a list of lists; for texts the shape of the longest text
    vocabulary   number of tokens (texts)
    categories   number of indices of each categorical column (tables)

The network is called with the inputs of a batch, one argument each. It returns (N, outputs), or a mapping of head names
to such tensors if there are several heads.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from drivetrain.data import stateless_random
from drivetrain.data.custom import user_code
from drivetrain.data.custom.map_dataset import describe
from drivetrain.data.custom.user_errors import blame_user_code, describe_error, list_user_lines, suggest_action
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.data.tables import features
from drivetrain.errors import CheckpointError, DrivetrainError
from drivetrain.job import Job
from drivetrain.job.custom import list_user_functions
from drivetrain.job.model import CustomModel
from drivetrain.job.user_files import UserFunction
from drivetrain.models import buffers, dry_run
from drivetrain.models.code_consent import load_code
from drivetrain.system import torch_errors
from drivetrain.system.console import say_aside

KEY = ("model", "file")


def build(job: Job, spec: CustomModel, dataset: Dataset) -> tuple[nn.Module, dict[str, object]]:
    """Build the network of the job's file; also returns the values that `rebuild` needs to build it again.

    Raises:
        SpecError: if the user's code raises or the network does not fit the data.
    """
    name = f"{spec.factory}() in {spec.file}"
    batch = dry_run.take_first_batch(dataset, dataset.train)
    # The user's code may have used random numbers to read the samples, so seed again.
    torch.manual_seed(stateless_random.derive_key(job.train.seed, "weights"))
    with blame_user_code(partial(job.spec_error, KEY), f"{name} raised"):
        code = user_code.open_code(job.folder)
        arguments = code.with_copies(spec.arguments)
        with code.watch_opens() as opened:
            factory = code.bind(spec.file, spec.factory, arguments, _describe_data(dataset, batch))
            module = factory()
    if opened:
        file = min(opened)
        raise job.spec_error(
            KEY,
            f"{name} opens {file}, which is not stored with the model",
            "files that `model.arguments` names: a model is built again from their copies",
            f"let {spec.factory}() take the path as an argument, and set model.arguments: {{path: {file}}}",
        )
    if not isinstance(module, nn.Module):
        action = "return an instance: add ()" if isinstance(module, type) else "return the network"
        raise job.spec_error(KEY, f"{name} returned {describe(module)}", "a torch.nn.Module", action)
    if isinstance(module, nn.DataParallel):
        description = f"{name} returned a DataParallel, which copies the network to every GPU in every step"
        raise job.spec_error(
            KEY,
            description,
            "the network itself; limits: {gpus: all} starts one process for each GPU",
            "return it without DataParallel",
        )
    buffers.unshare(module)
    dry_run.check_network(module, dataset, f"the network of {name}", lambda *texts: job.spec_error(KEY, *texts))
    inputs = [{"shape": list(x.shape[1:]), "type": str(x.dtype).removeprefix("torch.")} for x in batch.inputs]
    arguments = factory.keywords | spec.arguments
    return module, {"file": spec.file, "factory": spec.factory, "arguments": arguments, "inputs": inputs}


def rebuild(model: Path, digests: Mapping[str, str], origin: Mapping[str, Any], *, consent: bool = False) -> nn.Module:
    """Build the network of a `model/` folder from its stored code.

    Args:
        model: model folder.
        digests: SHA-256 of each code file.
        origin: file, factory, arguments, and the inputs of one sample.
        consent: whether the user agreed to run the code of a model that is outside of its run folder.

    Raises:
        CheckpointError: if the code may not be run, differs from the recorded digests, or raises.
    """
    code, name = load_code(model, digests, consent=consent), f"{origin['factory']}() in {origin['file']}"
    stored = model.resolve() / "code"
    say_aside(f"running the model's own code: {origin['file']} in {stored}")
    possible = "the Python and the libraries of the training"
    with blame_user_code(CheckpointError, f"{name} raised", possible, action=""):
        try:
            module = code.bind(origin["file"], origin["factory"], code.with_copies(origin["arguments"]))()
        except FileNotFoundError as error:
            raise _missing_file_error(error, stored, code.folder, name) from error
    if not isinstance(module, nn.Module):
        raise CheckpointError(f"{name} returned {describe(module)}", "a torch.nn.Module")
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        # Lazy parameters are initialized by the first inputs.
        with torch.no_grad():
            module.eval()(*(torch.zeros(2, *x["shape"], dtype=getattr(torch, x["type"])) for x in origin["inputs"]))
    buffers.unshare(module)
    return module


def _missing_file_error(error: FileNotFoundError, stored: Path, folder: Path, name: str) -> Exception:
    """Return the error for a file next to the code that was not copied with it; `error` for any other file."""
    path = Path(str(error.filename))
    if not path.is_relative_to(folder):
        return error
    file = path.relative_to(folder)
    return CheckpointError(
        f"{name} opens {file}, which is not in {stored}",
        "files that were copied with the code, because `model.arguments` names them",
        f"name {file} in `model.arguments` and train again, or copy it to {stored / file}",
    )


def _describe_data(dataset: Dataset, batch: Batch) -> dict[str, object]:
    """Return the values about the data that a factory may take, as plain JSON values."""
    counts = {name: head.outputs for name, head in dataset.heads.items() if head.outputs}
    outputs: Any = counts.get("", counts)
    facts: dict[str, object] = {"inputs": [list(x.shape[1:]) for x in batch.inputs]}
    if outputs:
        facts["outputs"] = outputs
    if outputs and all(head.classes for head in dataset.heads.values()):
        facts["classes"] = outputs
    if "vocabulary" in dataset.preprocessing:
        # The inputs of a batch are only as long as its longest text.
        facts["inputs"] = [[dataset.preprocessing["max_length"]] for _ in batch.inputs]
        facts["vocabulary"] = dataset.preprocessing["vocabulary"]
    if "categorical" in dataset.preprocessing:
        facts["categories"] = features.from_json(dataset.preprocessing).sizes
    return facts


@contextlib.contextmanager
def blame_job_code(job: Job) -> Iterator[None]:
    """Turn errors of the user's network or loss in the block into errors that show the user's own lines.

    Raises:
        SpecError: instead of the original exception.
    """
    try:
        yield
    except DrivetrainError:
        raise
    except Exception as error:
        lines = list_user_lines(error)
        is_users = any(list_user_functions(job)) and (lines or _is_network_running(job, error))
        if torch_errors.is_out_of_memory(error) or not is_users:
            raise
        key, function = _find_blamed_function(job, lines)
        description = f"the object returned by {function.factory}() in {function.file} raised {describe_error(error)}"
        raise job.spec_error((*key, "file"), description, "", suggest_action(error)) from error


def _is_network_running(job: Job, error: BaseException) -> bool:
    """Return whether the user's network was running when the error was raised.

    If torch's layers raised it, the traceback may contain no line of the user.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(getattr(job, "model", None), CustomModel) and any(
        isinstance(frame.f_locals.get("self"), nn.Module) for frame, _ in frames
    )


def _find_blamed_function(job: Job, lines: Sequence[str]) -> tuple[tuple[str, ...], UserFunction]:
    """Find the job key and function whose file is in the traceback, else the first user function."""
    functions = [(key, function) for key, function, _ in list_user_functions(job)]
    for key, function in functions:
        if any(f" {function.file}:" in line for line in lines):
            return key, function
    return functions[0]
