"""Credentials of a tracking server reach that server alone, and no file or message."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.tracking.servers.mlflow import MlflowServer
from tests.messages import says
from tests.mlflow_double import MlflowDouble, serve_mlflow
from tests.tracking.tracked_run import make_folder


def test_commands_that_name_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_folder(tmp_path, "http://127.0.0.1:9")
    assert main.main(["track", str(run)]) == 7
    assert says(capsys.readouterr().err, "reached-connection-refused")
    assert main.main(["track", str(run), "--mlflow", "http://me:secret@host"]) == 2
    assert says(capsys.readouterr().err, "address-without-user-password")
    (run / "job.yaml").write_text("name: small\n")
    assert main.main(["track", str(run)]) == 2
    assert f"drivetrain track {run} --mlflow http://127.0.0.1:5000" in capsys.readouterr().err


def test_the_token_is_sent_and_in_no_file(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_folder(tmp_path, server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server.address}/")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "very-secret-token")
    assert main.main(["track", str(run)]) == 0
    assert {authorization for _, authorization in server.requests} == {"Bearer very-secret-token"}
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "very-secret-password")
    server.fault = lambda number, path: (401, {}, b"no")
    assert main.main(["track", str(run)]) == 7
    assert server.requests[-1][1].startswith("Basic ")
    texts = [path.read_text() for path in run.rglob("*") if path.is_file()]
    assert not [text for text in (*texts, *capsys.readouterr()) if "very-secret" in text]


@pytest.mark.parametrize(
    "user_address", ["", "http://127.0.0.1:9", "https://{}", "http://localhost:1/{}", "databricks", "http://["]
)
def test_a_server_that_only_the_job_names_gets_no_credentials(
    server: MlflowDouble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    user_address: str,
) -> None:
    run = make_folder(tmp_path, server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", user_address.format(server.address.rpartition("/")[2]))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "very-secret-password")
    assert main.main(["track", str(run)]) == 0
    assert {authorization for _, authorization in server.requests} == {""}
    text = capsys.readouterr().out
    assert says(text, "credentials-machine-sent-since")
    assert says(text, "your-server-export-mlflow", server.address)
    server.fault = lambda number, path: (401, {}, b"no")
    assert main.main(["track", str(run)]) == 7
    assert "are not sent" in capsys.readouterr().err
    server.fault = lambda number, path: None
    assert main.main(["track", str(run), "--mlflow", server.address]) == 0
    assert server.requests[-1][1].startswith("Basic "), "the user names it"


@pytest.mark.parametrize("address", ["http://mlflow.example", "http://10.0.0.1:5000", "http://127.0.0.1.example"])
def test_nothing_secret_goes_over_http_to_another_machine(tmp_path: Path, address: str) -> None:
    environ = {"MLFLOW_TRACKING_URI": address, "MLFLOW_TRACKING_TOKEN": "very-secret-token"}
    server = MlflowServer(address, tmp_path / "run.json", environ)
    assert server.authorization == ""
    assert "not encrypted" in server.withheld
    safe = {**environ, "MLFLOW_TRACKING_URI": address.replace("http:", "https:")}
    assert MlflowServer(safe["MLFLOW_TRACKING_URI"], tmp_path / "run.json", safe).authorization


def test_a_proxy_does_not_read_what_stays_on_this_machine(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_mlflow(MlflowDouble()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "very-secret-token")
        assert main.main(["track", str(make_folder(tmp_path, server.address))]) == 0
    assert proxy.requests == []


def test_a_redirect_takes_no_credentials_along(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "very-secret-token")
    with serve_mlflow(MlflowDouble()) as other:
        for status in (301, 302, 307, 308):
            answer = (status, {"Location": f"{other.address}/"}, b"")
            server.fault = lambda number, path, answer=answer: answer
            assert main.main(["track", str(make_folder(tmp_path / str(status), server.address))]) == 7
    assert other.requests == []


def test_a_token_with_a_line_break_is_in_no_message(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "very-secret\ntoken")
    assert main.main(["track", str(make_folder(tmp_path, server.address))]) == 7
    text = capsys.readouterr().err
    assert "without line breaks" in text
    assert "very-secret" not in text
