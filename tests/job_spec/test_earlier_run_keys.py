"""Keys that contradict the earlier run a job starts from: `validate` refuses them, from the run's config.json alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from drivetrain.cli.main import main
from drivetrain.data.dataset import Head
from drivetrain.job_spec import load_job
from drivetrain.pretrained.model_config import FORMAT
from tests.edited_model import write_config
from tests.messages import says

IMAGES = "task: image-classification\ndata: {train: folder, "
TABLE = "task: tabular-classification\ndata: {train: rows.csv, "
SERIES = "task: series-classification\ndata: {train: rows.csv, window: 2, "
PREPROCESSING = {
    "image-classification": {
        **{"kind": "images", "image_size": 32, "channels": 3, "fit": "pad", "classes": ["a", "b"]},
        **{"interpolation": "bilinear", "crop_share": 1.0},
        **{"low": 0, "high": 255, "mean": [0, 0, 0], "std": [1, 1, 1], "path_column": "path", "label_column": "label"},
    },
    "tabular-classification": {
        **{"kind": "table", "target": ["kind"], "classes": True},
        "numeric": [{"name": "age", "mean": 0, "std": 1, "median": 0, "missing": False, "edges": []}],
        "categorical": [{"name": "city", "values": ["Lima"], "missing": False}],
    },
    "series-classification": {
        **{"kind": "series", "form": "long", "channels": 2, "features": ["heat", "noise"], "length": 2, "window": 2},
        **{"stride": 1, "time": "time", "label": ["kind"], "classes": True, "group": None, "max_gap": None},
        **{"mean": [0, 0], "std": [1, 1]},
    },
}
ROWS = "age,city,kind,price,heat,noise,time\n1,Lima,a,2,3,4,5\n2,Lima,b,2,3,4,6\n"

REFUSED = {
    "fit": (
        f"{IMAGES}fit: squash}}",
        "data.fit: is squash, and the earlier run was trained on pad",
        "pad",
        "write pad, or remove the key",
    ),
    "channels": (
        f"{IMAGES}channels: 1}}",
        "data.channels: is 1, and the earlier run was trained on 3",
        "3",
        "write 3, or remove the key",
    ),
    "target": (
        f"{TABLE}target: city}}",
        "data.target: has 'city', which is a feature of the earlier run",
        "a column that it did not see",
        "use another run",
    ),
    "ignore": (
        f"{TABLE}target: kind, ignore: [city]}}",
        "data.ignore: has 'city', which is a feature of the earlier run",
        "columns that it did not see",
        "remove it from data.ignore, or use another run",
    ),
    "features": (
        f"{TABLE}target: kind, features: [age, price]}}",
        "data.features: is age, price, and the earlier run was trained on age, city",
        "the same columns",
        "remove data.features",
    ),
    "numeric": (
        f"{TABLE}target: kind, numeric: [price]}}",
        "data.numeric: has 'price', which is not a numeric feature of the earlier run",
        "its numeric features: age",
        "remove data.numeric",
    ),
    "categorical": (
        f"{TABLE}target: kind, categorical: [age]}}",
        "data.categorical: has 'age', which is not a categorical feature of the earlier run",
        "its categorical features: city",
        "remove data.categorical",
    ),
    "time": (
        f"{SERIES}label: kind, time: heat}}",
        "data.time: has 'heat', which is a feature of the earlier run",
        "a column that it did not see",
        "use another run",
    ),
    "series features": (
        f"{SERIES}label: kind, time: time, features: [noise, heat]}}",
        "data.features: is noise, heat, and the earlier run was trained on heat, noise",
        "the same columns in the same order",
        "remove features",
    ),
}
ALLOWED = {
    "the same fit": f"{IMAGES}fit: pad, channels: auto}}",
    "another size": f"{IMAGES}image_size: 64}}",
    "the same features": f"{TABLE}target: kind, features: [city, age], numeric: [age]}}",
    "the same channels": f"{SERIES}label: kind, time: time, features: [heat, noise]}}",
}


def write_job(folder: Path, spec: str, builder: str = "images") -> Path:
    """A job that starts from a run that was trained on PREPROCESSING."""
    task = spec.split()[1]
    (folder / "folder").mkdir()
    (folder / "rows.csv").write_text(ROWS)
    head = asdict(Head("", ("a", "b")))
    config: dict[str, object] = {
        "format": FORMAT,
        "task": task,
        "builder": builder,
        "arguments": {},
        "heads": [head],
        "trained": {},
    }
    config["preprocessing"] = PREPROCESSING[task]
    (folder / "run" / "model").mkdir(parents=True)
    (folder / "run" / "model" / "model.safetensors").touch()
    write_config(folder / "run" / "model", config)
    path = folder / "job.yaml"
    path.write_text(f"name: next\n{spec}\nmodel: {{from: run}}\n")
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_validate_refuses_it(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec, description, possible, action = REFUSED[case]
    assert main(["validate", str(write_job(tmp_path, spec))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].split(": ", 1)[1] == description
    assert lines[1:] == [f"  possible: {possible}", f"  do:       {action}"]


@pytest.mark.parametrize("case", ALLOWED)
def test_what_agrees_is_valid(tmp_path: Path, case: str) -> None:
    load_job.load(write_job(tmp_path, ALLOWED[case]))


def test_a_network_for_one_size_takes_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, f"{IMAGES}image_size: 64}}", builder="vision")
    assert main(["validate", str(path)]) == 2
    assert says(capsys.readouterr().err, "earlier-run-trained", "data.image_size", 64, 32)


def test_train_leaves_no_run_folder(tmp_path: Path) -> None:
    """It was refused at the start of training, each time with a failed run folder."""
    path = write_job(tmp_path, REFUSED["fit"][0])
    assert main(["train", str(path), "--runs", str(tmp_path / "runs")]) == 2
    assert not (tmp_path / "runs").exists()
