"""`drivetrain launch --on k8s`: what the manifest says, what is refused, and what the upstream schemas and a run say.

The schemas: python -m venv V && V/bin/pip install kubernetes-validate && DRIVETRAIN_KUBERNETES=V/bin/python python -m pytest
-m nightly THIS_FILE
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import nodes
from tests.launch.cluster_site import IMAGE, ClusterSite
from tests.messages import says
from tests.supervisor.tiny_run import have_same_weights, read_rows, train
from tests.waiting import wait_until

SPEC = "name: Tiny_1\ntask: image-classification\ndata: {train: /data/images.npz}\nenvironment: [HF_TOKEN]\n"
SECTION: dict[str, Any] = {
    "image": IMAGE,
    "runs": "/data/runs",
    "claims": [{"claim": "datasets", "at": "/data"}],
    "namespace": "training",
    "grace": "90s",
    "secrets": {"HF_TOKEN": {"name": "hub", "key": "token"}},
    "labels": {"kueue.x-k8s.io/queue-name": "team"},
    "pod": {"nodeSelector": {"pool": "a100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
}
SITE = ClusterSite("k8s", SECTION, ("--output", "out.yaml"))
write, launch = SITE.write, SITE.launch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return SITE.prepare(tmp_path, SPEC)


def objects(folder: Path) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all((folder / "out.yaml").read_text())}


def test_a_manifest_says_how_the_job_ends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch("--nodes", "2", "--device", "gpu", "--per-node", "4") == 0
    out = capsys.readouterr().out
    assert says(out, "kubernetes-takes-name-like", "tiny-1")
    assert says(out, "submit-kubectl-create")
    documents = objects(folder)
    assert documents["ConfigMap"]["data"] == {"tiny.yaml": SPEC}
    assert "\n  tiny.yaml: |\n    name: Tiny_1\n" in (folder / "out.yaml").read_text()
    assert documents["Service"]["spec"]["clusterIP"] == "None"
    spec = documents["Job"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    actions = [
        (rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]
    ]
    assert actions == [("FailJob", [1, 2, 3, 4, 5, 6, 7, 9, 11]), ("Ignore", [75]), ("Ignore", None)]
    pod = spec["template"]["spec"]
    assert (pod["subdomain"], pod["terminationGracePeriodSeconds"], pod["nodeSelector"]) == (
        "tiny-1",
        90,
        {"pool": "a100"},
    )
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi", "nvidia.com/gpu": "4"}
    assert container["args"][:2] == ["train", "/job/tiny.yaml"]
    assert container["args"][-4:] == ["--set", "limits.gpus=all", "--runs", "/data/runs"]
    environ = {variable["name"]: variable for variable in container["env"]}
    assert environ["MASTER_ADDR"]["value"] == "tiny-1-0.tiny-1"
    assert environ["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"image": "ghcr.io/owner/cpu:1"}, "k8s.image: is 'ghcr.io/owner/cpu:1'\n  possible: an image by its digest"),
        (
            {"labels": {"app.kubernetes.io/name": "x"}},
            "k8s.labels.app.kubernetes.io/name: is 'app.kubernetes.io/name'\n  possible: other keys",
        ),
        ({"pod": {"containers": []}}, "k8s.pod.containers: is 'containers'\n  possible: other keys"),
        (
            {"claims": [{"claim": "Data", "at": "/data"}]},
            "k8s.claims[0].claim: is 'Data'\n  possible: a name as Kubern",
        ),
        ({"runs": "/elsewhere"}, "site.yaml: k8s.claims: runs: /elsewhere is below no volume"),
        (
            {"claims": [{"claim": "data", "at": "/lake"}], "runs": "/lake"},
            "tiny.yaml:3:8: data.train: /data/images.npz is",
        ),
        ({"runs": "/data/../x"}, "/data/../x is below no volume"),
        ({"secrets": {}}, "tiny.yaml:4:1: environment: HF_TOKEN is in no secret of site.yaml"),
        ({"runs": None}, "k8s.runs: is null"),
    ],
)
def test_a_wrong_site_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], expected: str
) -> None:
    write(folder, **change)
    assert launch() == 2
    assert expected in capsys.readouterr().err
    assert not (folder / "out.yaml").exists()


def test_a_range_of_nodes_becomes_a_number_and_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tiny.yaml").write_text(SPEC + "limits: {nodes: {least: 2, most: 4}}\n")
    assert launch() == 0
    out = capsys.readouterr().out
    assert says(out, "attempt-since-indexed-job", "limits.nodes", 2, 4, 4)
    assert "4 nodes, 1 process on each" in out
    assert launch("--nodes", "3") == 0
    spec = objects(folder)["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    assert "limits.nodes=3" in spec["template"]["spec"]["containers"][0]["args"]


VALIDATOR = os.environ.get("DRIVETRAIN_KUBERNETES", "")
CHECK = """
import json, sys, kubernetes_validate
for line in sys.stdin:
    try:
        kubernetes_validate.validate(json.loads(line), kubernetes_validate.latest_version(), strict=True)
        print("good")
    except kubernetes_validate.ValidationError as error:
        print("bad", str(error).splitlines()[0])
