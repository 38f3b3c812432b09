"""Accumulates losses and scores of all heads, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL, Head, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.distributed.ranks import Ranks
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.units import format_bytes
from drivetrain.training.evaluation.scores import ClassScores, build_scores
from drivetrain.training.losses import HeadLoss, Objective

MAX_WAITING_BYTES = 256 * 2**20
"""Largest size of outputs that are kept for a loss that can only be computed for all samples together."""


class MetricAccumulator:
    """Accumulates losses and scores over the batches of an evaluation."""

    def __init__(self, heads: Mapping[str, Head], objective: Objective | None) -> None:
        self.heads, self.objective = heads, objective
        self.scores = {name: build_scores(head) for name, head in heads.items()}
        self.loss_sums = {name: torch.zeros(2, dtype=torch.float64) for name in heads}
        self.waiting_outputs: list[tuple[str, Tensor, Tensor]] = []
        """Head, outputs and targets of batches whose loss can only be computed for all samples together."""

    def add(self, outputs: Tensor | Mapping[str, Tensor], targets: Targets, ids: Ids | None = None) -> None:
        """Add a batch: outputs (N, outputs) by head or for the single head, and the targets of the same samples.

        If the sample ids `ids` are given, the worst mistakes are collected too.
        """
        fault_point("evaluation batch")
        for name, score in self.scores.items():
            head_outputs = (outputs[name] if isinstance(outputs, Mapping) else outputs).float()
            head_targets, head_ids = targets[name], ids
            # Samples without a label do not count.
            if isinstance(score, ClassScores) and head_targets.ndim == 1 and bool((head_targets == NO_LABEL).any()):
                has_label = head_targets != NO_LABEL
                head_outputs, head_targets = head_outputs[has_label], head_targets[has_label]
                head_ids = None if ids is None else ids[has_label.cpu().numpy()]
            score.update(head_outputs, head_targets)
            if head_ids is not None and score.examples:
                score.examples.update(head_ids, head_outputs, head_targets)
            if self.objective is not None:
                self._add_loss(name, head_outputs, head_targets)

    def _add_loss(self, name: str, outputs: Tensor, targets: Tensor) -> None:
        assert self.objective is not None
        loss = self.objective.losses[name]
        if loss.custom:
            loss.custom.divide(outputs, targets)
        if not loss.custom or not loss.custom.division.obstacle:
            self.loss_sums[name] += _loss_sums(loss, outputs, targets)
            return
        self.waiting_outputs.append((name, outputs, targets))
        if sum(outputs.nbytes for _, outputs, _ in self.waiting_outputs) > MAX_WAITING_BYTES:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Compute the loss of all waiting outputs as one batch, and add it."""
        names, outputs, targets = zip(*self.waiting_outputs, strict=True) if self.waiting_outputs else ((), (), ())
        self.waiting_outputs = []
        if names and self.objective is not None:
            sums = _loss_sums(self.objective.losses[names[0]], torch.cat(outputs), torch.cat(targets))
            if bool(self.loss_sums[names[0]].any()):
                say(
                    f"loss: the evaluation has more than {format_bytes(MAX_WAITING_BYTES)} of outputs: its loss is the mean of several groups"
                )
            self.loss_sums[names[0]] += sums

    def sum_over_processes(self, ranks: Ranks) -> None:
        """Sum everything over all processes; all of them must call it."""
        self._add_waiting()
        local_sums = [*self.loss_sums.values(), *(count for score in self.scores.values() for count in score.counts())]
        examples = [score.examples for score in self.scores.values() if score.examples]
        tables = [samples.to_table(ranks.rank, ranks.world_size) for samples in examples]
        global_sums = ranks.all_reduce_sum([*local_sums, *tables])
        for local_sum, global_sum in zip(local_sums, global_sums, strict=False):
            local_sum.copy_(global_sum)
        for samples, table in zip(examples, global_sums[len(local_sums) :], strict=True):
            samples.read_table(table)
        for score in self.scores.values():
            score.gather(ranks)

    def metrics(self, prefix: str = "validation/") -> dict[str, float]:
        """Return all metrics by name, such as `validation/accuracy`, for several heads `validation/<head>/accuracy`."""
        self._add_waiting()
        by_name: dict[str, float] = {}
        total_loss = 0.0
        for name, head in self.heads.items():
            # A head without any labelled sample has no metrics.
            score = self.scores[name]
            if isinstance(score, ClassScores) and not score.counts()[0].any():
                continue
            head_prefix = f"{prefix}{name}/" if name else prefix
            if self.objective is not None:
                weight_sum = 1.0 if self.objective.losses[name].is_summed else self.loss_sums[name][1]
                by_name[f"{head_prefix}loss"] = float(self.loss_sums[name][0] / weight_sum)
                total_loss += head.weight * by_name[f"{head_prefix}loss"]
            by_name |= {head_prefix + metric: value for metric, value in score.compute().items()}
        combined = {f"{prefix}loss": total_loss} if self.objective is not None and "" not in self.heads else {}
        return combined | by_name

    def confusion(self, decisive_metric: str = "") -> dict[str, object]:
        """Return details by head, as in the `to_json` of its scores.

        Args:
            decisive_metric: metric that chooses the weights; thresholds are measured for it, none if it is empty.
        """
        metric_name = decisive_metric.rpartition("/")[2]
        records = {name: score.to_json(metric_name) for name, score in self.scores.items()}
        return {name: record for name, record in records.items() if record is not None}

    def list_mistakes(self) -> list[int]:
        """List the ids of the samples with the most confident wrong classes."""
        mistakes = [score.examples.rows for score in self.scores.values() if isinstance(score, ClassScores)]
        return [int(sample) for rows in mistakes for sample in rows[:, 1]]


def _loss_sums(loss: HeadLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    sums = (loss.weighted_terms(outputs, targets).sum(), loss.weights(targets).sum())
    return torch.stack([value.double() for value in sums]).cpu()
