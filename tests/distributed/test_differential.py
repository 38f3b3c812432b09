"""Whatever is switched on, and however many processes: the same losses as one plain process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain.optimizations import precision
from tests import ranks_cases, task_cases, tiny

LAYOUTS = ["+".join(filter(None, parts)) for parts in product(("plain", "norm"), ("", "channels_last"), ("", "fused"))]

OWN = ["plain+unseeded", "norm+unseeded", "plain+unlike", "plain+larger"]
"""What code of the user's own may do in each process: other first weights, other targets, another network."""


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[float]]]:
    """Compute the losses of all layouts by the number of processes; one process gives BatchNorm halves, as two would."""
    cases = [f"convolutional/{name}" for name in (*LAYOUTS, *OWN)]
    losses_by_count = {}
    for count in (1, 2):
        suffix = ["", "+halves"][count == 1]
        losses_by_rank = ranks_cases.run_cases(
            tmp_path_factory.mktemp(str(count)), [case + suffix for case in cases], count
        )
        assert all(one == losses_by_rank[0] for one in losses_by_rank)
        losses_by_count[count] = {
            case.removeprefix("convolutional/").removesuffix(suffix): values
            for case, values in losses_by_rank[0].items()
        }
    return losses_by_count


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2])
def test_layouts_and_fused_kernels_change_nothing(
    convolutional: dict[int, dict[str, list[float]]], name: str, count: int
) -> None:
    plain = convolutional[1][name.split("+")[0]]
    assert plain[-2] < plain[0], "it learns"
    np.testing.assert_allclose(convolutional[count][name], plain, rtol=1e-9)


@pytest.mark.parametrize("name", ["plain", "norm"])
def test_initial_weights_are_those_of_rank_0(convolutional: dict[int, dict[str, list[float]]], name: str) -> None:
    np.testing.assert_allclose(convolutional[2][f"{name}+unseeded"], convolutional[1][name], rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plain+unlike", "process 2 of 2 has different samples than process 1"),
        ("plain+larger", "process 2 of 2 has different weights or buffers than"),
    ],
)
def test_processes_that_read_or_build_something_else_are_refused(
    convolutional: dict[int, dict[str, Any]], name: str, message: str
) -> None:
    assert message in convolutional[2][name]


TASKS = [*(name.replace(" ", "-") for name in task_cases.CASES), "own"]
FAST = ["fused_optimizer=true", "fused_optimizer=true+precision=bf16"]
"""What is on; channels_last is added where there are images."""


def losses_of_tasks(folder: Path, ways: Sequence[str], seconds: float = 300) -> dict[str, dict[str, list[float]]]:
    """By task: the losses of one plain process that takes the halves of each batch in turn, and of all ways in two."""
    for name, case in task_cases.CASES.items():
        home = folder / "data" / name.replace(" ", "-")
        home.mkdir(parents=True)
        case.files(home)
        (home / "job.yaml").write_text(f"name: t\n{case.text}{task_cases.COMMON}")

    def run_ways(count: int, ways: Sequence[str]) -> dict[str, list[float]]:
        cases = [f"task/{name}+{way}" for name in TASKS for way in ways]
        cases = [case + "+channels_last=true" * ("image" in case and "fused" in case) for case in cases]
        (folder / str(count)).mkdir()
        losses = ranks_cases.run_cases(folder / str(count), cases, count, seconds=seconds)[0]
        return dict(zip(product(TASKS, ways), losses.values(), strict=True))  # type: ignore[arg-type]

    alone, together = run_ways(1, ["halves", *(f"{way}+halves" for way in ways)]), run_ways(2, ["", *ways])
    return {
        task: {"alone": alone[task, "halves"]}
        | {f"1 {way}": alone[task, f"{way}+halves"] for way in ways}
        | {f"2 {way}": together[task, way] for way in ("", *ways)}
        for task in TASKS
    }


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[float]]]:
    return losses_of_tasks(
        tmp_path_factory.mktemp("tasks"),
        FAST if precision.refuse(tiny.job(), tiny.machine(), None, "bf16") is None else FAST[:1],
    )


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_the_same_for_one_process_and_for_two(tasks: dict[str, Any], task: str) -> None:
    plain = tasks[task].pop("alone")
    for way, losses in tasks[task].items():
        # bf16 rounds in the third digit, and AdamW's first steps magnify it; all else is computed in float64.
        np.testing.assert_allclose(losses, plain, rtol=0.05 if "bf16" in way else 1e-6, err_msg=way)


@pytest.mark.nightly
def test_every_task_is_the_same_compiled(tmp_path: Path) -> None:
    for task, losses_by_way in losses_of_tasks(tmp_path, ["compile=true+fused_optimizer=true"], 3600).items():
        plain = losses_by_way.pop("alone")
        for way, losses in losses_by_way.items():
            np.testing.assert_allclose(losses, plain, rtol=1e-6, err_msg=f"{task} {way}")
