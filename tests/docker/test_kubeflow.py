"""Kubeflow's own backend for Docker starts our command: one container a node, torchrun in each.

python -m venv V && V/bin/pip install kubeflow docker && DRIVETRAIN_KUBEFLOW=V/bin/python python -m pytest -m nightly THIS_FILE
"""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from tests.docker.container_nodes import prepare_job, run_docker, train_reference
from tests.messages import says
from tests.supervisor.tiny_run import have_same_weights, read_rows

PYTHON = os.environ.get("DRIVETRAIN_KUBEFLOW", "")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PYTHON, reason="DRIVETRAIN_KUBEFLOW does not name a Python with kubeflow"),
]
SUBMIT = """
import shutil, sys, time
from kubeflow.trainer import ContainerBackendConfig, CustomTrainer, TrainerClient, TrainingRuntimeSource

name, runtime, folder, kept = sys.argv[1:]

def train():
    import os
    os.execvp("python", ["python", "-m", "drivetrain", "train", "/workspace/tiny.yaml", "--runs", "/workspace/runs"])

def named(spec, trainer, backend):
    spec.setdefault("metadata", {})["name"] = name

source = TrainingRuntimeSource(sources=[f"file://{runtime}"])
config = ContainerBackendConfig(pull_policy="Never", container_runtime="docker", runtime_source=source)
client = TrainerClient(backend_config=config)
client.train(runtime="torch-distributed", trainer=CustomTrainer(func=train, num_nodes=2), options=[named])
try:
    while client.get_job(name).status in ("Created", "Running"):
        time.sleep(1)
    print("ended:", client.get_job(name).status)
    print(*client.get_job_logs(name))
    shutil.copytree(folder, kept)
finally:
    client.delete_job(name)
"""
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed, labels: {trainer.kubeflow.org/framework: torch}}
spec:
  mlPolicy: {numNodes: 2, torch: {numProcPerNode: 1}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec: {template: {spec: {containers: [{name: node, image: IMAGE}]}}}
"""


def test_two_containers_of_kubeflow_give_the_bits_of_two_processes(cpu_image: str, tmp_path: Path) -> None:
    image, name = "localhost/drivetrain-test/kubeflow", f"dt{secrets.token_hex(3)}"
    home, kept_folder = tmp_path / "home", tmp_path / "kept"
    folder = home / ".kubeflow" / "trainer" / "containers" / name  # mounted as /workspace, and removed with the job
    prepare_job(folder)
    # It starts a shell, and our image starts drivetrain.
    (tmp_path / "Dockerfile").write_text(f"FROM {cpu_image}\nENTRYPOINT []\n")
    (tmp_path / "runtime.yaml").write_text(RUNTIME.replace("IMAGE", image))
    (tmp_path / "submit.py").write_text(SUBMIT)
    run_docker("build", "-q", "-t", image, str(tmp_path))
    try:
        arguments = [PYTHON, "submit.py", name, str(tmp_path / "runtime.yaml"), str(folder), str(kept_folder)]
        environ = os.environ | {"HOME": str(home)}
        done = subprocess.run(
            arguments, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
    finally:
        run_docker("image", "rm", image, check=False)
    assert "ended: Complete" in done.stdout, done.stdout + done.stderr
    assert says(done.stdout, "rank-world-size-torchrun")
    run = kept_folder / "runs" / "tiny-001"
    assert '"done"' in (run / "state.json").read_text()
    alone_folder = tmp_path / "alone"
    prepare_job(alone_folder)
    alone = train_reference(cpu_image, alone_folder, "/data/tiny.yaml")
    assert have_same_weights(alone, run)
    assert read_rows(alone) == read_rows(run)
