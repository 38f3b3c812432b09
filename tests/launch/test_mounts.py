"""What a container may read beside the project: each file and folder that a spec names, and no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.launch import compose_project, container, mounts, network
from tests import own_job
from tests.messages import ends_with, saying, says, says_only
from tests.paths import ROOT

IMAGES = "name: a\ntask: image-classification\ndata: {train: photos}\n"


def write_spec(folder: Path, text: str = IMAGES) -> Path:
    (folder / "photos").mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def list_sources(path: Path) -> list[str]:
    """Sources that lie where they are."""
    job_mounts = mounts.list_job_mounts(path, job_spec.load(path))
    assert all(mount.source == mount.target for mount in job_mounts)
    return [str(mount.source) for mount in job_mounts]


def test_the_spec_and_its_data_one_by_one(tmp_path: Path) -> None:
    """A spec in a home brought the whole home, keys included."""
    path = write_spec(tmp_path)
    (tmp_path / "id_rsa").write_text("secret")
    assert list_sources(path) == [str(path), str(tmp_path / "photos")]


def test_a_job_of_the_project_needs_nothing() -> None:
    assert list_sources(ROOT / "jobs" / "digits.yaml") == []


def test_a_model_folder_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    text = IMAGES + f"model: {{source: transformers, name: {tmp_path / 'encoder'}}}\n"
    assert str(tmp_path / "encoder") in list_sources(write_spec(tmp_path, text))


def test_weights_of_timm_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    text = IMAGES + "model: {source: timm, name: resnet18, weights: a.safetensors}\n"
    assert str(tmp_path / "a.safetensors") in list_sources(write_spec(tmp_path, text))


def test_a_snapshot_of_the_hub_comes_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    hub = tmp_path / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "1").mkdir(parents=True)
    (hub / "blobs" / "x").touch()
    (hub / "snapshots" / "1" / "config.json").symlink_to("../../blobs/x")
    text = IMAGES + f"model: {{source: transformers, name: {hub / 'snapshots' / '1'}}}\n"
    assert list_sources(write_spec(tmp_path, text)) == [str(tmp_path / "job.yaml"), str(hub), str(tmp_path / "photos")]


def test_user_code_mounts_its_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for name in ("my_data.py", "my_model.py"):
        (tmp_path / "code" / name).write_text(own_job.DATA if name == "my_data.py" else own_job.MODEL)
    path = tmp_path / "job.yaml"
    path.write_text("name: a\ntask: custom\ndata: {file: code/my_data.py}\nmodel: {file: code/my_model.py}\n")
    assert list_sources(path) == [str(tmp_path / "code"), str(path)]


def test_a_manifest_of_images_brings_its_folder(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "list.csv").write_text("path,label\na.png,b\n")
    path = write_spec(tmp_path, "name: a\ntask: image-classification\ndata: {train: set/list.csv}\n")
    assert list_sources(path) == [str(path), str(tmp_path / "set")]


def read_refusal(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        mounts.list_job_mounts(path, job_spec.load(path))
    assert len(str(caught.value).splitlines()) == 3
    assert caught.value.exit_code == 2
    return str(caught.value)


def _home(folder: Path) -> str:
    return str(folder / "home")


@pytest.mark.parametrize(
    ("data_path", "reason"),
    [
        ("/", "it contains more than data"),
        ("/etc", "/etc belongs to the system"),
        ("/etc/ssl", "/etc belongs to the system"),
        ("/var", "it contains more than data"),
        ("/proc/self", "/proc belongs to the system"),
        ("/sys", "/sys belongs to the system"),
        ("/tmp", "it contains more than data"),
        ("HOME", "it is a home folder, or contains one"),
        ("HOME/..", "it is a home folder, or contains one"),
        ("HOME/.ssh", ".ssh in a home folder contains keys and settings"),
        ("LINK", "it is a home folder, or contains one"),
        ("REAL", "it is a home folder, or contains one"),
        ("REAL/.ssh", ".ssh in a home folder contains keys and settings"),
        ("COPY", "it holds keys: .ssh"),
        ("COPY/.ssh", ".ssh contains keys"),
    ],
)
def test_paths_that_are_never_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_path: str, reason: str
) -> None:
    home = tmp_path / "homes" / "me"
    (tmp_path / "disk" / "me" / ".ssh").mkdir(parents=True)
    (tmp_path / "backup" / ".ssh").mkdir(parents=True)
    (tmp_path / "homes").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "link").symlink_to(home)
    for word, path in (
        ("HOME", home),
        ("LINK", tmp_path / "link"),
        ("REAL", tmp_path / "disk" / "me"),
        ("COPY", tmp_path / "backup"),
    ):
        data_path = data_path.replace(word, str(path))
    message = read_refusal(
        write_spec(
            tmp_path, f"name: a\ntask: image-classification\ndata:\n  train: photos\n  validation: {data_path}\n"
        )
    )
    assert f"{tmp_path}/job.yaml:5:3: data.validation: " in message
    assert f"is not mounted: {reason}" in message


HIDDEN = [
    *(".npmrc", ".pypirc", ".kaggle", ".vault-token", ".pgpass", ".databrickscfg", ".oci", ".bash_history"),
    *(".cache", ".cache/pip", ".cache/drivetrain", ".cache/huggingface", ".cache/huggingface/hubs"),
    *(".cache/huggingface/token", ".cache/huggingface/stored_tokens"),
]


@pytest.mark.parametrize("name", HIDDEN)
def test_no_hidden_entry_of_a_home_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / name).mkdir(parents=True)
    assert says_only(mounts.find_obstacle(tmp_path / name), "home-folder-contains-keys", Path(name).parts[0])


@pytest.mark.parametrize("name", [".npmrc", ".pypirc", ".kaggle", ".vault-token", ".pgpass", ".databrickscfg", ".oci"])
def test_a_copy_of_keys_is_not_mounted_either(tmp_path: Path, name: str) -> None:
    (tmp_path / "backup" / name).mkdir(parents=True)
    assert mounts.find_obstacle(tmp_path / "backup") == f"it holds keys: {name}"
    assert mounts.find_obstacle(tmp_path / "backup" / name / "file") == f"{name} contains keys"


def test_the_downloads_of_a_home_are_mounted_without_their_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for cache in (tmp_path / "me" / ".cache" / "huggingface", tmp_path / "elsewhere"):
        (cache / "hub" / "models--a--b").mkdir(parents=True)
        (cache / "token").write_text("hf_secret")
        assert mounts.find_obstacle(cache / "hub" / "models--a--b") is None
        assert mounts.find_obstacle(cache) is not None
        assert mounts.find_obstacle(cache / "token") is not None


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\x1b[2Jb", "a\u2028b", "a\x85b"], ids=ascii)
def test_a_control_character_in_a_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    path = write_spec(tmp_path / name)
    assert says(read_refusal(path), "contains-control-character")
    (tmp_path / "link").symlink_to(tmp_path / name / "photos")
    assert says(read_refusal(write_spec(tmp_path, IMAGES.replace("photos", "link"))), "contains-control-character")


def test_code_beside_a_spec_in_a_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    message = read_refusal(own_job.write_job(tmp_path))
    assert says(message, "may-import-files-next", "model.file", "my_model.py")
    assert says(message, "copy-job-needs-separate")


def test_a_spec_in_a_home_alone_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write_spec(tmp_path)
    assert list_sources(path) == [str(path), str(tmp_path / "photos")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "jobs").mkdir(parents=True)
    for module in (mounts, container):
        monkeypatch.setattr(module, "PROJECT", folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("link", "target"),
    [
        (lambda folder: str(folder / "far"), lambda folder: folder / "far"),
        (lambda folder: "../../far", lambda folder: Path("/far")),
    ],
    ids=["absolute", "relative"],
)
def test_a_link_that_leads_out_of_the_project(
    project: Path, tmp_path: Path, link: Callable[[Path], str], target: Callable[[Path], Path]
) -> None:
    """It is mounted where the container looks, once it has followed the link."""
    (tmp_path / "far").mkdir()
    (project / "jobs" / "photos").symlink_to(link(tmp_path))
    (project / "jobs" / "job.yaml").write_text(IMAGES)
    path = Path("jobs/job.yaml")
    assert mounts.list_job_mounts(path, job_spec.load(path)) == [mounts.Mount(tmp_path / "far", target(tmp_path))]


def test_a_link_inside_a_data_folder_is_not_followed(tmp_path: Path) -> None:
    """Nobody has named what it leads to; inside it would be a broken link."""
    path = write_spec(tmp_path)
    (tmp_path / "secret").mkdir()
    (tmp_path / "photos" / "cats").symlink_to(tmp_path / "secret")
    message = read_refusal(path)
    assert says(message, "link-mounted-container", "data.train", f"{tmp_path}/photos/cats", f"{tmp_path}/secret")


@pytest.mark.parametrize("root", [mounts.WORKSPACE, None])
@pytest.mark.parametrize(
    ("link", "target", "outside", "inside"),
    [
        ("cats/1.png", "FAR/1.png", False, False),
        ("cats/deep/2.png", "FAR/1.png", False, False),
        ("cats", "FAR", False, False),
        ("cats/1.png", "../../../../far/1.png", False, False),
        ("cats/1.png", "../store/1.png", True, True),
        ("cats/1.png", "HERE/store/1.png", True, None),
        ("cats/1.png", "../lost.png", True, True),
        (".cache/1.png", "FAR/1.png", True, True),
    ],
)
def test_links_in_class_folders(
    project: Path,
    tmp_path: Path,
    link: str,
    target: str,
    outside: bool,
    inside: bool | None,
    root: Path | None,
) -> None:
    """Each is followed as the container does it, for data outside of the project and inside of it, whose path may differ.

    The container trained on fewer samples than the laptop, without a word.
    """
    for folder, is_visible in ((tmp_path / "own", outside), (project / "jobs", inside)):
        photos = folder / "photos"
        (photos / "store").mkdir(parents=True)
        (tmp_path / "far").mkdir(exist_ok=True)
        (photos / link).parent.mkdir(parents=True, exist_ok=True)
        (photos / link).symlink_to(target.replace("FAR", str(tmp_path / "far")).replace("HERE", str(photos)))
        if is_visible is None:
            is_visible = root is None
        origin = "data.train"
        if is_visible:
            list(mounts.list_path_mounts(origin, photos, root or project))
        else:
            with pytest.raises(
                SpecError, check=saying("link-mounted-container", origin, photos / link, (photos / link).resolve())
            ):
                list(mounts.list_path_mounts(origin, photos, root or project))
        list(mounts.list_path_mounts(origin, folder, root or project, is_code=True))


def test_a_path_that_means_something_else_inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "jobs" / "job.yaml").write_text(IMAGES)
    (project / "deep" / "photos").mkdir(parents=True)
    monkeypatch.chdir(project / "deep")
    message = read_refusal(Path("../jobs/job.yaml"))
    assert says(message, "photos-relative-working-folder")


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert list_sources(write_spec(tmp_path))


def test_a_home_path_differs_inside_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "set").mkdir()
    message = read_refusal(write_spec(tmp_path, IMAGES.replace("photos", "~/set")))
    assert says(message, "set-relative-home-folder", "data.train")
    assert f"do:       write {tmp_path}/set" in message


def test_a_path_that_leads_out_of_the_project(project: Path, tmp_path: Path) -> None:
    """The container would look for it beside its own folder of the project."""
    (tmp_path / "far").mkdir()
    path = project / "jobs" / "job.yaml"
    path.write_text(IMAGES.replace("photos", "../../far"))
    message = read_refusal(Path("jobs/job.yaml"))
    assert says(message, "leaves-project-follows-link", "data.train", "../../far")
    assert f"do:       write {tmp_path}/far" in message
    assert [mount.source for mount in mounts.list_job_mounts(path, job_spec.load(path), project)] == [tmp_path / "far"]


def test_a_relative_path_out_of_a_linked_folder(tmp_path: Path) -> None:
    """Beside the folder that the link leads to, not beside the link."""
    for folder in ("here/far", "there/far", "there/jobs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "here" / "jobs").symlink_to(tmp_path / "there" / "jobs")
    message = read_refusal(write_spec(tmp_path / "here" / "jobs", IMAGES.replace("photos", "../far")))
    assert f"do:       write {tmp_path}/there/far" in message


def test_a_spec_that_is_a_link_into_the_project(project: Path, tmp_path: Path) -> None:
    """Its paths count from the folder of the link, so inside it has to lie there too."""
    (project / "jobs" / "photos").mkdir()
    (project / "jobs" / "job.yaml").write_text(IMAGES)
    (tmp_path / "photos").mkdir()
    path = tmp_path / "job.yaml"
    path.symlink_to(project / "jobs" / "job.yaml")
    service = container._build_override(container.LaunchRequest(path), job_spec.load(path))["services"]["trainer"]
    assert service["command"][:2] == ["train", str(path)]
    (tmp_path / "alias").symlink_to(project)
    assert container.to_container_path(tmp_path / "alias" / "jobs" / "job.yaml") == "jobs/job.yaml"


def test_compose_reads_what_it_is_given() -> None:
    """Go's YAML knows no pairs of surrogates, and no control characters that are not escaped."""
    text = compose_project._yaml({"a": ["/data/\N{GRINNING FACE}", 'b"\\\n\x7f\N{LATIN SMALL LETTER E WITH ACUTE}']})
    assert text == r'{"a": ["/data/\U0001f600", "b\"\\\n\U0000007f\U000000e9"]}'


