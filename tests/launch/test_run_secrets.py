"""What a run gets from the environment of its starter, as which files, and what it makes of them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.yaml_file import parse
from drivetrain.launch import network, run_secrets
from drivetrain.storage import store_variables
from drivetrain.supervisor import supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system import secrets
from tests.messages import get_message, omits, saying, says, says_each, says_only
from tests.paths import ROOT

IMAGES = "name: a\ntask: image-classification\ndata: {train: x}\n"
HUB = "model: {source: transformers, name: some/net}\n"
PROXY = {"https_proxy": "http://me:word@proxy:3128", "NO_PROXY": "localhost", "HTTP_PROXY": ""}


def collect_secrets(text: str, online: bool, **environ: str) -> tuple[dict[str, bytes], list[str]]:
    return run_secrets.collect(job_spec.check(parse(IMAGES + text, "job.yaml")), online, {"HOME": "/nowhere"} | environ)


def test_without_a_network_a_run_gets_what_its_job_names_and_no_more() -> None:
    values, lines = collect_secrets(
        "environment: [MY_KEY]\n" + HUB, False, MY_KEY="k", HF_TOKEN="t", PIP_CERT="/x", **PROXY
    )
    assert values == {"MY_KEY": b"k"}
    assert says_each(lines, [get_message("environment-my-key-handed")])


def test_with_a_network_proxies_and_certificates_follow(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificates")
    variables = {"HF_TOKEN": "t", "SSL_CERT_FILE": str(tmp_path / "ca.pem"), "OTHER": "x", **PROXY}
    values, lines = collect_secrets("", True, **variables)
    proxies = {"https_proxy": b"http://me:word@proxy:3128", "NO_PROXY": b"localhost"}
    assert values == proxies | {"ca": b"certificates"}, "no token for a job that is not from the hub"
    assert says_only(lines[1], "certificates-those-ssl-cert", f"{tmp_path}/ca.pem")
    assert "word" not in "".join(lines)
    assert collect_secrets(HUB, True, **variables, HF_ENDPOINT="https://mirror")[0] == values | {
        "HF_TOKEN": b"t",
        "HF_ENDPOINT": b"https://mirror",
    }


def test_the_proxies_of_dockers_client_follow_with_a_network_only(tmp_path: Path) -> None:
    """Compose set them in every container, also without a network, for everybody who may ask the engine."""
    client = {"httpProxy": "http://me:word@a:1", "httpsProxy": "http://b:2", "noProxy": "c", "ftpProxy": 3}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": client}}))
    assert collect_secrets("", False, DOCKER_CONFIG=str(tmp_path)) == ({}, [])
    values, lines = collect_secrets("", True, DOCKER_CONFIG=str(tmp_path), https_proxy="http://own:3")
    both = {"HTTP_PROXY": client["httpProxy"], "NO_PROXY": "c"}
    expected = {"https_proxy": "http://own:3"} | both | {name.lower(): value for name, value in both.items()}
    assert {name: value.decode() for name, value in values.items()} == expected
    assert "word" not in "".join(lines)
    for text in ("", "[]", '{"proxies": []}', '{"proxies": {"default": ["x"]}}'):
        (tmp_path / "config.json").write_text(text)
        assert collect_secrets("", True, DOCKER_CONFIG=str(tmp_path))[0] == {}


def test_a_proxy_that_compose_has_emptied_gives_way_to_a_secret(tmp_path: Path) -> None:
    (tmp_path / "HTTPS_PROXY").write_text("http://proxy:1")
    environ = {"DRIVETRAIN_IMAGE": "cpu", "HTTPS_PROXY": "", "https_proxy": "", "OTHER": ""}
    secrets.load_secrets(environ, tmp_path)
    assert environ == {"DRIVETRAIN_IMAGE": "cpu", "HTTPS_PROXY": "http://proxy:1", "OTHER": ""}


@pytest.mark.parametrize(
    ("track", "expected"),
    [
        ("mlflow: 'http://127.0.0.1:5000'", {"MLFLOW_TRACKING_TOKEN": b"hidden"}),
        ("wandb: parts", {"WANDB_API_KEY": b"key"}),
    ],
)
def test_a_tracked_job_gets_a_network_and_the_credentials_of_its_client(
    track: str, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"track: {{{track}}}\n"
    variables = {"MLFLOW_TRACKING_TOKEN": "hidden", "WANDB_API_KEY": "key"}
    values, lines = collect_secrets(text, True, **variables)
    assert values == expected
    assert ("127.0.0.1" in "".join(lines)) == track.startswith("mlflow"), "there it is the container itself"
    job = job_spec.check(parse(IMAGES + text, "job.yaml"))
    assert network.decide(job)[0]
    assert not network.decide(job_spec.check(parse(IMAGES, "job.yaml")))[0]
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert network.decide(job)[0] == track.startswith("mlflow")


def test_the_credentials_of_a_store_follow_for_a_job_that_is_copied_there() -> None:
    variables = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_PROFILE": "mine",
        "GOOGLE_BEARER_TOKEN": "t",
    }
    copying_spec = "checkpoint: {copy_to: s3://bucket/runs}\n"
    values, lines = collect_secrets(copying_spec, True, **variables)
    assert values == {name: variables[name].encode() for name in list(variables)[:3]}
    assert "hidden" not in "".join(lines)
    assert says_only(lines[-1], "aws-endpoint-url-names", "127.0.0.1")
    assert collect_secrets("", True, **variables)[0] == {}
    assert collect_secrets(copying_spec, False, **variables)[0] == {}


@pytest.mark.parametrize("name", store_variables.FILES)
def test_a_file_of_credentials_follows_and_its_variable_names_it(tmp_path: Path, name: str) -> None:
    scheme = next(scheme for scheme, prefix in store_variables.PREFIXES.items() if name.startswith(prefix))
    (tmp_path / "key.json").write_text("a-token\n")
    copying_spec = f"checkpoint: {{copy_to: {scheme}://bucket/runs}}\n"
    values, lines = collect_secrets(copying_spec, True, **{name: str(tmp_path / "key.json")})
    assert values == {f"{name}.file": b"a-token\n"}
    assert "a-token" not in "".join(lines)
    assert (says if name in store_variables.RENEWED else omits)(lines, "is-not-renewed-in-run")
    assert collect_secrets(f"environment: [{name}]\n", False, **{name: str(tmp_path / "key.json")})[0] == values
    inside = tmp_path / "secrets"
    inside.mkdir()
    (inside / f"{name}.file").write_bytes(values[f"{name}.file"])
    environ = {"DRIVETRAIN_IMAGE": "cpu"}
    secrets.load_secrets(environ, inside)
    assert environ[name] == str(inside / f"{name}.file")
    assert secrets.mask_secrets("401 for a-token", environ, inside) == "401 for ***"
    with pytest.raises(SpecError) as caught:
        collect_secrets(copying_spec, True, **{name: "/nowhere"})
    assert says_only(str(caught.value), "file-nowhere-read-file", name)


def test_the_token_of_a_login_is_found(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("stored\n")
    assert collect_secrets(HUB, True, HF_HOME=str(tmp_path))[0] == {"HF_TOKEN": b"stored"}
    assert collect_secrets(HUB, True, HF_HOME=str(tmp_path), HF_TOKEN="given")[0] == {"HF_TOKEN": b"given"}
    assert collect_secrets(HUB, True, HF_HOME=str(tmp_path / "none"))[0] == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:3128", "localhost:3128", "http://[::1]:1"])
def test_a_proxy_of_this_host_is_out_of_reach(url: str) -> None:
    assert says(collect_secrets("", True, HTTPS_PROXY=url)[1][-1], "container-container-itself")
    assert "no_proxy names" not in "".join(collect_secrets("", True, no_proxy="localhost")[1])


def test_certificates_that_cannot_be_read() -> None:
    with pytest.raises(SpecError, check=saying("pip-cert-none-read")):
        collect_secrets("", True, PIP_CERT="/none")


def test_a_missing_variable_is_refused_where_it_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        collect_secrets("environment: [MY_KEY, B]\n", False)
    assert says_only(str(caught.value), "environment-my-key-set", "job.yaml", 4, 1)
    monkeypatch.delenv("MY_KEY", raising=False)
    request = TrainRequest(SpecSource(ROOT / "jobs" / "digits.yaml", ("environment=[MY_KEY]",)), tmp_path)
    with pytest.raises(SpecError, check=saying("environment-my-key-set-2")):
        supervisor.train(request)
    assert list(tmp_path.iterdir()) == []


def test_files_are_private_and_gone_afterwards(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/nowhere"}
    (tmp_path / "drivetrain-secrets-4194999").mkdir()  # larger than any number of a process
    (tmp_path / f"drivetrain-secrets-{os.getpid()}").mkdir()  # of a killed process that had the same number
    with run_secrets.write_for_block({"A": b"1", "ca": b"2"}, {}, 1000, environ) as written:
        assert written.folder.parent == tmp_path
        assert stat.S_IMODE(written.folder.stat().st_mode) == 0o700
        for mount in written.mounts():
            status = mount.source.stat()
            assert mount.target == Path("/run/secrets", mount.source.name)
            assert stat.S_IMODE(status.st_mode) == 0o400
            assert status.st_uid == (os.getuid() or 1000)
        assert [path.name for path in tmp_path.iterdir()] == [written.folder.name], "what a killed starter left is gone"
    assert list(tmp_path.iterdir()) == []
    with run_secrets.write_for_block({}, {}, 1000, environ) as written:
        assert written.mounts() == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("info", "memory", "expected"),
    [
        ({"DockerRootDir": "/var/lib/docker"}, True, "run"),
        ({"DockerRootDir": "/var/lib/docker"}, False, "home/.cache/drivetrain"),
        ({"DockerRootDir": "/var/snap/docker/common/var-lib-docker"}, True, "home/snap/docker/common"),
        ({"OperatingSystem": "Docker Desktop"}, True, "home/.cache/drivetrain"),
    ],
)
def test_the_engine_sees_the_folder(tmp_path: Path, info: dict[str, str], memory: bool, expected: str) -> None:
    (tmp_path / "run").mkdir()
    environ = {"HOME": str(tmp_path / "home")} | ({"XDG_RUNTIME_DIR": str(tmp_path / "run")} if memory else {})
    assert run_secrets.engine_folder(info, environ) == tmp_path / expected


def test_a_variable_cannot_take_the_place_of_the_certificates() -> None:
    with pytest.raises(SpecError, check=saying("environment-ca-container-file")):
        collect_secrets("environment: [ca]\n", False, ca="value")


def test_a_value_that_the_image_sets_itself_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "HOME").write_text("s3cret")
    (tmp_path / "KEY").write_bytes(b"line\r\nline")
    environ = {"DRIVETRAIN_IMAGE": "cpu", "HOME": "/tmp"}
    secrets.load_secrets(environ, tmp_path)
    assert environ == {"DRIVETRAIN_IMAGE": "cpu", "HOME": "/tmp", "KEY": "line\r\nline"}
    stderr = capsys.readouterr().err
    assert says_only(stderr, "environment-home-set-image")


def test_an_image_takes_its_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"HF_TOKEN": "t0ken123\n", "SET": "other", "EMPTY": "", "not-a-name": "x", "ca": "c"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    outside: dict[str, str] = {}
    secrets.load_secrets(outside, tmp_path)
    assert outside == {}
    environ = {"DRIVETRAIN_IMAGE": "cpu", "SET": "mine"}
    secrets.load_secrets(environ, tmp_path)
    ca = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), str(tmp_path / "ca"))
    assert environ == {"DRIVETRAIN_IMAGE": "cpu", "SET": "mine", "HF_TOKEN": "t0ken123", **ca}
    assert secrets.mask_secrets("401 for t0ken123", environ, tmp_path) == "401 for ***"
