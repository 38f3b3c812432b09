"""Whole runs with code of one's own: what is recorded, what may be run again, and errors in the middle of training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.cli import main
from drivetrain.data import load_data
from drivetrain.data.custom import user_code
from drivetrain.data.load_data import load
from drivetrain.errors import CheckpointError, DataError, SpecError
from drivetrain.inference import predictions
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.models import code_consent, dummy_inputs, forward, saved_model
from drivetrain.system.files import hash_file, write_json
from tests.edited_model import write_config
from tests.messages import omits, saying, says, says_only
from tests.own_job import DATA, LOSS, MODEL, write_job
from tests.supervisor.custom_run import train_job

torch.set_num_threads(1)

READER = """
def read(paths, samples=1):
    import numpy as np
    return torch.from_numpy(np.concatenate([np.loadtxt(path, ndmin=2) for path in paths]))
"""
FILES = {
    "my_model.py": "from parts.layers import hidden\n" + MODEL.replace("nn.Linear(4, width)", "hidden(width)"),
    "parts/layers.py": "from torch import nn\n\ndef hidden(width):\n    return nn.LazyLinear(width)\n",
    "my_data.py": DATA + READER,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_job(
        tmp_path_factory.mktemp("own"),
        FILES,
        data="reader: read",
        train="loss: {file: my_loss.py}, ema: 0.5",
        model="arguments: {width: 6}, freeze: {names: [body.bias]}",
    )
    return train_job(path)


def test_the_code_is_stored_with_its_digests(run: Path) -> None:
    config = json.loads((run / "model" / "config.json").read_text())
    assert set(config["code"]) == {"my_data.py", "my_model.py", "my_loss.py", "parts/layers.py"}
    assert config["builder"] == "own"
    assert config["arguments"]["arguments"] == {"width": 6, "outputs": 2}
    for name in config["code"]:
        assert (run / "model" / "code" / name).read_bytes() == (run.parent.parent / name).read_bytes()
    assert not list(run.parent.parent.rglob("__pycache__"))


def test_the_model_predicts_what_validation_computed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved_model.load(run)
    output = capsys.readouterr().err
    assert says(output, "running-model-own-code", "my_model.py", f"{run}/model/code")
    assert says(output, "running-model-own-code-2")
    data = load(job_spec.load(run.parent.parent / "job.yaml"))
    ids = np.arange(len(data.validation))
    with torch.inference_mode():
        guess = model.network(*data.prepare(data.validation.gather(ids), ids, None)).argmax(dim=1)
    accuracy = json.loads((run / "result.json").read_text())["best"]["metrics"]["validation/accuracy"]
    assert float((guess == data.validation.targets[""]).float().mean()) == pytest.approx(accuracy)


def test_new_samples_by_the_reader_in_the_model_folder(run: Path, tmp_path: Path) -> None:
    model = saved_model.load(run)
    np.savetxt(tmp_path / "a.txt", np.arange(12.0).reshape(3, 4))
    new_data = load_data.load_new([tmp_path / "a.txt"], model.preprocessing, model.heads, labelled=False)
    assert new_data.split.gather(np.array([2]))[0].tolist() == [[8, 9, 10, 11]]
    assert new_data.prepare(new_data.split.gather(np.arange(3)), np.arange(3), None)[0].dtype == torch.float32
    with pytest.raises(DataError, check=saying("read-samples-targets", "my_data.py")):
        load_data.load_new([tmp_path / "a.txt"], model.preprocessing, model.heads, labelled=True)
    (tmp_path / "a.txt").write_text("one two\n")
    with pytest.raises(DataError, check=saying("read-raised-valueerror-could", "my_data.py")) as raised:
        load_data.load_new([tmp_path / "a.txt"], model.preprocessing, model.heads, labelled=False)
    assert says(str(raised.value), "in-read-return", "my_data.py", 12, "torch.from_numpy")


def test_a_file_of_the_readers_arguments_is_stored_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "my_data.py": DATA.replace("samples=96", "scale, samples=96")
        + "\ndef read(paths, scale):\n    from pathlib import Path\n"
        + "    return torch.ones(2, 4) * float(Path(scale).read_text())\n",
        "scale.txt": "2",
    }
    run = train_job(write_job(tmp_path, files, data="reader: read, arguments: {scale: scale.txt}", train="steps: 2"))
    (tmp_path / "scale.txt").write_text("3")
    model = saved_model.load(run)
    new_data = load_data.load_new([tmp_path / "job.yaml"], model.preprocessing, model.heads, labelled=False)
    assert new_data.split.gather(np.array([0]))[0].tolist() == [[2, 2, 2, 2]]


def test_new_targets_have_to_be_those_of_training(tmp_path: Path) -> None:
    run = train_job(write_job(tmp_path, FILES, train="steps: 2"))
    model = saved_model.load(run)
    np.savez(tmp_path / "new.npz", inputs=np.zeros((3, 4)), targets=np.array([0, 1, 2]))
    with pytest.raises(DataError, match="targets go from 0 to 2\n  possible: targets from 0 to 1, as in training"):
        load_data.load_new([tmp_path / "new.npz"], model.preprocessing, model.heads, labelled=True)
    np.savez(tmp_path / "new.npz", inputs=np.zeros((3, 4, 1)), targets=np.array([0, 1, 1]))
    with pytest.raises(DataError, match=r"inputs have the shapes \(4, 1\)\n  possible: as in training: \(4,\)"):
        load_data.load_new([tmp_path / "new.npz"], model.preprocessing, model.heads, labelled=True)
    np.savez(tmp_path / "new.npz", images=np.zeros((3, 4)))
    with pytest.raises(DataError, check=saying("inputs-targets-images")):
        load_data.load_new([tmp_path / "new.npz"], model.preprocessing, model.heads, labelled=True)


def test_a_model_elsewhere_needs_consent_and_is_then_the_same(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    with pytest.raises(CheckpointError) as raised:
        saved_model.load(tmp_path / "model")
    assert says(
        str(raised.value), "contains-code-runs-model", "my_data.py", "my_loss.py", "my_model.py", "parts/layers.py"
    )
    assert "allow them with --run-code" in str(raised.value)
    one, two = saved_model.load(run).network, saved_model.load(tmp_path / "model", consent=True).network
    x = torch.randn(5, 4)
    assert torch.equal(one(x), two(x))


def test_a_downloaded_run_folder_runs_no_code_without_consent(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It brings inputs.json and digests of its own, so nothing in it counts: only what this user has trained."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    shutil.copytree(run, tmp_path / "x-001")
    (tmp_path / "a.npz").touch()
    for command in (["evaluate"], ["predict", str(tmp_path / "a.npz")], ["export"]):
        assert main.main([command[0], str(tmp_path / "x-001"), *command[1:]]) == CheckpointError.exit_code
        output = capsys.readouterr().err
        assert says(output, "contains-code-runs-model-used", "my_data.py")
        assert "allow them with --run-code" in output
        assert omits(output, "running-model-own-code-2")
    assert main.main(["train", str(tmp_path / "x-001/job.yaml"), "--runs", str(tmp_path / "runs")]) == 4
    output = capsys.readouterr().err
    assert says(output, "contains-code-runs-model-used", "my_data.py")
    assert says(output, "stored-job-code", tmp_path / "x-001")
    assert not (tmp_path / "runs").exists()


def test_evaluate_runs_no_code_that_the_run_folder_only_points_to(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """state.json says where the spec lay, and job.yaml which file reads the data: both come with a download."""
    shutil.copytree(run, tmp_path / "x-001")
    shutil.copytree(run.parent.parent, tmp_path / "evil", ignore=shutil.ignore_patterns("runs"))
    bomb = f"open({str(tmp_path / 'exploded')!r}, 'w')\n"
    (tmp_path / "evil" / "my_data.py").write_text(bomb + FILES["my_data.py"])
    write_json(tmp_path / "x-001" / "state.json", {"status": "done", "source": str(tmp_path / "evil" / "job.yaml")})
    assert main.main(["evaluate", str(tmp_path / "x-001")]) == CheckpointError.exit_code
    assert "my_data.py has SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "exploded").exists()
    (tmp_path / "evil" / "my_data.py").write_bytes((run.parent.parent / "my_data.py").read_bytes())
    assert main.main(["evaluate", str(tmp_path / "x-001")]) == 0


def test_a_stored_job_runs_no_code_that_the_run_folder_only_points_to(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The code runs in other processes, which load nothing else either, such as a module that hides a library's."""
    shutil.copytree(run, tmp_path / "x-001")
    shutil.copytree(run.parent.parent, tmp_path / "evil", ignore=shutil.ignore_patterns("runs"))
    write_json(tmp_path / "x-001" / "state.json", {"status": "done", "source": str(tmp_path / "evil" / "job.yaml")})
    command = ["train", str(tmp_path / "x-001/job.yaml"), "--runs", str(tmp_path / "runs")]
    bomb = f"open({str(tmp_path / 'exploded')!r}, 'w')\n"
    (tmp_path / "evil" / "my_data.py").write_text(bomb + FILES["my_data.py"])
    assert main.main(command) == CheckpointError.exit_code
    assert "my_data.py has SHA-256" in capfd.readouterr().err
    # With digests in the run folder that are those of the code there.
    record = json.loads((run / "inputs.json").read_text())
    record["code"]["my_data.py"] = hash_file(tmp_path / "evil" / "my_data.py")
    write_json(tmp_path / "x-001" / "inputs.json", record)
    assert main.main(command) == CheckpointError.exit_code
    assert says(capfd.readouterr().err, "stored-job-code", tmp_path / "x-001")
    assert not (tmp_path / "exploded").exists()


