"""Specs that are right: short forms, defaults, paths, round trips, the JSON schema; and how light the commands are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from drivetrain.cli.main import main
from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job.train import Adam, CrossEntropy, OneCycle, Sgd
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import dump, parse
from drivetrain.tasks import JOBS
from drivetrain.tasks.image.job import ImageJob
from tests import examples
from tests.job_spec.bad_keys import KEYS
from tests.job_spec.bad_values import VALUES
from tests.job_spec.rows import SPEC, Row
from tests.messages import get_message, says, says_each
from tests.paths import ROOT

SCHEMA_FILE = ROOT / "docs" / "job.schema.json"

GOOD = [
    "",
    "model: resnet18",
    "model: {name: resnet34, width: 16, dropout: 0.1, stem: small}",
    "model: {name: small-cnn, freeze: {layers: 1, names: ['conv*'], train_mode: true}}",
    "model: {file: net.py, factory: make, arguments: {depth: 3, parts: [a, {b: null}], big: 1e30}}",
    "train: {optimizer: sgd}",
    "train: {optimizer: {lr: 1e-4}}",
    "train: {optimizer: {name: adam, betas: [0.8, 0.99], amsgrad: true}}",
    "train: {optimizer: {name: sgd, lr: 1, momentum: 0.9, nesterov: true}}",
    "train: {schedule: constant}",
    "train: {schedule: {warmup: 0.1}}",
    "train: {schedule: {name: plateau, patience: 0, metric: validation/f1}}",
    "train: {loss: focal}",
    "train: {loss: {name: focal, gamma: 0, alpha: null}}",
    "train: {loss: null, clip_norm: null, ema: null, early_stopping: null, max_time: null, steps: null}",
    "train: {early_stopping: {metric: validation/loss}, ema: 0.999, max_time: 1.5h, steps: 10}",
    "optimize: {precision: auto, compile: false, cpu_threads: off, micro_batch: 8, loader_workers: 0}",
    "limits: {cpus: 0.5, memory: 4g, shm: 256 MiB}",
    "limits: {cpus: null, memory: null, shm: null}",
    "checkpoint: {every: 200 steps, keep: 5, best: validation/f1}",
    "checkpoint: {every: epoch, best: null}",
    "data: {train: data, validation: data, image_size: 64, channels: 1}",
    "data: {train: data, augment: {flip: true, crop_padding: 4, randaugment: {}, mixup: {alpha: 0.2, probability: 0.5}}}",
    "data: {train: data, augment: {erasing: {area: [0.02, 0.2]}, resized_crop: {ratio: [1, 2]}, cutmix: null}}",
    "name: on\ntask: image-classification\ndata: {train: off}",
]


def check_text(text: str) -> Job:
    return job_spec.check(parse(Row(text, "", "", "", "").spec(), "job.yaml"))


def image_job(text: str) -> ImageJob:
    job = check_text(text)
    assert isinstance(job, ImageJob)
    return job


@pytest.fixture(scope="module")
def validator() -> Any:
    """Checks data against the JSON schema."""
    schema = job_spec.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("text", GOOD)
def test_a_good_spec_comes_back_from_its_dump(text: str) -> None:
    job = check_text(text)
    reloaded = job_spec.check(parse(dump(job.dump()), "job.yaml"))
    assert reloaded.model_dump() == job.model_dump()
    assert dump(reloaded.dump()) == dump(job.dump())


def test_short_forms_mean_their_long_forms() -> None:
    for short, long in (
        ("model: resnet18", "model: {name: resnet18}"),
        ("train: {optimizer: sgd}", "train: {optimizer: {name: sgd}}"),
        ("train: {optimizer: {lr: 1e-4}}", "train: {optimizer: {name: adamw, lr: 0.0001}}"),
        ("train: {schedule: {warmup: 0.1}}", "train: {schedule: {name: one-cycle, warmup: 0.1}}"),
        ("train: {loss: focal}", "train: {loss: {name: focal}}"),
        ("train: {schedule: cosine}", "train: {schedule: {name: cosine}}"),
    ):
        assert check_text(short).model_dump() == check_text(long).model_dump()


def test_the_defaults_are_those_of_the_design() -> None:
    job = image_job("")
    train = job.train
    assert train.optimizer == Adam(name="adamw", lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-4)
    assert train.schedule == OneCycle(name="one-cycle", warmup=0.3)
    assert (train.loss, train.ema, train.early_stopping, train.max_time) == (None, None, None, None)
    assert (train.clip_norm, train.deterministic, train.class_weights) == (1.0, "auto", "none")
    assert (job.data.validation, job.data.image_size, job.optimize) == (0.1, "auto", {})
    assert job.model.name == "small-cnn"
    assert (job.checkpoint.every, job.checkpoint.keep, job.best()) == ("5m", 2, "validation/accuracy")
    probabilities = ("log_loss", "brier", "ece", "auc", "average_precision")
    names = ("loss", "accuracy", "f1", "balanced_accuracy", *probabilities, "kappa")
    assert job.metrics() == [f"validation/{name}" for name in names]


def test_null_switches_off_what_is_on_by_default() -> None:
    assert image_job("train: {clip_norm: null}").train.clip_norm is None


def test_numbers_in_every_form_of_yaml() -> None:
    train = image_job("train: {seed: 0x1F, epochs: 0o17, optimizer: {name: sgd, lr: 1E-3, momentum: .5}}").train
    assert (train.seed, train.epochs) == (31, 15)
    assert train.optimizer == Sgd(name="sgd", lr=0.001, momentum=0.5)


def test_an_alias_repeats_a_value() -> None:
    job = image_job("train: {loss: &loss {name: cross-entropy}}\nmodel: {file: net.py, arguments: {loss: *loss}}")
    assert job.train.loss == CrossEntropy(name="cross-entropy")
    assert job.model.arguments == {"loss": {"name": "cross-entropy"}}


def test_a_job_is_frozen() -> None:
    job = check_text("")
    with pytest.raises(ValueError, match="frozen"):
        job.name = "b"  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        job.train.epochs = 3  # type: ignore[misc]


def test_the_job_knows_where_its_keys_stand() -> None:
    job = check_text("train:\n  epochs: 3\n")
    assert job.document.place(("train", "epochs")) == "job.yaml:5:3"
    assert job.document.place(("train", "optimizer", "lr")) == "job.yaml:4:1"


def test_paths_are_found_beside_the_job_then_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, jobs = tmp_path / "home", tmp_path / "jobs"
    for folder in (jobs / "both", home / "both", home / "there", tmp_path / "user"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(tmp_path))
    (jobs / "job.yaml").write_text("name: a\ntask: image-classification\ndata: {train: both, validation: there}\n")
    job = job_spec.load(jobs / "job.yaml")
    assert job.folder == jobs
    assert job.resolve("both") == jobs / "both"
    assert job.resolve("there") == Path("there")
    assert job.resolve("nowhere") == jobs / "nowhere"
    assert job.resolve(str(home / "there")) == home / "there"
    assert job.resolve("~/user") == tmp_path / "user"


def test_assignments_go_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "job.yaml").write_text(SPEC + "train: {optimizer: sgd, epochs: 9}\n")
    job = job_spec.load(
        tmp_path / "job.yaml",
        [
            "train.epochs=3",
            "train.optimizer.lr=1e-4",
            "optimize.compile=false",
            "train.clip_norm=null",
            "data.augment={flip: true}",
            "name=on",
            "train.early_stopping.metric=validation/loss",
        ],
    )
    assert isinstance(job, ImageJob)
    assert (job.name, job.train.epochs, job.train.clip_norm, job.optimize) == ("on", 3, None, {"compile": False})
    assert job.train.optimizer == Sgd(name="sgd", lr=1e-4)
    assert job.data.augment.flip is True
    assert job.train.early_stopping is not None
    assert job.train.early_stopping.patience == 5


def test_what_the_machine_refuses_names_the_place_in_the_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "job.yaml"
    path.write_text(SPEC + "optimize: {cpu_threads: 100000}\n")
    assert main(["plan", str(path)]) == 2
    assert says(capsys.readouterr().err, "is-which-is-not-possible-here", path, 4, 12, "optimize.cpu_threads", 100000)


@pytest.mark.parametrize("path", examples.JOBS, ids=lambda path: path.stem)
def test_the_examples_are_valid_and_editors_find_the_schema(path: Path, validator: Any) -> None:
    document = parse(path.read_bytes(), path.name)
    assert job_spec.check(document).task in JOBS
    validator.validate(document.data)
    first, _, _ = path.read_text().partition("\n")
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == SCHEMA_FILE


@pytest.mark.parametrize("text", GOOD)
def test_the_schema_takes_good_specs(text: str, validator: Any) -> None:
    validator.validate(parse(Row(text, "", "", "", "").spec(), "job.yaml").data)


def not_for_the_schema(row: Row) -> bool:
    """What JSON schema cannot say, or sees otherwise: 3.0 is an integer, metrics depend on the task, order of pairs,
    the larger of two numbers in a text.
    """
    phrases = (
        "metric",
        "losses",
        "for image-",
        "nesterov",
        "smaller one first",
        "which is nodes.least",
        "a part has one sample",
        "next to the job",
        "finite",
        "write ",
        "is not a CSV file",
        "is not a table",
        "'6/5'",
        "pretrained weights",
        "and weights too",
        "nothing is frozen",
        "momentum is 0",
        "has no stem",
        "in every step",
        "has no columns",
        "or 2 and more",
    )
    return any(word in row.possible + row.action + row.given for word in phrases)


@pytest.mark.parametrize("row", [row for row in (*KEYS, *VALUES) if not not_for_the_schema(row)], ids=Row.name)
def test_the_schema_refuses_bad_specs(row: Row, validator: Any) -> None:
    assert not validator.is_valid(parse(row.spec(), "job.yaml").data)


def test_the_schema_is_the_one_in_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--schema"]) == 0
    assert SCHEMA_FILE.read_text() == capsys.readouterr().out, (
        "run: drivetrain validate --schema > docs/job.schema.json"
    )


def test_the_schema_explains_every_setting() -> None:
    schema = job_spec.schema()
    forms = [schema, *schema["$defs"].values()]
    bare = [
        f"{form.get('title')}.{name}"
        for form in forms
        for name, field in form.get("properties", {}).items()
        if "description" not in field and name not in ("name", "source", "task")
    ]
    assert bare == []


@pytest.mark.parametrize("command", ["validate", "plan", "validate --schema"])
def test_a_light_command_loads_no_torch_and_opens_no_socket(command: str) -> None:
    code = (
        "import sys\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, _: seen.append(event) if event.startswith('socket.') else None)\n"
        "from drivetrain.cli.main import main\n"
        f"code = main([*{command.split()}, sys.argv[1]])\n"
        "heavy = {'torch', 'numpy', 'transformers', 'matplotlib', 'docker'} & set(sys.modules)\n"
        "sys.exit(f'{code} {seen} {heavy}' if code or seen or heavy else 0)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "jobs" / "digits.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout) if "--schema" in command else "digits" in run.stdout


def test_validate_lists_valid_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "job.yaml").write_text(SPEC)
    assert main(["validate", str(tmp_path / "job.yaml")]) == 0
    assert says_each(
        capsys.readouterr(), (get_message("valid-image-classification-data", f"{tmp_path}/job.yaml", "data.train"), "")
    )


def test_a_spec_error_holds_its_problems() -> None:
    with pytest.raises(SpecError) as caught:
        check_text("train: {epochs: 0}\nlimits: {cpus: 0}")
    assert [problem.key for problem in caught.value.problems] == ["train.epochs", "limits.cpus"]
    assert caught.value.exit_code == 2


def test_every_key_of_a_synonym_exists() -> None:
    """In the spec of one task at least, the values of `optimize:` among them."""
    from drivetrain.job_spec.validation_errors import _NAMES_ELSEWHERE, _has_key
    from drivetrain.tasks import JOBS

    kinds = [job_spec._add_optimization_types(kind) for kind in JOBS.values()]
    homes = [home.partition(":")[0] for home in _NAMES_ELSEWHERE]
    assert [home for home in homes if not any(_has_key(kind, home) for kind in kinds)] == []
    synonyms = [word for line in _NAMES_ELSEWHERE.values() for word in line.split()]
    assert len(set(synonyms)) == len(synonyms)
