"""Two containers of our image are two machines: as pods of Kubernetes, and when their network goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.container_nodes import container_nodes, prepare_job, run_docker, train_reference
from tests.paths import ROOT
from tests.supervisor.tiny_run import have_same_weights, read_rows
from tests.waiting import wait_until

pytestmark = pytest.mark.nightly


def trains(run: Path) -> bool:
    return (run / "metrics.jsonl").exists() and len(read_rows(run)) > 10


def options(pod: dict[str, Any], folder: Path, number: int) -> list[str]:
    """What the pod template asks for, in the words of docker; the claim is a folder."""
    (container,) = pod["containers"]
    user, inside = pod["securityContext"], container["securityContext"]
    assert (user["runAsNonRoot"], inside["readOnlyRootFilesystem"]) == (True, True)
    assert not inside["allowPrivilegeEscalation"]
    assert inside["capabilities"] == {"drop": ["ALL"]}
    arguments = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true"]
    arguments += [f"--user={user['runAsUser']}:{user['runAsGroup']}"]
    # The rank comes from the number that Kubernetes gives a pod.
    arguments += [f"--env={variable['name']}={variable.get('value', number)}" for variable in container["env"]]
    limits = container["resources"]["limits"]
    arguments += [f"--cpus={limits['cpu']}", f"--memory={limits['memory'].removesuffix('i').lower()}"]
    volumes = {volume_spec["name"]: volume_spec for volume_spec in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume, at = volumes[mount["name"]], mount["mountPath"]
        if "configMap" in volume:
            arguments.append(f"--volume={folder}/job:{at}:ro")
        elif "persistentVolumeClaim" in volume:
            arguments.append(f"--volume={folder}:{at}")
        elif mount["name"] == "shm":
            arguments.append(f"--shm-size={volume['emptyDir']['sizeLimit'].removesuffix('i').lower()}")
        else:
            arguments.append(f"--tmpfs={at}:exec,mode=1777")
    return arguments


def test_the_pod_template_trains_in_two_containers(cpu_image: str, tmp_path: Path) -> None:
    """With its arguments, variables, user and hardening, and no others; the engine's stop is that of a drained node."""
    folder = tmp_path / "claim"
    job = prepare_job(folder, epochs=40, data="/data/images.npz")
    manifest = (ROOT / "examples" / "clusters" / "kubernetes.yaml").read_text()
    documents = {document["kind"]: document for document in yaml.safe_load_all(manifest)}
    (folder / "job").mkdir()
    (folder / "job" / "job.yaml").write_text(job.read_text())
    pod = documents["Job"]["spec"]["template"]["spec"]
    arguments: Sequence[str] = pod["containers"][0]["args"]
    run = folder / "runs" / "tiny-001"
    with container_nodes(cpu_image) as network:

        def start() -> list[str]:
            return [
                network.start(
                    number, arguments, options(pod, folder, number), hostname=f"digits-{number}.{pod['subdomain']}"
                )
                for number in range(2)
            ]

        pods = start()
        wait_until(lambda: trains(run), 120)
        begin = time.monotonic()
        run_docker("stop", "--time", str(pod["terminationGracePeriodSeconds"]), pods[1])
        assert network.codes(pods) == [75, 75], run_docker("logs", pods[0])
        print(f"SIGTERM to pod 1: both ended after {time.monotonic() - begin:.0f} s")
        pods = start()
        assert network.codes(pods) == [0, 0], run_docker("logs", pods[0])
        log = run_docker("logs", pods[0])
    assert "resumes" in log
    alone = train_reference(cpu_image, folder, "/data/tiny.yaml")
    assert have_same_weights(alone, run)
    assert read_rows(alone) == read_rows(run)
