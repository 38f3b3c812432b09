"""Accumulates losses and scores of all heads, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from runtime.data.dataset import NO_LABEL, Head, Targets
from runtime.data.stateless_random import Ids
from runtime.system.console import say
from runtime.system.units import format_bytes
from runtime.training.evaluation.label_scores import LabelScores
from runtime.training.evaluation.scores import ClassScores, scores
from runtime.training.evaluation.worst_mistakes import WorstMistakes
from runtime.training.losses import HeadLoss, Objective

TOGETHER = 256 * 2**20
"""Bytes of outputs that are kept for a loss that can only be computed of all samples together."""


class MetricAccumulator:
    """The counts of an evaluation.

    Args:
        heads: the outputs by name.
        objective: the loss; None if there are no targets for it.
    """

    def __init__(self, heads: Mapping[str, Head], objective: Objective | None) -> None:
        self.heads, self.objective = heads, objective
        self.scores = {name: scores(head) for name, head in heads.items()}
        self.worst = {name: WorstMistakes() for name, score in self.scores.items() if isinstance(score, ClassScores)}
        self.sums = {name: torch.zeros(2, dtype=torch.float64) for name in heads}
        self.waiting: list[tuple[str, Tensor, Tensor]] = []
        """Outputs and targets of a loss that can only be computed of all samples together."""

    def add(self, outputs: Tensor | Mapping[str, Tensor], targets: Targets, ids: Ids | None = None) -> None:
        """Add a batch: outputs (N, outputs) by head or for the single head, and the targets of the same samples.

        With the sample ids, `ids`, the worst mistakes are collected, too.
        """
        for name in self.heads:
            raw = (outputs[name] if isinstance(outputs, Mapping) else outputs).float()
            goal, numbers = targets[name], ids
            if name in self.worst and goal.ndim == 1 and not bool((labelled := goal != NO_LABEL).all()):
                raw, goal = raw[labelled], goal[labelled]
                numbers = None if ids is None else ids[labelled.cpu().numpy()]
            self.scores[name].update(raw, goal)
            if numbers is not None and name in self.worst:
                self.worst[name].update(numbers, raw, goal)
            if self.objective is not None:
                self._add_loss(name, raw, goal)

    def _add_loss(self, name: str, outputs: Tensor, targets: Tensor) -> None:
        assert self.objective is not None
        loss = self.objective.losses[name]
        if loss.custom:
            loss.custom.divide(outputs, targets)
        if not loss.custom or not loss.custom.division.obstacle:
            self.sums[name] += _loss_sums(loss, outputs, targets)
            return
        self.waiting.append((name, outputs, targets))
        if sum(outputs.nbytes for _, outputs, _ in self.waiting) > TOGETHER:
            self._sum_waiting()

    def _sum_waiting(self) -> None:
        """Add the loss of all samples that wait for it, as of one batch."""
        names, outputs, targets = zip(*self.waiting, strict=True) if self.waiting else ((), (), ())
        self.waiting = []
        if names and self.objective is not None:
            sums = _loss_sums(self.objective.losses[names[0]], torch.cat(outputs), torch.cat(targets))
            if bool(self.sums[names[0]].any()):
                say(
                    f"loss: the evaluation has more than {format_bytes(TOGETHER)} of outputs: its loss is the mean of pieces"
                )
            self.sums[names[0]] += sums

    def add_up(self, total: Callable[[Sequence[Tensor]], list[Tensor]], place: tuple[int, int] = (0, 1)) -> None:
        """Sum the counts over all processes; `place` is (i, n) for the i-th of n."""
        self._sum_waiting()
        own = [*self.sums.values(), *(count for score in self.scores.values() for count in score.counts())]
        tables = [worst.table(*place) for worst in self.worst.values()]
        summed = total([*own, *tables])
        for mine, all_of_them in zip(own, summed, strict=False):
            mine.copy_(all_of_them)
        for worst, table in zip(self.worst.values(), summed[len(own) :], strict=True):
            worst.read(table)
        for score in self.scores.values():
            if isinstance(score, LabelScores):
                score.gather(total, place)

    def metrics(self, over: str = "validation/") -> dict[str, float]:
        """All metrics by name: `validation/accuracy`, with several heads `validation/<head>/accuracy`; none of a head
        for which no sample has a label.
        """
        self._sum_waiting()
        found: dict[str, float] = {}
        total = 0.0
        for name, head in self.heads.items():
            if name in self.worst and not self.scores[name].counts()[0].any():
                continue
            start = f"{over}{name}/" if name else over
            if self.objective is not None:
                below = 1.0 if self.objective.losses[name].is_summed else self.sums[name][1]
                found[f"{start}loss"] = float(self.sums[name][0] / below)
                total += head.weight * found[f"{start}loss"]
            found |= {start + metric: value for metric, value in self.scores[name].compute().items()}
        whole = {f"{over}loss": total} if self.objective is not None and "" not in self.heads else {}
        return whole | found

    def confusion(self) -> dict[str, object]:
        """By head with classes: the classes; if they are exclusive the confusion matrix (truth by row) and the worst
        mistakes, else the counts of each label.
        """
        found: dict[str, object] = {}
        for name, score in self.scores.items():
            classes = {"classes": list(self.heads[name].classes)}
            if isinstance(score, ClassScores):
                found[name] = classes | {"matrix": score.matrix.tolist(), "mistakes": self.worst[name].to_json()}
            elif isinstance(score, LabelScores):
                found[name] = classes | score.to_json()
        return found


def _loss_sums(loss: HeadLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    sums = (loss.weighted(outputs, targets).sum(), loss.weights(targets).sum())
    return torch.stack([each.double() for each in sums]).cpu()
