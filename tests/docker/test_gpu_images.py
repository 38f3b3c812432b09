"""The GPU images without a GPU: what torch they hold, for which chips, and that they refuse to train on a CPU unasked."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from drivetrain.hardware.device_check import has_code_for
from drivetrain.hardware.image_selection import BUILDS
from drivetrain.launch import project
from tests.docker.conftest import find_obstacle, has_client
from tests.messages import says
from tests.paths import ROOT

# The chips that each image is for, and one that it is not.
CHIPS = {
    "ampere": ([(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], (6, 1)),
    "legacy": ([(5, 0), (5, 2), (6, 0), (6, 1), (7, 0), (7, 5), (8, 6), (8, 9), (9, 0)], (12, 0)),
}
TORCH = (
    "import json, torch, triton; print(json.dumps({'torch': torch.__version__.split('+')[0], 'cuda': torch.version.cuda, "
    "'cudnn': torch.backends.cudnn.version(), 'codes': torch._C._cuda_getArchFlags().split()}))"
)


@pytest.fixture(params=sorted(BUILDS))
def image(request: pytest.FixtureRequest) -> str:
    """Each GPU image that is built here; they are gigabytes, so only a change of theirs builds them in CI."""
    reason = find_obstacle(request.param) if has_client() else "no docker client is installed: `make engine`"
    if reason:
        pytest.skip(reason)
    return str(request.param)


def inside(image: str, *command: str, entrypoint: str | None = None, options: tuple[str, ...] = ()) -> Any:
    """`docker run` of the image as compose hardens it, with today's code of the project."""
    hardened = [
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges:true",
        "--init",
        "--network=none",
        "--tmpfs=/tmp:exec,mode=1777",
        "--tmpfs=/workspace/runs:mode=1777",
        "-v",
        f"{ROOT}/runtime:/opt/drivetrain/runtime:ro",
        "-v",
        f"{ROOT}/jobs:/workspace/jobs:ro",
    ]
    entry = ["--entrypoint", entrypoint] if entrypoint else []
    line = ["docker", "run", "--rm", *hardened, *options, *entry, project.image_name(image), *command]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)


def test_torch_and_its_chips(image: str) -> None:
    done = inside(image, "-c", TORCH, entrypoint="python")
    assert done.returncode == 0, done.stderr
    torch_facts = json.loads(done.stdout)
    assert (torch_facts["torch"], torch_facts["cuda"]) == (BUILDS[image].torch, BUILDS[image].cuda)
    if image == "legacy":
        assert torch_facts["cudnn"] < 91100, "cuDNN 9.11 dropped all chips below 7.5"
    own_chips, other_chip = CHIPS[image]
    assert [chip for chip in own_chips if not has_code_for(chip, torch_facts["codes"])] == []
    assert not has_code_for(other_chip, torch_facts["codes"])
    facts = json.loads(inside(image, "plan", "--json").stdout)
    assert facts["torch"]["architectures"] == torch_facts["codes"]


def test_facts_and_the_variables_of_the_toolkit(image: str) -> None:
    facts = json.loads(inside(image, "plan", "--json").stdout)
    assert (facts["image"], facts["gpus"]) == (image, [])
    assert facts["compiler"] == "/usr/bin/g++"
    inspection = subprocess.run(
        ["docker", "image", "inspect", project.image_name(image)], capture_output=True, check=True
    )
    config = json.loads(inspection.stdout)[0]["Config"]
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(config["Env"])
    assert config["User"] == "1000:1000"
    assert config["Entrypoint"] == ["python", "-m", "drivetrain"]


def test_c_code_with_pythons_headers_can_be_compiled(image: str) -> None:
    """What Triton does at its first kernel."""
    code = (
        "import pathlib, subprocess, sysconfig; pathlib.Path('/tmp/a.c').write_text('#include <Python.h>\\n'); "
        "subprocess.run(['gcc', '-shared', '-fPIC', '-I' + sysconfig.get_path('include'), '/tmp/a.c', '-o', '/tmp/a.so'], check=True)"
    )
    done = inside(image, "-c", code, entrypoint="python")
    assert done.returncode == 0, done.stderr


def test_the_plan_warns_and_training_refuses(image: str) -> None:
    plan = inside(image, "plan", "jobs/digits.yaml")
    assert plan.returncode == 0, plan.stderr
    assert says(" ".join(plan.stdout.split()), "needs-gpu-sees-none", image)
    done = inside(image, "train", "jobs/digits.yaml")
    assert done.returncode == 9
    assert says(done.stderr, "image-needs-gpu-sees", image)
    assert says(done.stderr, "possible-container-started-gpus")
    assert f"compose/{image}.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_trains_on_the_cpu_if_the_job_says_so(image: str) -> None:
    done = inside(image, "train", "jobs/digits.yaml", "--set", "limits.gpus=none", "--set", "train.epochs=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: " in done.stdout
