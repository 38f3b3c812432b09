"""The commit of a job's folder, read without git from a repository that anybody may have written."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.supervisor import provenance
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.supervisor.run_lifecycle import RunLifecycle

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Runs git in a folder, for a user with a home of their own."""
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (home / ".gitconfig").write_text('[user]\nname = a\nemail = a@example.com\n[protocol "file"]\nallow = always\n')

    def run(folder: Path, *words: str) -> str:
        return subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True).stdout.strip()

    return run


def repository(git: Git, folder: Path, *options: str) -> Path:
    """A folder under git with a job and a file of code."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", *options)
    (folder / "job.yaml").write_text("name: a\n")
    (folder / "code.py").write_text("a = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


@pytest.fixture
def folder(git: Git, tmp_path: Path) -> Path:
    return repository(git, tmp_path / "job")


def as_it_is(git: Git, folder: Path) -> Path:
    return folder


def in_a_folder(git: Git, folder: Path) -> Path:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "b.yaml").write_text("name: b\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "two")
    return folder / "jobs"


def with_packed_references(git: Git, folder: Path) -> Path:
    git(folder, "pack-refs", "--all")
    git(folder, "gc", "-q")
    return folder


def without_a_branch(git: Git, folder: Path) -> Path:
    git(folder, "checkout", "-q", "--detach")
    return folder


def as_a_worktree(git: Git, folder: Path) -> Path:
    git(folder, "worktree", "add", "-q", str(folder.parent / "second"), "-b", "second")
    return folder.parent / "second"


def as_a_submodule(git: Git, folder: Path) -> Path:
    above = repository(git, folder.parent / "above")
    git(above, "submodule", "add", "-q", str(folder), "inner")
    return above / "inner"


def as_a_clone_that_borrows_objects(git: Git, folder: Path) -> Path:
    git(folder.parent, "clone", "-q", "--shared", str(folder), "borrows")
    return folder.parent / "borrows"


def with_long_digests(git: Git, folder: Path) -> Path:
    return repository(git, folder.parent / "long", "--object-format=sha256")


def under_a_link(git: Git, folder: Path) -> Path:
    (folder.parent / "link").symlink_to(folder)
    return folder.parent / "link"


HONEST = [
    as_it_is,
    in_a_folder,
    with_packed_references,
    without_a_branch,
    as_a_worktree,
    as_a_submodule,
    as_a_clone_that_borrows_objects,
    with_long_digests,
    under_a_link,
]


@pytest.mark.parametrize("kind", HONEST, ids=lambda kind: kind.__name__)
def test_reads_the_commit_of_each_kind_of_repository(
    git: Git, folder: Path, kind: Callable[[Git, Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = kind(git, folder)
    head = git(job, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")  # no program can run, git neither
    assert provenance.read_commit(job) == head


def test_a_folder_without_a_commit_has_none(git: Git, tmp_path: Path) -> None:
    assert provenance.read_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert provenance.read_commit(tmp_path) is None


def test_variables_of_git_do_not_lead_to_another_repository(
    git: Git, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of git that starts a training has them."""
    other = repository(git, folder.parent / "other")
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    head = git(folder, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert provenance.read_commit(folder) == head


def make_pipe(folder: Path, secret: Path) -> None:
    (folder / ".git" / "HEAD").unlink()
    os.mkfifo(folder / ".git" / "HEAD")  # reading one would wait for ever


def make_link(folder: Path, secret: Path) -> None:
    (folder / ".git" / "HEAD").unlink()
    (folder / ".git" / "HEAD").symlink_to(secret)


def name_another_file(folder: Path, secret: Path) -> None:
    (folder / ".git" / "HEAD").write_text(f"ref: refs/../../../{secret.name}")


def move_the_branches(folder: Path, secret: Path) -> None:
    (folder / ".git" / "commondir").write_text("../..")
    (folder / ".git" / "HEAD").write_text(f"ref: refs/{secret.name}")
    (folder.parent / "refs").mkdir()
    secret.rename(folder.parent / "refs" / secret.name)


def write_bytes(folder: Path, secret: Path) -> None:
    (folder / ".git" / "HEAD").write_bytes(b"\xff\0" * 5000)


def make_a_circle(folder: Path, secret: Path) -> None:
    (folder / ".git" / "refs").rename(folder / "refs")
    (folder / ".git" / "packed-refs").symlink_to("packed-refs")


def link_to_a_long_name(folder: Path, secret: Path) -> None:
    (folder / ".git").rename(folder / "git")
    (folder / ".git").symlink_to("a" * 300)


def name_a_folder_with_a_zero(folder: Path, secret: Path) -> None:
    (folder / ".git").rename(folder / "git")
    (folder / ".git").write_text("gitdir: a\0b")


@pytest.mark.parametrize(
    "change",
    [
        *(make_pipe, make_link, name_another_file, move_the_branches, write_bytes, make_a_circle),
        *(link_to_a_long_name, name_a_folder_with_a_zero),
    ],
    ids=lambda change: change.__name__,
)
def test_a_hostile_repository_has_no_commit(folder: Path, change: Callable[[Path, Path], None]) -> None:
    """A file of another kind is not read, and of any file nothing but the digits of a commit is recorded."""
    (folder.parent / "secret").write_text("password")
    change(folder, folder.parent / "secret")
    assert provenance.read_commit(folder) is None


def test_what_is_committed_while_a_run_trains_is_not_what_it_was_made_of(git: Git, folder: Path) -> None:
    (run := folder / "runs" / "a-001").mkdir(parents=True)
    first = provenance.read_commit(folder)
    attempt = RunLifecycle(RunFolder(run, resumes=False, lock=-1), str(folder / "job.yaml"))
    git(folder, "commit", "-qm", "later", "--allow-empty")
    attempt.end(7)
    second = RunLifecycle(RunFolder(run, resumes=True, lock=-1), str(folder / "job.yaml"))
    second.end(0)
    later = provenance.read_commit(folder)
    assert json.loads((run / "state.json").read_text())["commits"] == [first, later]
    assert first != later
