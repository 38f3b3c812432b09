"""The work of one training step by operation: FLOP and bytes, whatever device computes it."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.tuning.elsewhere.machine_catalog import Rates


@dataclass(frozen=True)
class StepWork:
    """What one optimizer step computes and keeps."""

    operations: tuple[tuple[int, int, float], ...]
    """FLOP of matrix products, bytes read and written, and how often on average."""
    weight_bytes: int
    """Weights, gradients, the optimizer's state, and the averaged weights if there are any."""
    saved_bytes: int
    """What the largest forward pass keeps for its backward pass."""
    launches: float
    """Operations that the host starts."""

    def compute_seconds(self, rates: Rates, *, low_precision: bool, least_seconds: float = 0.0) -> float:
        """Seconds of a device that computes or moves, whatever takes longer, one operation after the other.

        The roofline model: Williams, Waterman, Patterson, Communications of the ACM 52 (2009).

        Args:
            rates: of the device.
            low_precision: whether matrix products are in bf16 or fp16.
            least_seconds: of one operation, however small.
        """
        matmul = rates.low_matmul if low_precision else rates.matmul
        return sum(
            count * max(least_seconds, flop / matmul, moved / rates.bandwidth) for flop, moved, count in self.operations
        )
