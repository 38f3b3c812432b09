"""The state of the tuner: the present plan, results so far, and which value to measure next."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.optimizations import Value
from runtime.plan import evidence
from runtime.plan.evidence import Measurement
from runtime.plan.plan import Plan, written
from runtime.tuning.variants import Variant, Verdict

PROMISING = ("precision", "channels_last", "unpadding", "micro_batch", "compile")
"""Decisions that may gain most within a few steps; they are measured first."""
HOPELESS = 0.85
"""A value slower than this is not tried again with another plan."""


@dataclass
class TunerState:
    """The plan so far, and all results."""

    plan: Plan
    incumbent: Variant
    found: dict[str, Measurement] = field(default_factory=dict)
    tried: dict[tuple[str, Value], list[tuple[float, Plan]]] = field(default_factory=dict)
    """By value: its speed ratio, and the plan it was measured with."""

    def due(self, name: str, value: Value) -> bool:
        """Whether a value is to be measured: once, and again with another plan if its first result was not hopeless."""
        seen = self.tried.get((name, value), [])
        if not seen:
            return True
        ratio, plan = seen[-1]
        beside = plan.with_values({name: self.plan.value(name)})
        return (
            len(seen) == 1
            and ratio > HOPELESS
            and any(beside.value(other) != self.plan.value(other) for other in PROMISING)
        )

    def take(self, name: str, value: Value, verdict: Verdict) -> str:
        """Record a result; returns it as text."""
        again = " together with the accepted settings" if self.tried.get((name, value)) else ""
        text, before = f"{written(value)} {verdict.text}{again}", self.found.get(name)
        self.tried.setdefault((name, value), []).append((verdict.ratio, self.plan))
        if verdict.wins:
            old = self.plan.value(name)
            self.plan = self.plan.with_values({name: value})
            self.tried.setdefault((name, old), []).append((1 / verdict.ratio, self.plan))
        kept = self.plan.value(name)
        self.found[name] = Measurement(kept, f"{before.text}; {text}" if before else text, evidence.today())
        return text + ("; accepted" if verdict.wins else "")

    def rank(self, name: str, value: Value) -> tuple[int, float, int]:
        """Sort key: values never measured first, then by earlier results, then by expected gain."""
        seen = self.tried.get((name, value), [])
        place = PROMISING.index(name) if name in PROMISING else len(PROMISING)
        return len(seen), -seen[-1][0] if seen else 0.0, place
