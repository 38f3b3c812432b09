"""What git says about a job's folder, and that no program runs that the folder's repository names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.supervisor import provenance

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


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a mark when it runs."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\ncat\n")
    path.chmod(0o755)
    return path


def touch(folder: Path) -> None:
    """Let git read the files again: their time is not that of the index."""
    for path in folder.rglob("*"):
        if path.suffix in (".yaml", ".py"):
            os.utime(path, (1, 1))


def by_filter(git: Git, folder: Path, program: Path) -> None:
    git(folder, "config", "filter.x.clean", str(program))
    (folder / ".git" / "info" / "attributes").write_text("*.yaml filter=x\n")


def by_filter_process(git: Git, folder: Path, program: Path) -> None:
    git(folder, "config", "filter.x.process", str(program))
    (folder / ".git" / "info" / "attributes").write_text("* filter=x\n")


def by_filter_in_an_included_file(git: Git, folder: Path, program: Path) -> None:
    (folder / "settings").write_text(f'[filter "x"]\nclean = {program}\n')
    git(folder, "config", "includeIf.gitdir:/.path", "../settings")
    (folder / ".gitattributes").write_text("*.yaml filter=x\n")


def by_filter_of_the_worktree_settings(git: Git, folder: Path, program: Path) -> None:
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "filter.x.clean", str(program))
    (folder / ".gitattributes").write_text("*.yaml filter=x\n")


def by_filter_of_the_user(git: Git, folder: Path, program: Path) -> None:
    git(folder, "config", "--global", "filter.lfs.clean", str(program))
    (folder / ".gitattributes").write_text("*.yaml filter=lfs\n")


def by_monitor(git: Git, folder: Path, program: Path) -> None:
    git(folder, "config", "core.fsmonitor", str(program))


def by_hook(git: Git, folder: Path, program: Path) -> None:
    (hooks := folder / ".git" / "hooks").mkdir(exist_ok=True)
    (hooks / "post-index-change").write_bytes(program.read_bytes())
    (hooks / "post-index-change").chmod(0o755)


def by_submodule(git: Git, folder: Path, program: Path) -> None:
    inner = repository(git, folder / "inner")
    git(folder, "add", "inner")
    git(folder, "commit", "-qm", "two")
    by_filter(git, inner, program)


def by_remote(git: Git, folder: Path, program: Path) -> None:
    """A partial clone fetches what it lacks."""
    git(folder, "config", "core.repositoryformatversion", "1")
    git(folder, "config", "extensions.partialClone", "origin")
    git(folder, "config", "remote.origin.promisor", "true")
    git(folder, "config", "remote.origin.url", f"ext::{program}")
    git(folder, "config", "protocol.ext.allow", "always")
    tree = git(folder, "rev-parse", "HEAD^{tree}")
    (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()


def by_another_folder(git: Git, folder: Path, program: Path) -> None:
    by_filter(git, folder, program)
    (folder / ".git").rename(folder.parent / "elsewhere")
    (folder / ".git").write_text("gitdir: ../elsewhere\n")


def by_link(git: Git, folder: Path, program: Path) -> None:
    by_filter(git, folder, program)
    (folder / ".git").rename(folder.parent / "elsewhere")
    (folder / ".git").symlink_to("../elsewhere")


DOORS = [
    by_filter,
    by_filter_process,
    by_filter_in_an_included_file,
    by_filter_of_the_worktree_settings,
    by_filter_of_the_user,
    by_monitor,
    by_hook,
    by_submodule,
    by_remote,
    by_another_folder,
    by_link,
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("below", ["", "jobs"], ids=["root", "folder"])
def test_no_program_of_a_repository_runs(
    git: Git, folder: Path, program: Path, door: Callable[[Git, Path, Path], None], below: str
) -> None:
    if below:
        (folder / below).mkdir()
        (folder / below / "job.yaml").write_text("name: b\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "two")
    door(git, folder, program)
    touch(folder)
    provenance.read_commit(folder / below)
    assert not (program.parent / "mark").exists()


@pytest.mark.parametrize("door", [by_filter, by_filter_of_the_user, by_monitor], ids=lambda door: door.__name__)
def test_what_git_runs_by_itself(
    git: Git, folder: Path, program: Path, door: Callable[[Git, Path, Path], None]
) -> None:
    """The test above could not fail if git did not run it."""
    door(git, folder, program)
    touch(folder)
    git(folder, "status")
    assert (program.parent / "mark").exists()


@pytest.mark.parametrize("name", ["HEAD", "index", "refs"])
def test_what_lies_elsewhere_is_not_read(folder: Path, name: str) -> None:
    (folder / ".git" / name).rename(folder.parent / name)
    (folder / ".git" / name).symlink_to(folder.parent / name)
    assert provenance.read_commit(folder) is None


@pytest.mark.parametrize("name", ["HEAD", "commondir"])
def test_a_pipe_is_no_file_of_a_repository(folder: Path, name: str) -> None:
    """Reading one would wait for ever."""
    (folder / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(folder / ".git" / name)
    assert provenance.read_commit(folder) is None


def test_links_in_a_circle_are_no_repository(folder: Path) -> None:
    (folder / ".git" / "packed-refs").symlink_to("packed-refs")
    assert provenance.read_commit(folder) is None


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


def with_a_split_index(git: Git, folder: Path) -> Path:
    git(folder, "update-index", "--split-index")
    return folder


def with_a_compressed_index(git: Git, folder: Path) -> Path:
    git(folder, "update-index", "--index-version", "4")
    return folder


def with_long_digests(git: Git, folder: Path) -> Path:
    return repository(git, folder.parent / "long", "--object-format=sha256")


def with_other_line_ends(git: Git, folder: Path) -> Path:
    git(folder, "config", "core.autocrlf", "true")
    return checked_out(git, folder)


def checked_out(git: Git, folder: Path) -> Path:
    (folder / "code.py").unlink()
    git(folder, "checkout", "code.py")
    assert b"\r" in (folder / "code.py").read_bytes()
    return folder


def with_line_ends_by_attribute(git: Git, folder: Path) -> Path:
    (folder / ".gitattributes").write_text("*.py text eol=crlf\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "two")
    return checked_out(git, folder)


def with_other_modes(git: Git, folder: Path) -> Path:
    git(folder, "config", "core.fileMode", "false")
    (folder / "code.py").chmod(0o755)
    return folder


def with_ignored_code(git: Git, folder: Path) -> Path:
    (folder / ".git" / "info" / "exclude").write_text("mine.py\n")
    (folder / "mine.py").write_text("")
    (folder.parent / "ignored").write_text("other.py\n")
    git(folder, "config", "--global", "core.excludesFile", "~/../ignored")
    (folder / "other.py").write_text("")
    return folder


def with_code_that_is_ignored_by_default(git: Git, folder: Path) -> Path:
    (settings := Path(os.environ["HOME"]) / ".config" / "git").mkdir(parents=True)
    (settings / "ignore").write_text("mine.py\n")
    (folder / "mine.py").write_text("")
    return folder


def with_a_submodule(git: Git, folder: Path) -> Path:
    repository(git, folder.parent / "part")
    git(folder, "submodule", "add", "-q", str(folder.parent / "part"), "part")
    git(folder, "commit", "-qm", "two")
    return folder


def with_a_sparse_work_tree(git: Git, folder: Path) -> Path:
    in_a_folder(git, folder)
    git(folder, "sparse-checkout", "set", "--cone", "--sparse-index", "other")
    return folder


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
    with_a_split_index,
    with_a_compressed_index,
    with_long_digests,
    with_other_line_ends,
    with_line_ends_by_attribute,
    with_other_modes,
    with_ignored_code,
    with_code_that_is_ignored_by_default,
    with_a_submodule,
    with_a_sparse_work_tree,
    under_a_link,
]


@pytest.mark.parametrize("kind", HONEST, ids=lambda kind: kind.__name__)
def test_the_commit_and_whether_files_differ(git: Git, folder: Path, kind: Callable[[Git, Path], Path]) -> None:
    job = kind(git, folder)
    touch(job)
    head = git(job, "rev-parse", "HEAD")
    assert provenance.read_commit(job) == head
    name = next(job.glob("*.yaml"))
    before = name.stat()
    name.write_text("name: c\n")  # as long as it was
    os.utime(name, (before.st_mtime + 2, before.st_mtime + 2))
    assert provenance.read_commit(job) == f"{head}-changed"


def test_a_change_inside_a_submodule_is_one(git: Git, folder: Path) -> None:
    with_a_submodule(git, folder)
    head = git(folder, "rev-parse", "HEAD")
    (folder / "part" / "code.py").write_text("a = 22\n")
    assert provenance.read_commit(folder) == f"{head}-changed"


def test_variables_of_git_do_not_lead_to_another_repository(
    git: Git, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of git that starts a training has them."""
    other = repository(git, folder.parent / "other")
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    head = git(folder, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert provenance.read_commit(folder) == head