def test_dollar_signs_are_escaped_for_compose(tmp_path: Path) -> None:
    (tmp_path / "a$HOME: b").mkdir()
    path = write_spec(tmp_path / "a$HOME: b")
    request = container.LaunchRequest(path, ("name=b",))
    service = container._build_override(request, job_spec.load(path))["services"]["trainer"]
    assert service["command"][1] == str(path).replace("$", "$$")
    assert service["volumes"][0] == {
        "type": "bind",
        "source": str(path).replace("$", "$$"),
        "target": str(path).replace("$", "$$"),
        "read_only": True,
        "bind": {"create_host_path": False},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "network: off, the job needs no download"),
        (
            "model: {source: transformers, name: some/net}\n",
            "network: on, for model.name: some/net is not a local folder, so it is looked up on the Hugging Face hub",
        ),
        ("model: {source: transformers, name: photos}\n", "network: off, the job needs no download"),
        (
            "checkpoint: {copy_to: s3://bucket/runs}\n",
            "network: on, for checkpoint.copy_to: s3://bucket/runs gets a copy of the run",
        ),
    ],
)
def test_a_network_is_granted_only_for_what_the_job_names(tmp_path: Path, text: str, expected: str) -> None:
    job: Job = job_spec.load(write_spec(tmp_path, IMAGES + text))
    assert network.decide(job) == (expected.startswith("network: on"), expected)
    assert network.decide(job, requested=True)[0]


def test_user_code_gets_a_network_with_a_note(tmp_path: Path) -> None:
    assert ends_with(network.decide(own_job.job(tmp_path))[1], "network-turns-your-own")
