"""One convolution a process, forward and backward, against float64: python -m tests.convolutions THREADS [--as-is].

Reads cases as JSON, one a line; answers each with `ok`, `wrong ...` or `signal N`. `--as-is` leaves torch's own
convolutions in place: this is how their defect is seen.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import nn

from drivetrain.models import strided_convolution
from tests import heap

SECONDS = 30
"""After which a case counts as hanging."""
STEPS = 3
Case = Mapping[str, Any]
PLAIN = {
    "kind": "Conv2d",
    "inputs": 4,
    "outputs": 8,
    "kernel": 1,
    "stride": 2,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "size": 16,
    "batch": 3,
    "channels_last": True,
    "dtype": "float32",
    "compile": False,
}


def cases(**lists: Any) -> Iterator[Case]:
    """The product of lists of values, on top of PLAIN."""
    for values in product(*lists.values()):
        yield {**PLAIN, **dict(zip(lists, values, strict=True))}


def layer(case: Case) -> nn.Module:
    """The convolution of a case."""
    shape = case["inputs"], case["outputs"], case["kernel"], case["stride"], case["padding"]
    if case["kind"] == "ConvTranspose2d":
        return nn.ConvTranspose2d(*shape, output_padding=case["stride"] - 1, groups=case["groups"])
    return getattr(nn, case["kind"])(*shape, dilation=case["dilation"], groups=case["groups"])


def check_case(case: Case, threads: int, rewrite: bool) -> str:
    """What becomes of a case in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    try:
        module = layer(case)
        x = torch.randn(case["batch"], case["inputs"], *[case["size"]] * (1 if case["kind"] == "Conv1d" else 2))
        exact_module, exact_inputs = copy.deepcopy(module).double(), x.double().requires_grad_()
        expected = exact_module(exact_inputs)
    except (RuntimeError, ValueError):
        return "ok"  # no such convolution
    output_gradient = torch.randn(expected.shape)
    expected.backward(output_gradient.double())
    if rewrite:
        strided_convolution.rewrite(module)
    dtype = getattr(torch, case["dtype"])
    module, x = module.to(dtype), x.to(dtype)
    if case["channels_last"] and x.ndim == 4:
        module, x = module.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layer_call = torch.compile(module) if case["compile"] else module
    for _ in range(STEPS):
        module.zero_grad()
        inputs = x.clone().requires_grad_()
        outputs = layer_call(inputs)
        outputs.backward(output_gradient.to(dtype))
        pairs = [(outputs, expected), (inputs.grad, exact_inputs.grad)]
        pairs += [(p.grad, q.grad) for p, q in zip(module.parameters(), exact_module.parameters(), strict=True)]
        for name, (one, other) in zip(("output", "input", "weight", "bias"), pairs, strict=True):
            # The gradient of a bias is a sum, whose parts may cancel one another; its rounding errors do not.
            scale = other.abs().max().clamp(min=0.1 if name == "bias" else 1e-9)
            relative_error = ((one.double() - other).abs().max() / scale).item()
            if not relative_error < (1e-4 if dtype == torch.float32 else 5e-2):
                return f"wrong {name} by {relative_error:.2g}"
    return "ok"


def check_in_child(case: Case, threads: int, rewrite: bool) -> str:
    """The same in a process of its own, which may die of it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            signal.alarm(SECONDS * (4 if case["compile"] else 1))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(writer, check_case(case, threads, rewrite).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text or "no answer"


def answers(tested_cases: list[Case], cap: str, threads: int, *options: str) -> dict[str, str]:
    """What becomes of the cases, where it is not well."""
    text = "".join(f"{json.dumps(case)}\n" for case in tested_cases)
    process = heap.run_module(
        ["tests.convolutions", str(threads), *options], heap.environment(cap, threads), text, 3600
    )
    answer_lines = process.stdout.splitlines()
    assert len(answer_lines) == len(tested_cases), process.stderr[-2000:]
    return {json.dumps(case): answer for case, answer in zip(tested_cases, answer_lines, strict=True) if answer != "ok"}


if __name__ == "__main__":
    for line in sys.stdin:
        print(check_in_child(json.loads(line), int(sys.argv[1]), "--as-is" not in sys.argv), flush=True)
