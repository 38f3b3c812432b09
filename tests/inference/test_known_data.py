"""`evaluate --data` says so if the data is what the run was trained on."""

from __future__ import annotations

import json
from pathlib import Path

from drivetrain.inference.evaluate import find_known_data
from drivetrain.system.files import hash_file


def test_the_training_data_under_another_name_is_known(tmp_path: Path) -> None:
    """Its accuracy of 1.0 looked like that of new samples."""
    run, data = tmp_path / "run", tmp_path / "data"
    run.mkdir()
    data.mkdir()
    (data / "a.csv").write_text("x,y\n1,2\n")
    (data / "b.csv").write_text("x,y\n3,4\n")
    assert find_known_data(run, data / "a.csv") is None
    rows = {"old name.csv": f"8 1 2 3 {hash_file(data / 'a.csv')}"}
    (run / "inputs.json").write_text(json.dumps({"files": {"data.train": {"folder": False, "rows": rows}}}))
    assert find_known_data(run, data / "a.csv") == "data.train"
    assert find_known_data(run, data) == "data.train"
    assert find_known_data(run, data / "b.csv") is None
    for odd in ("[]", "{}", '{"files": 3}', '{"files": {"data.train": {"rows": [1]}}}'):
        (run / "inputs.json").write_text(odd)
        assert find_known_data(run, data / "a.csv") is None
