"""What one launch of a training script has left behind, as JSON. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Mapping, NamedTuple

from comparison.settings import Setting

TIMED = "timed"
PROFILED = "profiled"  # with --profile: for the breakdown of a step, never for its time


class Interval(NamedTuple):
    """A line of metrics.jsonl: means over the steps since the line before.

    Losses are in nats; None: not finite. `grad_norm`, of the last of these steps: the global norm of the
    averaged gradient before clipping, None: not finite. `lr`: of the last step; None: of a record that was
    made before the learning rate was kept.
    """

    step: int
    step_s: float
    tokens_per_s: float
    padded_tokens_per_s: float
    sequences_per_s: float
    mlm_loss: float | None
    nsp_loss: float | None
    grad_norm: float | None = None
    lr: float | None = None


@dataclass(frozen=True)
class Record:
    """One launch.

    Attributes:
        kind: TIMED or PROFILED.
        repeat: of the launches of its kind, from 0.
        failure: one line that says why there is no result; None for a launch that did what it should.
        out_of_memory: whether that was the reason.
        intervals: those after the warm-up steps; empty after a failure.
        warm_up: the intervals before them (what they computed is compared, too).
        params_sha256: of the file of parameters that the run has saved after its last step, as its manifest
            has it; None after a failure.
        start_up_s: from the launch to the first step.
        seconds: of the whole launch.
        peak_bytes: greatest resident memory of one process of each role on this host: "worker", "server",
            "scheduler".
        exchanged_bytes: bytes that a rank hands to its library in a step; None without a profile.
        breakdown: `training.profiling.breakdown.break_down` of rank 0, for a profiled launch.
        command: as given to the system.
        begun: UTC, ISO 8601.
    """

    setting: Setting
    kind: str
    repeat: int
    failure: str | None = None
    out_of_memory: bool = False
    warm_up: tuple[Interval, ...] = ()
    intervals: tuple[Interval, ...] = ()
    params_sha256: str | None = None
    start_up_s: float | None = None
    seconds: float = 0.0
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    exchanged_bytes: int | None = None
    breakdown: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    begun: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "setting": self.setting._asdict(),
            "warm_up": [each._asdict() for each in self.warm_up],
            "intervals": [each._asdict() for each in self.intervals],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """Raises KeyError or TypeError for what `to_json` has not made."""
        return cls(
            **{
                **values,
                "setting": Setting(**values["setting"]),
                "warm_up": tuple(Interval(**each) for each in values["warm_up"]),
                "intervals": tuple(Interval(**each) for each in values["intervals"]),
                "command": tuple(values["command"]),
            }
        )
