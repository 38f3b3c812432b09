"""A supervisor's place among several, from the variables that torchrun sets."""

from __future__ import annotations

import ipaddress

import pytest

from drivetrain.distributed import local_processes, placement, world
from drivetrain.distributed.placement import Placement
from drivetrain.errors import DeviceError, SpecError
from drivetrain.hardware.facts import read_hardware
from drivetrain.job import Job
from drivetrain.job.limits import NodeRange
from tests import tiny
from tests.messages import saying
from tests.paths import ROOT

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29511"}
TORCHRUN |= {"LOCAL_WORLD_SIZE": "2"}


def job(nodes: int | NodeRange | None = None, processes: int | None = None) -> Job:
    base_job = tiny.job()
    return base_job.model_copy(
        update={"limits": base_job.limits.model_copy(update={"nodes": nodes, "processes": processes})}
    )


def find_position(environ: dict[str, str], nodes: int | NodeRange | None = None) -> Placement | None:
    return placement.find_placement(environ, job(nodes))


@pytest.mark.parametrize(
    ("environ", "nodes", "expected"),
    [
        (TORCHRUN, None, (4, 3, ("10.0.0.5", 29511), 1, 2, False)),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, 2, (4, 3, ("10.0.0.5", 29511), 1, 2, True)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, 2, (2, 1, ("a", 29500), 0, 1, False)),
    ],
)
def test_the_variables_say_where_this_is(
    environ: dict[str, str], nodes: int | None, expected: tuple[object, ...]
) -> None:
    position = find_position(environ, nodes)
    assert position == Placement(*expected)  # type: ignore[arg-type]
    assert f"{position.index} of {position.supervisors}" in position.describe()


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "1"}, {"SLURM_PROCID": "1"}])
def test_one_machine_trains_alone(environ: dict[str, str]) -> None:
    assert find_position(environ) is None


@pytest.mark.parametrize(
    ("environ", "nodes", "message"),
    [
        (TORCHRUN | {"RANK": "4"}, None, "RANK is 4, and WORLD_SIZE is 4"),
        (TORCHRUN | {"RANK": "-1"}, None, "RANK='-1' in the environment"),
        (TORCHRUN | {"MASTER_ADDR": ""}, None, "MASTER_ADDR is not set"),
        (TORCHRUN, 3, "limits.nodes: is 3, and WORLD_SIZE / LOCAL_WORLD_SIZE is 2"),
        ({}, 2, "limits.nodes: is 2, and RANK and WORLD_SIZE are not set"),
        ({}, NodeRange(least=2), "limits.nodes: is 2 or more, and RANK and WORLD_SIZE are not set"),
        (TORCHRUN, NodeRange(least=3, most=4), "limits.nodes: is 3 to 4, and WORLD_SIZE / LOCAL_WORLD_SIZE is 2"),
    ],
)
def test_contradictions_are_refused(environ: dict[str, str], nodes: int | NodeRange | None, message: str) -> None:
    with pytest.raises(SpecError) as error:
        find_position(environ, nodes)
    assert message in str(error.value)
    assert "possible:" in str(error.value)
    assert "do:" in str(error.value)


@pytest.mark.parametrize("bounds", [NodeRange(least=1), NodeRange(least=2), NodeRange(least=1, most=2)])
def test_a_job_may_leave_the_number_of_machines_open(bounds: NodeRange) -> None:
    assert find_position(TORCHRUN, bounds) is not None
    if bounds.least == 1:
        assert find_position({}, bounds) is None


def test_another_number_of_processes_is_refused() -> None:
    with pytest.raises(SpecError, match=r"limits\.processes: is"):
        placement.find_placement(TORCHRUN, job(processes=4))


def test_a_name_that_means_this_machine_only_is_resolved_by_the_leader_and_refused_by_others() -> None:
    real = [a for a in local_processes.list_addresses() if ":" not in a and not ipaddress.ip_address(a).is_loopback]
    debian = ("node0", 29500)

    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.1.1"]

    if len(real) == 1:
        assert local_processes.find_own_address(*debian, leads=True, resolve=resolve) == real[0]
    else:
        with pytest.raises(SpecError, check=saying("which-says-not-which-network")):
            local_processes.find_own_address(*debian, leads=True, resolve=resolve)
    with pytest.raises(SpecError, check=saying("node-node-itself", "127.0.1.1")):
        local_processes.find_own_address(*debian, leads=False, resolve=resolve)
    if real:
        assert local_processes.find_own_address("x", 1, leads=True, resolve=lambda host, port: [real[0]]) == real[0]
        assert local_processes.list_addresses()[real[0]] != local_processes.LOOPBACK


def test_supervisors_of_one_machine_share_it_and_take_one_gpu_each() -> None:
    position = find_position(TORCHRUN)
    assert position is not None
    machine = read_hardware(ROOT / "tests" / "machines" / "a100.json")
    two_gpus = world.share_hardware(machine.__class__(**{**machine.__dict__, "gpus": machine.gpus[:1] * 2}), position)
    assert (two_gpus.shared_by, two_gpus.machines) == (2, 2)
    assert world.choose_gpus([4, 5], two_gpus, position) == [5]
    assert world.choose_gpus("none", two_gpus, position) == "none"
    one_gpu = machine.__class__(**{**two_gpus.__dict__, "gpus": machine.gpus[:1]})
    assert world.choose_gpus("auto", one_gpu, position) == "auto", "the starter shows each process its own"
    with pytest.raises(DeviceError, check=saying("processes-started-machine-gpus", 2, 1)):
        world.choose_gpus([0], two_gpus, position)
    assert world.count_trainers(job(), one_gpu) == 1
    assert world.count_local_ranks(job(), one_gpu) == 2
