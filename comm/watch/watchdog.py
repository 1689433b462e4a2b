"""A limit to waiting, for any `comm.base.Communicator`: neither Horovod nor BytePS has one.

A rank that is stopped, lost with its host or cut off leaves the others waiting for ever in their libraries.
`watched` puts a limit to it, `timeout` seconds:

- Joining. A rank that has not joined the others by then says so, with what it sees of the run, and ends.
- Afterwards a thread in each rank exchanges signs of life with rank 0 (`comm.watch.heartbeat`). Who gives
  none for so long, or whose connection closes before the run does, is named by rank 0, and every rank ends.
  If it is rank 0, rank 1 names it. Rank 0's address, and the token by which the ranks know each other, travel
  through the communicator: the token is in no command line, environment or log.
- With BytePS rank 0 also watches the scheduler.
- If no rank is missing but all have waited inside one exchange for so long, the library or a server is stuck.
  A step's computing counts as waiting, because `average` only queues: the timeout must be longer than that.

Before it ends, one of the ranks that are left may save what all have: rank 0, which the others then wait for,
or one of these if it is rank 0 that is missing (`Communicator.before_end`).

A rank ends with exit code 1, through `comm.base.abort`: its main thread may be inside a library and cannot be
interrupted. What computes for longer than the timeout outside of an exchange, as when one rank reads a corpus
while the others wait in `barrier`, is no failure.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterator, Mapping, Sequence

from base import failures
from base.launchers import launched_rank
from comm.base import CommunicationError, Communicator, DelegatingCommunicator, LastAct, Pending, abort
from comm.watch.addresses import candidates, choose, interfaces, machine, shares
from comm.watch.heartbeat import (
    ENDED,
    LOOPBACK,
    SILENT,
    STUCK,
    TOLD,
    Hub,
    HubAddress,
    Link,
    Sign,
    StoppableThread,
    Watch,
    readable,
)
from comm.watch.run_processes import describe_run, scheduler_address, scheduler_state, uses_byteps

if TYPE_CHECKING:
    from mxnet.nd import NDArray

LONGEST_INTERVAL = 5.0  # seconds between two signs of life
PATIENCE = 2.0  # seconds that other ranks leave to rank 0 to say the same thing first
SAVING = 600.0  # seconds that they leave to it to save
BEHIND = 0.5  # seconds that they end behind it, so that a launcher sees its end first
_ADDRESS_BYTES = 4096  # more than MOST addresses of comm/watch/addresses.py take
_OPTION = "--comm_timeout"


def watched(
    make_communicator: Callable[[], Communicator],
    timeout: float,
    asked: Callable[[], int | None] = lambda: None,
) -> Communicator:
    """Returns `make_communicator`'s communicator with every wait limited to `timeout` seconds. Every rank
    calls it. A run of one process without servers has nothing to wait for: its communicator is unchanged.

    `asked`: returns the exit code for a signal that this process has received, None without one. When another
    rank is lost after that, most likely by the same signal, the process ends with this code and no message.

    Raises what `make_communicator` raises, and CommunicationError when a rank cannot connect to rank 0.
    """
    rank = launched_rank(os.environ)

    def give_up() -> None:
        seen = describe_run(os.environ, ask_others=True)
        if not limit.finished.is_set():  # they have joined meanwhile
            _end_process(f"waited {timeout:g} s ({_OPTION}) for the other ranks to join", rank, seen)

    # Rank 0 speaks first; should it be the one that is missing, rank 1 does.
    limit = threading.Timer(timeout + min(rank, 2) * 2 * PATIENCE, give_up)
    limit.daemon = True
    limit.start()
    try:
        communicator = make_communicator()
        if communicator.size == 1 and not uses_byteps(os.environ):
            return communicator
        return WatchedCommunicator(communicator, timeout, asked)
    finally:
        limit.cancel()
        limit.join()


class _WatchedCollectives(DelegatingCommunicator):
    """Collectives of a run or of a group of its ranks, which `run` takes note of."""

    def __init__(self, inner: Communicator, run: WatchedCommunicator):
        super().__init__(inner)
        self.together = inner.together
        self._run = run

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        with self._run.inside("broadcast"):
            self._inner.broadcast(arrays, root)

    def average(self, arrays: Sequence[NDArray]) -> None:
        self._run.queues(arrays)
        self._inner.average(arrays)

    def scaled_average(self, arrays: Sequence[NDArray]) -> float:
        self._run.queues(arrays)
        return self._inner.scaled_average(arrays)

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        with self._run.inside("all_agree"):
            return self._inner.all_agree(flags)

    def barrier(self) -> None:
        with self._run.inside("barrier"):
            self._inner.barrier()


class WatchedCommunicator(_WatchedCollectives):
    """Notes for the heartbeat which call is under way; `communicator` does the work."""

    def __init__(
        self,
        communicator: Communicator,
        timeout: float,
        asked: Callable[[], int | None] = lambda: None,
    ):
        super().__init__(communicator, self)
        self._asked = asked
        # The exchange that its thread is in, and since when; exchanged as a whole: no lock is needed.
        self._now = ("", 0.0)
        self._verdict = threading.Event()
        self._open = True
        self._last_act: LastAct = lambda has_first: ""
        watch = Watch(timeout, min(LONGEST_INTERVAL, timeout / 5), self.sign, self._end)
        self._heartbeat = _connect(communicator, watch)
        self._scheduler: StoppableThread | None = None
        if isinstance(self._heartbeat, Hub) and scheduler_address(os.environ):
            self._scheduler = watch_scheduler(os.environ, timeout, timeout / 5, self._heartbeat.report)

    def groups(self, groups: Sequence[Sequence[int]]) -> Communicator:
        with self.inside("groups"):
            group = self._inner.groups(groups)
        # A rank of its own has nobody to wait for.
        return group if group.size == 1 else _WatchedCollectives(group, self)

    def send(self, array: NDArray, to: int, tag: int) -> Pending:
        message = self._inner.send(array, to, tag)
        return _WatchedMessage(message, lambda: self.inside(f"a message to rank {to}"))

    def receive(self, array: NDArray, source: int, tag: int) -> Pending:
        message = self._inner.receive(array, source, tag)
        return _WatchedMessage(message, lambda: self.inside(f"a message from rank {source}"))

    def forget(self) -> None:
        with self.inside("forget"):
            self._inner.forget()

    def before_end(self, act: LastAct) -> None:
        self._last_act = act

    def give_up(self, why: str) -> None:
        if isinstance(self._heartbeat, Hub):
            self._heartbeat.report(why)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        with self.inside("close"):
            self._inner.close()
            self._heartbeat.close()
        if self._scheduler:
            self._scheduler.stop()

    @contextmanager
    def inside(self, exchange: str) -> Iterator[None]:
        """Notes an exchange that waits, as long as the block lasts."""
        self._now = (exchange, time.monotonic())
        try:
            yield
        except CommunicationError:
            # The library only knows that somebody is missing; the heartbeat is about to know who.
            if self._verdict.wait(PATIENCE):
                # Its thread is about to end this process; its verdict is the better message.
                time.sleep(SAVING)
                abort(1)
            raise
        finally:
            self._now = ("", 0.0)

    def queues(self, arrays: Sequence[NDArray]) -> None:
        """Notes an exchange that only queues, until a call that waits has returned."""
        if arrays:
            self._now = ("average", time.monotonic())

    def sign(self) -> Sign:
        """The sign of life for the present moment; another thread asks for it."""
        exchange, begun = self._now
        return Sign(exchange, time.monotonic() - begun if exchange else 0.0)

    def _end(self, kind: str, text: str) -> None:
        """Ends this process, in the heartbeat's thread, with a line that says why unless another rank says
        it."""
        self._verdict.set()
        byteps, begun = uses_byteps(os.environ), time.monotonic()
        beat = getattr(self, "_heartbeat", None)  # this thread is one of its own, and may be first
        try:
            done = self._last_act(self.rank == 0 or kind == TOLD)
        except Exception as error:  # whatever it is, the lost rank is what matters
            done = f"{type(error).__name__}: {error}"
        if kind == TOLD and isinstance(beat, Link):
            beat.outlive(SAVING)
            time.sleep(BEHIND)
        else:
            time.sleep(max(0.0, patience(self.rank, kind) - (time.monotonic() - begun)))
        code = self._asked() if kind in (ENDED, TOLD) else None
        if code is not None:
            _end_soon(code)
            if done:
                print(done, file=sys.stderr, flush=True)
            abort(code)
        if kind == TOLD and (not byteps or self.local_rank):
            abort(1)  # rank 0 has said it where this rank's output goes, too; bpslaunch has several places
        if kind == STUCK:
            guilty = "a BytePS server does not answer" if byteps else "the library is stuck"
            text += f" ({_OPTION}) and none is missing: {guilty}, or a step takes longer than that"
        elif kind == SILENT:
            text += f" ({_OPTION})"
        seen = "" if kind == TOLD else describe_run(os.environ, ask_others=kind == STUCK)
        seen = "; ".join(filter(None, (seen, done)))
        missing = beat.absent if beat and kind in (ENDED, SILENT) else None
        # A library that is stuck, with all ranks there, may be so again.
        fault = (
            failures.FAILED if kind == STUCK else failures.PASSING if missing is None else failures.MISSING
        )
        _end_process(text, self.rank, seen, fault, missing)


class _WatchedMessage:
    """A message for which the wait is noted."""

    def __init__(self, message: Pending, inside: Callable[[], ContextManager[None]]):
        self._message = message
        self._inside = inside

    def wait(self) -> None:
        with self._inside():
            self._message.wait()

    def done(self) -> bool:
        return self._message.done()


def watch_scheduler(
    environ: Mapping[str, str], timeout: float, interval: float, on_loss: Callable[[str], None]
) -> StoppableThread:
    """Starts a thread that connects to BytePS's scheduler every `interval` seconds. When nobody has answered
    for `timeout` seconds it calls `on_loss(text)`, once, and ends. To stop it takes at most as long as one
    attempt to connect.

    Ranks need the scheduler when they join and when they close; in between they would not miss it, and would
    work for days towards an end that cannot come.
    """

    def run() -> None:
        answered = turn = time.monotonic()
        while not thread.stopping:
            state = scheduler_state(environ, min(2.0, timeout / 4))
            now = time.monotonic()
            if state == "answers" or now - turn > timeout / 2:  # or this process was stopped or starved
                answered = now
            elif now - answered > timeout:
                where = scheduler_address(environ)
                on_loss(f"the BytePS scheduler at {where} {state}, for {timeout:g} s now ({_OPTION})")
                return
            turn = now
            readable([thread.wakeup], interval)

    thread = StoppableThread(run)
    thread.start()
    return thread


def patience(rank: int, kind: str) -> float:
    """Seconds that a rank waits with its verdict, so that one rank speaks, the one that knows best: a rank
    that fails says why itself (after `training.entry.PATIENCE` unless it is rank 0), and a launcher ends the
    others."""
    if rank == 0:
        return PATIENCE / 2 if kind == ENDED else 0.0
    if kind == TOLD:  # rank 0 is saying it
        return 2 * PATIENCE
    return min(rank - 1, 1) * PATIENCE + (PATIENCE / 2 if kind == ENDED else 0.0)


def _connect(communicator: Communicator, watch: Watch) -> Hub | Link:
    # Rank 0 listens at addresses of its own, on networks that it shares with all ranks if there are any.
    here, own = machine(), interfaces()
    offered = [str(each.address) for each in candidates(own, os.environ)]
    there, offered = _from_rank_0(communicator, [here, offered])
    together = here == there
    flags = [together, *(together or shares(own, str(each)) for each in offered)]
    on_one_machine, *shared = communicator.all_agree(flags)
    addresses = [LOOPBACK] if on_one_machine else choose(offered, shared)
    reason = ""
    hub = link = None
    if communicator.rank == 0:
        try:
            hub = Hub(communicator.size, watch, addresses)
        except OSError as error:  # the others must not wait for it
            reason = f"{', '.join(addresses)}: {error.strerror or error}"
    listening = hub.address if hub else HubAddress((), b"")
    found, token = _from_rank_0(communicator, [listening.places, listening.token.hex()])
    address = HubAddress(tuple((str(host), int(port)) for host, port in found), bytes.fromhex(token))
    if communicator.rank:
        try:
            link = Link(communicator.rank, address, watch, connect_seconds=watch.timeout / 4)
        except ConnectionError as error:
            reason = str(error)
    if communicator.all_agree([not reason]) != [True]:
        if not address.places:
            raise CommunicationError(f"rank 0 cannot listen for signs of life{reason and f' ({reason})'}")
        who = f"ranks {', '.join(map(str, hub.missing))} cannot" if hub else "cannot"
        raise CommunicationError(
            f"{who} connect to rank 0 at {address}: the hosts must accept TCP connections from each other"
            + (f" ({reason})" if reason else "")
        )
    beat = hub or link
    assert beat is not None
    return beat


def _from_rank_0(communicator: Communicator, value: Any) -> Any:
    """Rank 0's `value`, which JSON can hold, on every rank."""
    mx: Any = importlib.import_module("mxnet")
    text = json.dumps(value).encode().ljust(_ADDRESS_BYTES)
    array = mx.nd.array(list(text), ctx=mx.cpu(), dtype="uint8")
    communicator.broadcast([array])
    return json.loads(array.asnumpy().tobytes())


def _end_process(
    message: str, rank: int, seen: str, kind: str = failures.PASSING, missing: int | None = None
) -> None:
    """One line on standard error, a note for the launcher of this `kind`, which may name the rank that is
    `missing`, and the end of this process."""
    line = f"error: {f'rank {rank}: ' if rank else ''}{message}{f'; {seen}' if seen else ''}"
    _end_soon(1)
    print(line, file=sys.stderr, flush=True)
    failures.leave(1, kind, line, missing)
    abort(1)


def _end_soon(code: int) -> None:
    """Ends this process in PATIENCE seconds, even if it is blocked in writing to a standard stream that
    nobody reads any more."""
    limit = threading.Timer(PATIENCE, os._exit, (code,))
    limit.daemon = True
    limit.start()