def test_a_child_runs_only_the_code_that_its_parent_names(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run.parent.parent, tmp_path / "evil", ignore=shutil.ignore_patterns("runs"))
    (tmp_path / "evil" / "my_loss.py").write_text("import my_more\n" + LOSS)
    (tmp_path / "evil" / "my_more.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')\n")
    digests = json.loads((run / "inputs.json").read_text())["code"]
    digests["my_loss.py"] = hash_file(tmp_path / "evil" / "my_loss.py")
    for code in (digests, {}):
        source = SpecSource(run / "job.yaml", folder=tmp_path / "evil", code=code)
        with pytest.raises(CheckpointError, check=saying("which-is-not-recorded")):
            user_code.open_code(source.load().folder).bind("my_loss.py", "loss", {})()
    assert not (tmp_path / "exploded").exists()


def test_consent_is_for_what_the_job_calls_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job.yaml that calls the same files in another way, such as a function that they import."""
    shutil.copytree(run, tmp_path / "x-001")
    assert main.main(["evaluate", str(tmp_path / "x-001")]) == 0
    spec = (tmp_path / "x-001" / "job.yaml").read_text()
    (tmp_path / "x-001" / "job.yaml").write_text(spec.replace("width: 6", "width: 7"))
    assert main.main(["evaluate", str(tmp_path / "x-001")]) == CheckpointError.exit_code
    assert "allow them with --run-code" in capsys.readouterr().err
    assert main.main(["train", str(tmp_path / "x-001/job.yaml"), "--runs", str(tmp_path / "runs")]) == 4
    assert says(capsys.readouterr().err, "stored-job-code", tmp_path / "x-001")


@pytest.mark.parametrize(
    "state", ['{"status": "done", "source": ["a"]}', "[]", '{"status": "done"}'], ids=["list", "no object", "nothing"]
)
def test_a_state_that_names_no_folder(run: Path, tmp_path: Path, state: str) -> None:
    shutil.copytree(run, tmp_path / "x-001")
    (tmp_path / "x-001" / "state.json").write_text(state)
    command = ["train", str(tmp_path / "x-001/job.yaml"), "--runs", str(tmp_path / "runs")]
    assert main.main(command) in (SpecError.exit_code, DataError.exit_code, CheckpointError.exit_code)


def test_consent_is_for_what_is_called_too(run: Path, tmp_path: Path) -> None:
    """The same code with another function or other arguments is not what was trained here."""
    shutil.copytree(run, tmp_path / "x-001")
    saved_model.load(tmp_path / "x-001")
    config = json.loads((tmp_path / "x-001" / "model" / "config.json").read_text())
    config["arguments"]["arguments"]["width"] = 7
    write_config(tmp_path / "x-001" / "model", config)
    with pytest.raises(CheckpointError, match="allow them with --run-code"):
        saved_model.load(tmp_path / "x-001")


def test_consent_counts_only_in_a_folder_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not code_consent.has_consent(tmp_path / "config.json")
    assert code_consent.record_training(tmp_path / "config.json") is None
    assert code_consent.has_consent(tmp_path / "config.json")
    records_folder = code_consent.find_records_folder()
    assert records_folder is not None
    assert records_folder.stat().st_mode & 0o777 == 0o700
    records_folder.chmod(0o777)
    assert not code_consent.has_consent(tmp_path / "config.json")
    assert says_only(
        code_consent.record_training(tmp_path / "config.json"), "is-writable-by-other-users", records_folder
    )
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name)
    assert says_only(code_consent.record_training(tmp_path / "config.json"), "neither-xdg-state-home")


@pytest.mark.parametrize("change", ["changed", "added", "bytecode"])
def test_only_code_with_recorded_digests_is_run(change: str, run: Path, tmp_path: Path) -> None:
    copied_run = tmp_path / "x-001"
    shutil.copytree(run, copied_run)
    code = copied_run / "model" / "code"
    bomb = f"open({str(tmp_path / 'exploded')!r}, 'w')\n"
    if change == "changed":
        (code / "parts" / "layers.py").write_text(bomb + FILES["parts/layers.py"])
    elif change == "added":
        (code / "parts" / "__init__.py").write_text(bomb)
    else:
        import importlib.util
        import py_compile

        good = (code / "my_model.py").read_text()
        (code / "my_model.py").write_text(bomb + good)
        cached = importlib.util.cache_from_source(str(code / "my_model.py"))
        py_compile.compile(
            str(code / "my_model.py"), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        (code / "my_model.py").write_text(good)
    if change == "bytecode":
        saved_model.load(copied_run)
    else:
        with pytest.raises(CheckpointError, match=r"has SHA-256 .*, (expected|which is not recorded)"):
            saved_model.load(copied_run)
    assert not (tmp_path / "exploded").exists()


def test_code_outside_of_the_model_is_not_run(run: Path, tmp_path: Path) -> None:
    copied_run = tmp_path / "x-001"
    shutil.copytree(run, copied_run)
    config = json.loads((copied_run / "model" / "config.json").read_text())
    (tmp_path / "evil.py").write_text(MODEL)
    config["arguments"]["file"] = "../../../evil.py"
    write_config(copied_run / "model", config)
    with pytest.raises(CheckpointError, match="allow them with --run-code"):
        saved_model.load(copied_run)
    with pytest.raises(CheckpointError, match="is outside"):
        saved_model.load(copied_run, consent=True)


def test_an_unfinished_run_keeps_its_code(run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    code = user_code.open_code(tmp_path)
    assert code.bind("a.py", "f", {})() == 1
    user_code.record_digests(tmp_path, code)
    user_code.record_digests(tmp_path, code)
    (tmp_path / "a.py").write_text("def f():\n    return 2\n")
    changed_code = user_code.Code(tmp_path)
    assert changed_code.bind("a.py", "f", {})() == 2
    with pytest.raises(CheckpointError, check=saying("unfinished-started-different", "a.py")):
        user_code.record_digests(tmp_path, changed_code)


GRIDS = """
import torch