"""


def verdicts(documents: list[Any]) -> list[str]:
    """What the upstream schemas say in strict mode."""
    text = "".join(json.dumps(document) + "\n" for document in documents)
    done = subprocess.run([VALIDATOR, "-c", CHECK], input=text, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


FREE = ("labels", "matchLabels", "data", "selector", "nodeSelector", "limits", "requests")
"""Mappings whose keys are the user's."""


def keys(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all keys that the schema knows."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not path or path[-1] not in FREE:
                yield (*path, key)
                yield from keys(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from keys(item, (*path, number))


def misspell(document: Any, path: tuple[Any, ...]) -> Any:
    """The document with a typing error in one key."""
    copied = copy.deepcopy(document)
    mapping = copied
    for part in path[:-1]:
        mapping = mapping[part]
    mapping[path[-1] + "s"] = mapping.pop(path[-1])
    return copied


@pytest.mark.nightly
@pytest.mark.skipif(not VALIDATOR, reason="DRIVETRAIN_KUBERNETES does not name a Python with kubernetes-validate")
def test_the_schemas_take_the_manifest_and_refuse_typing_errors(folder: Path) -> None:
    assert launch("--nodes", "2", "--device", "gpu") == 0
    documents = list(objects(folder).values())
    assert verdicts(documents) == ["good"] * 4
    key_paths = [
        (document, path)
        for document in documents
        for path in keys(document)
        if path not in (("kind",), ("apiVersion",))
    ]
    sampled = random.Random(0).sample(key_paths, 50)
    answers = verdicts([misspell(*sample) for sample in sampled])
    accepted = [path for (_, path), verdict in zip(sampled, answers, strict=True) if verdict == "good"]
    print(f"{len(sampled)} of {len(key_paths)} keys misspelt, {len(sampled) - len(accepted)} refused")
    assert accepted == []


@pytest.mark.nightly
@pytest.mark.skipif(bool(nodes.MISSING), reason=nodes.MISSING)
def test_the_pods_train_with_what_kubernetes_gives_them(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with the arguments and variables of the pods, and no others; a drained node stops both."""
    home = job.parent
    monkeypatch.chdir(home)
    job.write_text(job.read_text().replace("images.npz", f"{home}/images.npz").replace("epochs: 4", "epochs: 60"))
    write(home, claims=[{"claim": "datasets", "at": str(home)}], runs=str(home / "runs"), secrets={})
    assert launch("--nodes", "2") == 0
    pod = objects(home)["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    arguments = [word.replace("/job/", f"{home}/") for word in container["args"]]
    with nodes.network(2, names=f"tiny-{{}}.{pod['subdomain']}") as machines:

        def start() -> list[subprocess.Popen[bytes]]:
            return [
                machine.start(
                    [
                        *("env", "-i", f"PATH={os.environ['PATH']}", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"),
                        *(f"{name}={value}" for name, value in variables.items()),
                        f"JOB_COMPLETION_INDEX={number}",
                        *(sys.executable, "-m", "drivetrain", *arguments),
                    ],
                    home / f"pod-{number}.log",
                )
                for number, machine in enumerate(machines)
            ]

        pods, run = start(), home / "runs" / "tiny-001"
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(read_rows(run)) > 10, 300)
        pods[1].send_signal(signal.SIGTERM)
        assert [process.wait(120) for process in pods] == [75, 75]
        pods = start()
        assert [process.wait(300) for process in pods] == [0, 0], (home / "pod-0.log").read_text()
    assert "(JOB_COMPLETION_INDEX of Kubernetes)" in (home / "pod-0.log").read_text()
    reference = ["--set", "limits.processes=2", "--set", "limits.gpus=none", "--runs", str(home / "reference")]
    assert train(job, *reference).returncode == 0
    assert have_same_weights(home / "reference" / "tiny-001", run)
