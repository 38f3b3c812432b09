"""What of a network is trained, in words: how many parameters, from which epoch on, and at which learning rates."""

from __future__ import annotations

from runtime.models import lr_groups
from runtime.training.run import Run


def lines(run: Run) -> list[str]:
    """The lines about it, each beginning with its subject: `model: ...`, `learning rates: ...`."""
    return [_counted(run), *rates(run)]


def rates(run: Run) -> list[str]:
    """The line about learning rates by layer; empty without `train.lr_groups`."""
    if not run.job.train.lr_groups:
        return []
    return ["learning rates: " + "; ".join(lr_groups.described(run.lr_groups, run.model, run.job.train.optimizer.lr))]


def unfrozen(run: Run) -> list[str]:
    """The line about gradual unfreezing; empty without `model.unfreeze`."""
    later = _later(run)
    return [f"trained parameters: {_first(run):,} at first, {later}"] if later else []


def _counted(run: Run) -> str:
    total = sum(p.numel() for p in run.model.parameters())
    later = _later(run)
    return f"model: {_first(run):,} of {total:,} parameters are trainable" + (f", {later}" if later else "")


def _first(run: Run) -> int:
    """Parameters that are trained in the first epoch."""
    first = run.network.unfreezing.first
    return sum(p.numel() for name, p in run.model.named_parameters() if p.requires_grad and name not in first)


def _later(run: Run) -> str:
    """How many are trained from which epoch on."""
    sizes = {name: p.numel() for name, p in run.model.named_parameters()}
    unfreezing, count, parts = run.network.unfreezing, _first(run), list[str]()
    for epoch in unfreezing.epochs:
        count += sum(sizes[name] for name in unfreezing.names(epoch))
        parts.append(f"{count:,} from epoch {epoch + 1} on")
    return ", ".join(parts)