def load():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    return (x, x.reshape(40, 2, 2)), (x, x.reshape(40, 2, 2))
"""
DISTANCE = """
def loss():
    return lambda outputs, targets: (outputs.reshape(targets.shape) - targets).pow(2).mean()
"""


def test_targets_that_only_the_user_loss_interprets(tmp_path: Path) -> None:
    files = {"my_data.py": GRIDS, "my_loss.py": DISTANCE}
    run = train_job(write_job(tmp_path, files, train="loss: {file: my_loss.py}", model="arguments: {outputs: 4}"))
    result = json.loads((run / "result.json").read_text())
    assert list(result["best"]["metrics"]) == ["validation/loss"]
    assert result["confusion"] == {}
    model = saved_model.load(run)
    inputs = dummy_inputs.make_inputs(model.preprocessing, 3, seed=0)
    np.savez(tmp_path / "new.npz", inputs=inputs[0].numpy())
    data = load_data.load_new([tmp_path / "new.npz"], model.preprocessing, model.heads, labelled=False)
    batches = forward.compute_outputs(model.network, model.heads, data.split, data.prepare, torch.device("cpu"))
    answers = [answer[""]["prediction"] for _, answer in predictions.compute_answers(batches, model.heads, data.split)]
    with torch.inference_mode():
        np.testing.assert_allclose(answers, model.network(inputs[0]).numpy(), rtol=1e-6)


LATE = """
class Late(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(4, outputs)

    def forward(self, x):
        if self.training and len(x) > 8:
            raise ValueError("more than eight")
        return self.last(x)
"""


def test_an_error_during_training_shows_the_users_lines(tmp_path: Path) -> None:
    path = write_job(tmp_path, {"my_model.py": "from torch import nn\n" + LATE}, model="factory: Late")
    with pytest.raises(SpecError) as raised:
        train_job(path)
    assert says_only(
        str(raised.value), "object-returned-late-raised", path, 4, 9, "model.file", "my_model.py", 10, "more than eight"
    )


def test_an_error_inside_torchs_layers_is_reported_too(tmp_path: Path) -> None:
    text = "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(4, 2), nn.Unflatten(0, (-1, 2)), nn.Flatten(0, 1))\n"
    path = write_job(tmp_path, {"my_model.py": text})
    with pytest.raises(SpecError) as raised:
        train_job(path, "train.batch_size=19")  # the layer wants pairs
    assert says(str(raised.value), "object-returned-build-raised", "model.file", "my_model.py")
    layer, action = str(raised.value).splitlines()[1:]
    assert layer.startswith("    in layer 1: Unflatten(dim=0")
    assert says_only(action, "change-layer-gets-data")


def test_an_error_of_the_user_loss_names_the_loss(tmp_path: Path) -> None:
    loss_code = LOSS.replace(
        "return functional.cross_entropy",
        "return late\n\ndef late(outputs, targets):\n    return functional.cross_entropy(outputs, targets[:16])",
    )
    path = write_job(tmp_path, {"my_loss.py": loss_code}, train="loss: {file: my_loss.py}, steps: 1")
    with pytest.raises(SpecError) as raised:
        train_job(path, "train.batch_size=17")
    assert says(str(raised.value), "object-returned-loss-raised", "train.loss.file", "my_loss.py", 17)
    assert says(str(raised.value), "in-late-return", "my_loss.py", 7, "functional.cross_entropy")
