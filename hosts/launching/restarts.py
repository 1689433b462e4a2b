"""A run that is started again after a failure, on the hosts that are left. Standard library only.

Exit codes decide, and the notes that failing ranks leave (base/failures.py). After a failure the command is
started again with --resume, when some time has passed. Restarts are limited by a budget that is full again
whenever a later checkpoint has been saved, and by sense: what a program says of itself twice, at one step and
with nothing saved in between, it would say a third time, unless its note says that it may pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Mapping, Sequence

from base import notify
from base.command_line import not_empty, whole
from base.errors import RUN_AGAIN
from base.failures import DISK, FAILED, MAY_PASS, Note, kept_in_memory, read
from base.files import replacing
from base.options import flag, in_seconds, option
from hosts.addresses import is_here
from hosts.launching.parts import MPIRUN
from hosts.launching.roster import Roster
from hosts.launching.running import Failure, Outcome
from hosts.launching.saved import Saved, logged_step, look
from hosts.launching.signals import STOPPED, Signals, code_of
from hosts.reach import OWN, Question, check, faults_of

RESTARTS = 3  # by default, where there is a --ckpt_dir to go on from
RECORDS = "restarts.jsonl"
NOTES = "failures"  # the ranks' notes, a folder in --ckpt_dir for as long as a start lasts
COMPLETE = 0
BAD_INPUT = 2  # an option, a file: the same again with another start
# RUN_AGAIN, 75: saved in good order, to be run again. All others are failures: 1 by the rank's own account
# (its note says of which kind), 128 + N killed by signal N (137: SIGKILL, as where memory ends; 139: a
# segmentation fault; 147: it was stopped, and killed for that).
LONGEST_WAIT = 300.0  # seconds between two starts, however many have failed
_NUMBER = re.compile(r"\d+")
_LONGEST_LINE = 1 << 16  # bytes of a record
_ROOM = 1 << 16  # bytes, far less than a checkpoint

Wish = Callable[[], bool]
Start = Callable[[Sequence["tuple[str, int]"], bool, Wish], Outcome]


@dataclass(frozen=True)
class Policy:
    """Options of restarts. `min_hosts`: 0 for all of the host file."""

    max_restarts: int = option(
        f"restarts after failures; the number counts anew after every later checkpoint (default: {RESTARTS} "
        "if the script's options have --ckpt_dir, else 0). Rule of thumb: 3; more hides a host that should "
        "be replaced",
        whole(0, 1000, "more would hide a defect"),
        metavar="N",
        default=RESTARTS,
        unset=True,
    )
    min_hosts: int = option(
        "go on with so many hosts if others are left out (default: all of the host file; only spare hosts "
        "then replace one). Rule of thumb: half of them; below, waiting for a host is cheaper",
        whole(1, 100_000, "no cluster is so large"),
        metavar="K",
        default=0,
    )
    backoff: float = in_seconds(
        "wait so long before a restart, twice as long after each failure without a new checkpoint, at most "
        "300 s. Rule of thumb: what a batch system takes to give a host back",
        5.0,
    )
    again: bool = flag(
        "start again when the script exits with 75, saved and to be run again (default: exit with 75)"
    )
    rejoin: float = in_seconds(
        "ask hosts that were left out so often whether they answer, more seldom those left out repeatedly",
        60.0,
        name="rejoin_interval",
    )
    patience: float = in_seconds(
        "wait so long for hosts where too few are left to start with. Rule of thumb: what a host takes to "
        "reboot",
        600.0,
        name="host_patience",
    )
    notify: str | None = option(
        "a command that a shell runs here at each restart, at the run's failure and at its end, with "
        "RUN_EVENT, RUN_MESSAGE and RUN_CODE in its environment; nobody waits for it",
        not_empty,
        metavar="COMMAND",
    )


class Stopped(Exception):
    """A signal between two runs. `code`: the launcher's exit code for it."""

    def __init__(self, number: signal.Signals):
        super().__init__(f"stopped by {number.name}")
        self.code = code_of(number)


