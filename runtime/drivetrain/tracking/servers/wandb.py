"""A run at Weights & Biases, by its own client, which starts a process that uploads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.tracking.tracker import Row, RunDescription, TrackerError, check_credentials

URL, DEFAULT_URL = "WANDB_BASE_URL", "https://api.wandb.ai"
SETTINGS = {
    # Nothing of the machine, the code or its repository is read; git never runs.
    **{"disable_git": True, "disable_code": True, "save_code": False, "x_save_requirements": False},
    **{"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True, "console": "off"},
    # A button on a page must not stop a training.
    **{"silent": True, "stop_fn": lambda: None},
    **{"init_timeout": 5.0, "login_timeout": 5.0, "finish_timeout": 4.0, "finish_timeout_raises": True},
    **{"x_graphql_retry_max": 0, "x_file_stream_retry_max": 0, "x_file_transfer_retry_max": 0},
}


def connect(project: str, experiment: str) -> WandbTracker:
    """Return the tracker of one run; the key comes from the environment or from `wandb login`."""
    return WandbTracker(project)


class WandbTracker:
    """One run at Weights & Biases; with WANDB_MODE=offline, files next to the run folder."""

    run: Any

    def __init__(self, project: str) -> None:
        self.team, _, self.project = project.rpartition("/")

    def begin(self, run: RunDescription) -> tuple[str, int]:
        """Create the run, or continue it after an earlier attempt."""
        # The settings of the working folder may name another server than the user's environment.
        url = os.environ.get(URL) or DEFAULT_URL
        if os.environ.get("WANDB_MODE") != "offline":
            check_credentials("track.wandb", url, URL, url)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.run = wandb.init(
            project=self.project,
            entity=self.team or None,
            id=run.key,
            name=run.name,
            config={**run.parameters, **run.tags},
            dir=run.folder.parent,  # in a run folder no link is followed, and it makes one
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(base_url=url, insecure_disable_ssl=False, **SETTINGS),
        )
        page = "" if self.run.offline else self.run.url  # which prints a warning where there is none
        return page or f"wandb sync {Path(self.run.dir).parent}", self.run.starting_step - 1

    def log(self, rows: Sequence[Row]) -> None:
        """Send the metrics; the server keeps the rows of a step together."""
        for row in rows:
            self.run.log(dict(row.values), step=row.step)

    def end(self, status: str, tags: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Send tags, files and status."""
        self.run.config.update(dict(tags), allow_val_change=True)
        for name, text in files.items():
            path = Path(self.run.dir, name)
            path.write_text(text, encoding="utf-8")
            self.run.save(path, base_path=self.run.dir, policy="now")
        try:
            self.run.finish(exit_code=0 if status == "done" else 1)
        except TimeoutError:
            raise TrackerError(
                f"track.wandb: the last rows and files were not uploaded within {SETTINGS['finish_timeout']:g} s",
                "a server that takes them in this time",
                f"wandb sync {Path(self.run.dir).parent}",
            ) from None
