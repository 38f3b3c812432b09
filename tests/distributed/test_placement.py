"""A supervisor's place among several: from options, or from the variables that each engine sets."""

from __future__ import annotations

import ipaddress

import pytest

from drivetrain.distributed import local_processes, placement, world
from drivetrain.distributed.placement import NO_OPTIONS, Options, Placement, parse_first_host, parse_meet
from drivetrain.errors import DeviceError, SpecError
from drivetrain.hardware.facts import read_hardware
from drivetrain.job import Job
from drivetrain.job.limits import NodeRange
from tests import tiny
from tests.messages import saying
from tests.paths import ROOT

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29511"}
TORCHRUN |= {"LOCAL_WORLD_SIZE": "2"}
KUBEFLOW = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "1", "PET_MASTER_PORT": "29500"}
KUBEFLOW |= {"PET_MASTER_ADDR": "t-node-0-0.t"}
SKYPILOT = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_ID": "77"}
SLURM |= {"SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_STEP_NUM_TASKS": "2"}
INDEXED = {"JOB_COMPLETION_INDEX": "1"}


def job(nodes: int | NodeRange | None = None, processes: int | None = None) -> Job:
    base_job = tiny.job()
    return base_job.model_copy(
        update={"limits": base_job.limits.model_copy(update={"nodes": nodes, "processes": processes})}
    )


def find_position(
    environ: dict[str, str], options: Options = NO_OPTIONS, nodes: int | NodeRange | None = None
) -> Placement | None:
    return placement.find_placement(options, environ, job(nodes), "t-1.service.default.svc.cluster.local")


@pytest.mark.parametrize(
    ("environ", "nodes", "expected"),
    [
        (TORCHRUN, None, (4, 3, ("10.0.0.5", 29511), 1, 2, False)),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, 2, (4, 3, ("10.0.0.5", 29511), 1, 2, True)),
        (KUBEFLOW, None, (2, 1, ("t-node-0-0.t", 29500), 0, 1, False)),
        (SKYPILOT, 2, (2, 0, ("10.0.0.5", 29500), 0, 1, False)),
        (SLURM | {"MASTER_PORT": "29400"}, 2, (2, 1, ("gpu03", 29400), 0, 1, False)),
        (INDEXED, 2, (2, 1, ("t-0.service.default.svc.cluster.local", 29500), 0, 1, False)),
        (TORCHRUN | SLURM | KUBEFLOW, None, (4, 3, ("10.0.0.5", 29511), 1, 2, False)),
    ],
)
def test_each_engine_says_where_this_is(
    environ: dict[str, str], nodes: int | None, expected: tuple[object, ...]
) -> None:
    position = find_position(environ, nodes=nodes)
    assert position is not None
    assert (
        position.supervisors,
        position.index,
        position.meet,
        position.local_index,
        position.local_supervisors,
        position.starter_keeps_store,
    ) == expected
    assert f"{position.index} of {position.supervisors}" in position.describe()
    assert position.source in position.describe()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"PET_NNODES": "1"},
        {"SKYPILOT_NUM_NODES": "1"},
        # A batch script, and the shell of salloc: no step of srun.
        {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"},
        INDEXED,
    ],
)
def test_one_machine_trains_alone(environ: dict[str, str]) -> None:
    assert find_position(environ) is None
    assert find_position(environ, Options(1)) is None


def test_slurm_jobs_have_ports_of_their_own() -> None:
    ports = []
    for number in range(20):
        position = find_position(SLURM | {"SLURM_JOB_ID": str(number)})
        assert position is not None
        ports.append(position.meet[1])
    assert len(set(ports)) == 20
    assert all(placement.DERIVED_PORTS[0] <= port < placement.DERIVED_PORTS[1] for port in ports)


