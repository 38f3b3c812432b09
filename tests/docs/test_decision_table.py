"""The golden file of decisions is what the program decides today, and it covers what it should."""

from __future__ import annotations

import subprocess
import sys

from tests.paths import GOLDEN, ROOT

PAGE = GOLDEN / "decisions.md"
WANTED = {
    "rtx3060-driver550": ("legacy", "bf16", "false"),
    "rtx3060-driver580": ("ampere", "bf16", "false"),
    "rtx4090": ("ampere", "bf16", "false"),
    "l4": ("ampere", "bf16", "false"),
    "rtx5090": ("ampere", "bf16", "false"),
    "gtx960": ("legacy", "fp32", "false"),
    "quadro-t1000": ("legacy", "fp32", "false"),
    "gtx1650-4gb": ("legacy", "fp32", "false"),
    "gpu-2gb": ("legacy", "fp32", "false"),
}


def test_the_file_is_what_its_command_prints() -> None:
    command = [sys.executable, "-m", "docs.generate.decision_table", "jobs/digits.yaml", "tests/machines"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output == PAGE.read_text(encoding="utf-8"), "run `make reference`"


def test_every_machine_has_its_row_and_its_reasons() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    header, row_by_machine = rows[0], {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}
    assert {"image", "precision", "compile", "channels last", "workers", "threads"} <= set(header)
    assert set(row_by_machine) == {path.stem for path in (ROOT / "tests/machines").glob("*.json")}
    assert all(f"**{name}**" in text for name in row_by_machine)
    for name, expected in WANTED.items():
        row = row_by_machine[name]
        assert (row["image"], row["precision"], row["compile"]) == expected, name