class Budget:
    """Number of restarts left, and the failures that used it."""

    def __init__(self, policy: Policy, saved: Saved):
        self._policy = policy
        self.left = policy.max_restarts
        self._saved = saved
        self._previous: tuple[Failure, int] | None = None

    def progressed(self, saved: Saved) -> bool:
        """Refills the budget if there is a later checkpoint than the last time; returns whether there is."""
        if not saved.is_later_than(self._saved):
            return False
        self._saved, self.left, self._previous = saved, self._policy.max_restarts, None
        return True

    def take(self, failure: Failure, logged: int) -> str | None:
        """Uses up a restart. Returns a reason for not starting again, None if there is none.

        `logged`: the last step in the metrics.
        """
        previous, self._previous = self._previous, (failure, logged)
        first, step = previous or (failure, -1)
        codes, words = {first.code, failure.code}, {_NUMBER.sub("#", each.words) for each in (first, failure)}
        is_same = first.own_end and failure.own_end and step == logged and len(codes) == len(words) == 1
        if is_same and failure.kind not in MAY_PASS:
            return (
                f"the same failure again after step {logged}, with nothing saved in between; not started "
                f"again. First: {said(first)}. Then: {said(failure)}"
            )
        if not self.spend():
            both = f" First: {said(first)}. Then: {said(failure)}" if previous else ""
            return (
                f"{self._policy.max_restarts} restarts have brought no checkpoint later than step "
                f"{self._saved.step}; not started again.{both}"
            )
        return None

    def spend(self) -> bool:
        """Uses up a restart; returns False if there is none left."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    @property
    def wait(self) -> float:
        """Seconds until the next start."""
        in_a_row = self._policy.max_restarts - self.left
        return min(LONGEST_WAIT, self._policy.backoff * 2.0 ** min(max(0, in_a_row - 1), 30))


def said(failure: Failure) -> str:
    """A failure as one clause: who, how, its last words."""
    return f"{failure.how} ({failure.words})" if failure.words else failure.how


def noted(failure: Failure, notes: Mapping[int, Note], lines: Sequence[tuple[str, int]]) -> Failure:
    """A failure with what its rank has noted: its kind, its words, and as `host` that of a rank which it has
    missed. Where mpirun waited for a host, the first note counts.

    `lines`: host and slots in the order of the ranks.
    """
    note = next((each for each in notes.values() if failure.part in (MPIRUN, f"rank {each.rank}")), None)
    if note is None:
        return failure
    ranks = [host for host, slots in lines for _ in range(slots)]
    known = note.missing is not None and note.missing < len(ranks)
    host = ranks[note.missing or 0] if known else failure.host
    return replace(failure, kind=note.kind, words=note.message, host=host)


def has_room(folder: str) -> bool:
    """Whether a file can be written in a folder. A rank that a full disk has ended may leave no note."""
    path = os.path.join(folder, "room")
    try:
        with replacing(path) as file:
            file.write(bytes(_ROOM))
        os.unlink(path)
    except OSError:
        return False
    return True


class Recall:
    """The wish to stop a run that has fewer hosts than it should: a host that was left out answers again, and
    a checkpoint has just been saved."""

    def __init__(self, roster: Roster, question: Question, ckpt_dir: str, interval: float):
        self._question, self._ckpt_dir, self._left_out = question, ckpt_dir, dict(roster.left_out)
        # A host that has been left out several times is asked more and more seldom.
        self._pause = interval * 2.0 ** min(min(self._left_out.values(), default=1) - 1, 6)
        self.begun = look(ckpt_dir)
        self.answered: frozenset[str] = frozenset()  # hosts that can be taken back
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask)  # hosts may take long to answer
        if self._left_out and roster.is_short():
            self._thread.start()

    def __call__(self) -> bool:
        return bool(self.answered) and look(self._ckpt_dir).is_later_than(self.begun)

    def close(self) -> None:
        """Ends a question that has no answer yet."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _ask(self) -> None:
        while not self.answered and not self._closed.wait(self._pause):
            with contextlib.suppress(OSError):  # no process for it, or nobody waits for the answers any more
                faults = faults_of(self._left_out, self._question, self._wait, lambda line: None)
                self.answered = frozenset(self._left_out) - set(faults)

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise InterruptedError