@pytest.mark.parametrize(
    ("environ", "options", "nodes", "message"),
    [
        ({}, Options(2), None, "only --nodes given"),
        ({}, Options(node=1), None, "only --node given"),
        ({}, Options(2, 2, "a:1"), None, "this is number 2 of 2 (--nodes)"),
        ({}, Options(2, -1, "a:1"), None, "this is number -1 of 2"),
        ({}, Options(0, 0, "a:1"), None, "--nodes 0"),
        ({}, Options(2, 0, "a:b"), None, "--meet 'a:b'"),
        (TORCHRUN, Options(2, 0, "a:1"), None, "--nodes 2, and RANK=3 WORLD_SIZE=4 in the environment"),
        (TORCHRUN | {"RANK": "4"}, NO_OPTIONS, None, "this is number 4 of 4"),
        (TORCHRUN | {"MASTER_ADDR": ""}, NO_OPTIONS, None, "MASTER_ADDR is missing"),
        (KUBEFLOW | {"PET_NNODES": "1:2"}, NO_OPTIONS, None, "PET_NNODES=1:2 is elastic"),
        ({"SKYPILOT_NUM_NODES": "2"}, NO_OPTIONS, None, "SKYPILOT_NODE_RANK is missing"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "8"}, NO_OPTIONS, None, "Slurm starts 8 tasks on 2 nodes"),
        (SKYPILOT, NO_OPTIONS, 3, "limits.nodes: is 3, and SKYPILOT_* variables says 2"),
        ({}, NO_OPTIONS, 2, "limits.nodes: is 2, and nothing says which node this is"),
        ({}, NO_OPTIONS, NodeRange(least=2), "limits.nodes: is 2 or more, and nothing says which node this is"),
        (SLURM, NO_OPTIONS, NodeRange(least=3, most=4), "limits.nodes: is 3 to 4, and SLURM_* variables says 2"),
        (SKYPILOT, NO_OPTIONS, NodeRange(least=1, most=1), "limits.nodes: is 1 to 1, and SKYPILOT_* variables says 2"),
        (
            INDEXED,
            NO_OPTIONS,
            NodeRange(least=2),
            "limits.nodes: is 2 or more, and JOB_COMPLETION_INDEX says not how many",
        ),
    ],
)
def test_contradictions_are_refused(
    environ: dict[str, str], options: Options, nodes: int | NodeRange | None, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        find_position(environ, options, nodes)
    assert message in str(error.value)
    assert "possible:" in str(error.value)
    assert "do:" in str(error.value)


@pytest.mark.parametrize("bounds", [NodeRange(least=1), NodeRange(least=2), NodeRange(least=1, most=2)])
def test_a_job_may_leave_the_number_of_machines_open(bounds: NodeRange) -> None:
    for environ, options in ((SLURM, NO_OPTIONS), (KUBEFLOW, NO_OPTIONS), ({}, Options(2, 1, "10.0.0.5:1"))):
        position = find_position(environ, options, bounds)
        assert position is not None
        assert position.supervisors == 2
    if bounds.least == 1:
        assert find_position({}, nodes=bounds) is None


@pytest.mark.parametrize(("environ", "processes"), [(TORCHRUN, 4), (KUBEFLOW | {"PET_NPROC_PER_NODE": "4"}, 2)])
def test_another_number_of_processes_is_refused(environ: dict[str, str], processes: int) -> None:
    with pytest.raises(SpecError, match=r"limits\.processes: is"):
        placement.find_placement(NO_OPTIONS, environ, job(processes=processes), "host")


def test_an_indexed_job_needs_a_name_for_its_first_pod() -> None:
    with pytest.raises(SpecError, match="headless service"):
        placement.find_placement(NO_OPTIONS, INDEXED, job(2), "somewhere")


@pytest.mark.parametrize(
    ("text", "meet"), [("a:1", ("a", 1)), ("10.0.0.5", ("10.0.0.5", 29500)), ("[fd00::1]:80", ("fd00::1", 80))]
)
def test_meeting_places(text: str, meet: tuple[str, int]) -> None:
    assert parse_meet(text, "--meet") == meet


@pytest.mark.parametrize(
    ("names", "first"), [("n1", "n1"), ("n[03-07,12],m1", "n03"), ("r[1-2]n[4,6]", "r1n4"), ("a,b", "a")]
)
def test_the_first_host_of_a_list(names: str, first: str) -> None:
    assert parse_first_host(names) == first


def test_a_name_that_means_this_machine_only_is_resolved_by_the_leader_and_refused_by_others() -> None:
    real = [a for a in local_processes.list_addresses() if ":" not in a and not ipaddress.ip_address(a).is_loopback]
    debian = ("node0", 29500)

    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.1.1"]

    if len(real) == 1:
        assert local_processes.find_own_address(debian, leads=True, resolve=resolve) == real[0]
    else:
        with pytest.raises(SpecError, check=saying("which-says-not-which-network")):
            local_processes.find_own_address(debian, leads=True, resolve=resolve)
    with pytest.raises(SpecError, check=saying("node-node-itself", "127.0.1.1")):
        local_processes.find_own_address(debian, leads=False, resolve=resolve)
    if real:
        assert local_processes.find_own_address(("x", 1), leads=True, resolve=lambda host, port: [real[0]]) == real[0]
        assert local_processes.find_interface(real[0]) not in ("", local_processes.LOOPBACK)


def test_supervisors_of_one_machine_share_it_and_take_one_gpu_each() -> None:
    position = find_position(TORCHRUN)
    assert position is not None
    machine = read_hardware(ROOT / "tests" / "machines" / "a100.json")
    two_gpus = world.share_hardware(machine.__class__(**{**machine.__dict__, "gpus": machine.gpus[:1] * 2}), position)
    assert two_gpus.shared_by == 2
    assert world.choose_gpus([4, 5], two_gpus, position) == [5]
    assert world.choose_gpus("none", two_gpus, position) == "none"
    one_gpu = machine.__class__(**{**two_gpus.__dict__, "gpus": machine.gpus[:1]})
    assert world.choose_gpus("auto", one_gpu, position) == "auto", "the starter shows each process its own"
    with pytest.raises(DeviceError, check=saying("processes-started-machine-gpus", 2, 1)):
        world.choose_gpus([0], two_gpus, position)
    assert world.count_trainers(job(), one_gpu) == 1
    assert world.count_local_ranks(job(), one_gpu) == 2
