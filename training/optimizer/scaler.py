"""The loss scale, and the end of a run after many non-finite gradients.

Plain Python state machines. Every rank must feed them the same answer (agree over the ranks first), so that
all ranks hold the same scale and skip the same steps.
"""

from __future__ import annotations

from typing import Any, Mapping

from base.command_line import MOST
from base.errors import InputError, NotFiniteError

NOT_FINITE = "the gradients were not finite"
CEILING = 2.0**24  # of loss scales
SKIPS = 20  # steps in a row


class LossScaler:
    """A constant loss scale: 1 for float32, where nothing underflows. The loss is multiplied by `scale`
    before the backward pass; the gradients are divided by it.

    `searching`: whether the last step's gradients were not finite for want of a smaller scale, which is left
    to try. They may then be as good as any.
    """

    kind = "static"
    searching = False

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def update(self, finite: bool) -> None:
        """Takes note of one step: were the gradients of all ranks finite?"""

    def state(self) -> dict[str, Any]:
        """Everything that changes during a run, for JSON."""
        return {"kind": self.kind, "scale": self.scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`. InputError where it is of another kind or its values are impossible."""
        scale: Any = state.get("scale")
        if state.get("kind") != self.kind:
            raise InputError(
                f"the checkpoint was made with a {state.get('kind')!r} loss scale, this run's is "
                f"{self.kind!r}; use the --dtype of the run that saved it"
            )
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale <= CEILING:
            raise InputError(f"the checkpoint's loss scale {scale!r} is not possible")


class DynamicScaler(LossScaler):
    """Loss scale for float16 gradients (Micikevicius et al., arXiv:1710.03740, section 3.2).

    Halved after a step whose gradients overflowed (that step is skipped by the caller), doubled after
    `growth_interval` good steps in a row. It stays within [floor, ceiling]. Non-finite gradients at the
    floor do not raise here: `SkipCounter` ends the run. From 2**16 the floor 1 is reached after 16 bad
    steps, so the twenty that the counter allows include attempts with no scaling at all.

    All values are powers of two, which makes scaling and unscaling exact.
    """

    kind = "dynamic"
    factor, growth_interval = 2.0, 2000
    floor, ceiling = 1.0, CEILING

    def __init__(self, scale: float = 2.0**16):
        super().__init__(scale)
        self.good_steps = 0

    def update(self, finite: bool) -> None:
        self.searching = not finite and self.scale > self.floor
        if not finite:
            self.scale = max(self.floor, self.scale / self.factor)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale = min(self.ceiling, self.scale * self.factor)
            self.good_steps = 0

    def state(self) -> dict[str, Any]:
        return {**super().state(), "good_steps": self.good_steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        scale, good_steps = state["scale"], state.get("good_steps", -1)
        if not self.floor <= scale <= self.ceiling:
            raise InputError(
                f"the checkpoint's loss scale {scale!r} is not in [{self.floor}, {self.ceiling}]"
            )
        if not _is_count(good_steps) or good_steps >= self.growth_interval:
            raise InputError(f"the checkpoint's count of good steps {good_steps!r} is not possible")
        self.scale = float(scale)
        self.good_steps = good_steps


class SkipCounter:
    """Counts skipped steps and ends the run after SKIPS of them in a row."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self.total = 0

    def update(self, applied: bool, step: int, kept: str = "", why: str = NOT_FINITE) -> None:
        """Take note of `step`. `kept`: a sentence on the checkpoint to go back to. `why`: a clause, where it
        was skipped.

        Raises:
            NotFiniteError: this was the last of SKIPS skipped steps in a row.
        """
        if applied:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        self.total += 1
        if self.in_a_row >= SKIPS:
            raise NotFiniteError(
                f"step {step}: {why} for the {self.in_a_row}th time in a row; "
                f"{kept}; lower --lr, or look at the data of these steps"
            )

    def state(self) -> dict[str, Any]:
        return {"in_a_row": self.in_a_row, "total": self.total}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, with a full count of attempts. InputError where its values are impossible.

        The count in a row stays behind: a run that goes on from a checkpoint shall not end at its first
        step because of steps that are skipped no more, with another --lr or other data.
        """
        in_a_row: Any = state.get("in_a_row")
        total: Any = state.get("total")
        if not _is_count(in_a_row) or not _is_count(total) or in_a_row > total:
            raise InputError(f"the checkpoint's counts of skipped steps {dict(state)!r} are not possible")
        self.in_a_row = 0
        self.total = total


def is_state(state: Any) -> bool:
    """Whether a scaler of a run can have had this `state`, a value out of a file."""
    dynamic = isinstance(state, dict) and state.get("kind") == "dynamic"
    return _restores(DynamicScaler() if dynamic else LossScaler(), state)


def are_skips(state: Any) -> bool:
    """The same of a `SkipCounter`."""
    return _restores(SkipCounter(), state)


def _restores(it: LossScaler | SkipCounter, state: Any) -> bool:
    try:
        it.restore(state if isinstance(state, dict) else {})
    except InputError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