class Restarts:
    """Starts a run until it is complete, or cannot be completed."""

    def __init__(
        self,
        policy: Policy,
        roster: Roster,
        ckpt_dir: str,
        question: Question,
        signals: Signals,
        say: Callable[[str], None],
    ):
        self._policy, self._roster, self._ckpt_dir, self._question = policy, roster, ckpt_dir, question
        self._min_hosts = policy.min_hosts or roster.wanted
        self._wait, self._say = partial(wait, signals), say
        # Those of some hosts, and this machine, that cannot be used.
        self._faults = partial(faults_of, question=question, wait=self._wait, say=say)
        self._budget = Budget(policy, look(ckpt_dir))
        self._number = 0
        self._restart: dict[str, Any] | None = None  # facts of the one that is being prepared

    def run(self, start: Start) -> int:
        """Runs to the end. `start(lines, resume, wish)` makes one run on the hosts of `lines`.

        Returns:
            The exit code of the last run; 1 where too few hosts answer.

        Raises:
            Stopped: by a signal, between two runs.
            InputError: before the first run, a host has a fault that only its owner can mend.
        """
        resume, wait = False, 0.0
        while True:
            try:
                self._wait(wait)
                found = self._find_hosts(resume)
            finally:
                self._record()
            if not found:
                return 1
            begun = time.time()
            recall = Recall(self._roster, self._question, self._ckpt_dir, self._policy.rejoin)
            with contextlib.closing(recall):
                outcome = self._start_noting(start, resume, recall)
            judged = self._judge(outcome, begun, recall)
            if judged is None:
                return outcome.code
            resume, wait = True, judged

    def _start_noting(self, start: Start, resume: bool, recall: Recall) -> Outcome:
        """Makes one run, whose failure has what its ranks have noted."""
        lines, notes = self._roster.lines(), os.path.join(self._ckpt_dir, NOTES)
        existed = os.path.isdir(self._ckpt_dir)
        shutil.rmtree(notes, ignore_errors=True)  # of a launcher that was killed
        with contextlib.suppress(OSError):  # the script says it better
            os.makedirs(notes)
        try:
            outcome = start(lines, resume, recall)
            failure = outcome.failure and noted(outcome.failure, read(notes), lines)
        finally:
            shutil.rmtree(notes, ignore_errors=True)
            if not existed:
                with contextlib.suppress(OSError):  # the script has put something there
                    os.rmdir(self._ckpt_dir)
        if failure and failure.kind == FAILED and failure.own_end and os.path.isdir(self._ckpt_dir):
            failure = failure if has_room(self._ckpt_dir) else replace(failure, kind=DISK)
        return replace(outcome, failure=failure)

    def _judge(self, outcome: Outcome, begun: float, recall: Recall) -> float | None:
        """Returns seconds until the next start, None if there is to be none."""
        if outcome.code == COMPLETE or outcome.stopped_by is not None:
            return None
        saved = look(self._ckpt_dir)
        progressed = self._budget.progressed(saved)
        if progressed:
            self._roster.forgive()
        if outcome.recalled and outcome.failure is None:
            self._roster.take_back(recall.answered)
            names = ", ".join(sorted(recall.answered))
            self._report({"reason": "rejoin"}, saved, 0.0, f"{names} answers again and is taken back")
            return 0.0
        if outcome.code == RUN_AGAIN and self._policy.again:
            if not (progressed or self._budget.spend()):
                self._say(
                    f"code {RUN_AGAIN} without a checkpoint later than step {saved.step}; not started again"
                )
                return None
            self._report({"reason": "again"}, saved, self._budget.wait, "the script has to be run again")
            return self._budget.wait
        if outcome.code in (BAD_INPUT, RUN_AGAIN, *STOPPED) or outcome.failure is None:
            return None
        failure, logged = outcome.failure, logged_step(self._ckpt_dir)
        refusal = self._budget.take(failure, logged)
        if refusal is not None:
            self._say(refusal)
            return None
        host = failure.host
        # Only where the run could go on without it.
        needed = host not in self._roster.in_use() or self._roster.available <= self._fewest()
        if host is not None and not needed and self._roster.strike(host):
            self._say(f"{host} has failed too often and is left out")
        # Ranks that are left have saved, so they work, and there is nothing to wait for.
        rescued = saved.step > max((recall.begun.step, *saved.steps.values()))
        wait = 0.0 if rescued else self._budget.wait
        memory = kept_in_memory(self._ckpt_dir)  # which the next start takes, if the disk has room
        if memory is not None:
            saved = max(saved, look(memory), key=lambda each: each.step)
        now = time.time()
        steps = max(0, logged - saved.step)
        seconds = max(0.0, now - max(saved.time, begun))
        facts = {
            **{"reason": "failure", "failed": failure.part, "host": host, "code": failure.code},
            **{"kind": failure.kind, "how": failure.how, "last_words": failure.words},
            **{"lost_steps": steps, "lost_s": round(seconds, 1), "restarts_left": self._budget.left},
        }
        lost = f"; {steps} steps and {seconds:.0f} s of work are lost" if steps or seconds >= 1 else ""
        self._report(facts, saved, wait, f"{said(failure)}{lost}")
        return wait

    def _fewest(self) -> int:
        """Number of hosts that a start needs. The first checkpoint notes how many processes a run began with;
        before it, one with fewer would take other steps."""
        return self._min_hosts if look(self._ckpt_dir).steps else self._roster.wanted

    def _report(self, facts: Mapping[str, Any], saved: Saved, wait: float, text: str) -> None:
        """Shows the line of a restart."""
        self._number += 1
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self._restart = {"restart": self._number, "time": now, **facts, "step": saved.step, "wait_s": wait}
        hosts = len(self._roster.in_use())
        where = f" on {hosts} of {self._roster.wanted} hosts" if self._roster.is_short() else ""
        text = f"in {wait:g} s: {text}; goes on after step {saved.step}{where}"
        line = f"restart {self._number} at {now}, {text}"
        self._say(line)
        if self._policy.notify:
            notify.tell(notify.RESTART, line, command=self._policy.notify)

    def _record(self) -> None:
        """Appends the restart that has been prepared to restarts.jsonl: its hosts are known now."""
        if self._restart is None:
            return
        hosts = {"hosts": self._roster.in_use(), "left_out": sorted(self._roster.left_out)}
        record, self._restart = {**self._restart, **hosts}, None
        try:
            append(os.path.join(self._ckpt_dir, RECORDS), record)
        except OSError as error:  # a full disk may be why the run has failed
            self._say(f"{os.path.join(self._ckpt_dir, RECORDS)}: {error.strerror}; this restart is not in it")

    def _find_hosts(self, resume: bool) -> bool:
        """Asks the hosts to be used whether they answer, until all do; leaves out those that do not. Returns
        whether enough are left. Before the first run (not `resume`) lasting faults are bad input."""
        waits, end = 0, time.monotonic() + self._policy.patience
        while True:
            hosts, fewest = self._roster.in_use(), self._fewest()
            if len(hosts) < fewest:
                if time.monotonic() >= end:
                    left = ", ".join(sorted(self._roster.left_out))
                    why = "" if fewest == self._min_hosts else " before the first checkpoint"
                    self._say(f"{len(hosts)} hosts are left, the run needs {fewest}{why}; left out: {left}")
                    return False
                self._roster.take_back(set(self._roster.left_out) - set(self._faults(self._roster.left_out)))
            silent = dict(self._faults([host for host in self._roster.in_use() if not is_here(host)]))
            if not resume:
                check(silent)
            own = silent.pop(OWN, None)
            if own is not None:
                late = time.monotonic() >= end
                self._say(f"this machine {own.why}{'; nothing has been started' if late else ''}")
                if late:
                    return False
            for host in sorted(silent):
                out = self._roster.strike(host)
                what = " is left out" if out else f", try {self._roster.strikes(host)}"
                if self._restart is not None and self._restart.get("host", "") is None:
                    self._restart["host"] = host  # mpirun has named nobody
                self._say(f"{host}{what}: it {silent[host].why}")
            in_use = self._roster.in_use()
            enough = own is None and len(in_use) >= fewest
            if enough and not silent:
                return True
            if not enough or set(silent) & set(in_use):
                wait = min(LONGEST_WAIT, self._policy.backoff * 2.0 ** min(waits, 30))
                self._wait(min(wait, max(0.1, end - time.monotonic())))
                waits += 1


def wait(signals: Signals, seconds: float) -> None:
    """Waits so long. Raises Stopped when a signal comes."""
    number = signals.wait(seconds)
    if number is not None:
        raise Stopped(number)


def append(path: str, record: Mapping[str, Any]) -> None:
    """Appends a line of JSON to a file and syncs it. Half a line, which a killed launcher has left, goes.

    Raises:
        OSError: the disk is full, for example; the file is as it was.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, _LONGEST_LINE, max(0, size - _LONGEST_LINE))
        size -= len(end) - (end.rfind(b"\n") + 1)
        os.ftruncate(descriptor, size)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
