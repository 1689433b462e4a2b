"""`python compare.py --comm_only`: communication alone by message size, every element of each checked.

    python compare.py --comm_only [--backends hvd_mpi byteps] [--workers 2] [--sizes 4KB 1MB 200x64KB]

Start-up, from the launch to the first average, and agreements of the ranks are timed, too.

Under --output: messages.md, .html, .json and .png, and in messages/ what each launch has left. A second
call with the same options continues; finished launches are not repeated.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Mapping, Sequence

from base import launchers
from base.json_files import read_json_lines
from base.memory import available_bytes
from comparison.backends import BYTEPS, BYTEPS_LOCAL, ROOT, environment, launch_words
from comparison.campaign import Campaign, Said, Store, what_counts
from comparison.launch import Launched, launch, reason_of_exit
from comparison.messages.plan import Cell, Message, left_out_of, worker_plan
from comparison.messages.report import report_of
from comparison.options import MessagesOptions
from comparison.report import Report, as_json, write_text
from comparison.settings import Turn, turns_of
from hosts.hostfile import merged

FOLDER, LEFT_OUT = "messages", "left_out.json"  # under --output
START_S, RATE = 10.0, 2e8  # a launch's start and bytes a second, before one was made
RESERVE = 1e9  # bytes that stay free for everybody else
RANK = ROOT / "comparison" / "messages" / "rank.py"
LOG, PLAN = "run.log", "plan.json"


def compare_messages(options: MessagesOptions) -> int:
    """Runs the comparison. Returns 0 when it is complete, 1 when a backend was wrong or failed.

    Raises:
        InputError: before any work.
        KeyboardInterrupt: after the partial report has been written.
    """
    with Store(os.path.join(options.output, FOLDER), options.dry_run) as store:
        names = ("backends", "seed", "message_dtype", "message_seconds")
        plan = {f"--{name}": options.given[name] for name in names}
        plan["--workers"] = sorted({cell.workers for cell in options.cells})
        plan["--sizes"] = [message.name for message in options.messages]
        store.agree_on(what_counts(plan, options.cluster), options.repeats)
        sweep = Sweep(options, store)
        return sweep.dry_run() if options.dry_run else sweep.run(Path(options.output))


class Sweep(Campaign):
    """Launches that send messages, backends with as many ranks next to each other. `unfit`: messages that do
    not fit into memory, with the reason."""

    options: MessagesOptions
    alike = (lambda turn: turn.setting,)
    rule = f"{START_S:g} s to start, and for each message --message_seconds and 1 s for {RATE / 1e6:.0f} MB"
    left_out = "left out: no message is left that fits into memory and has not failed"

    def __init__(self, options: MessagesOptions, store: Store):
        self.unfit = _unfit(store, options)
        super().__init__(options, store, turns_of(options.cells, {"": options.repeats}, options.seed))

    def failed(self, turn: Turn, launch: Any) -> bool:
        names = {message.name for message in self.options.messages}
        return not names <= {*launch["results"], *self.unfit[turn.setting]}

    def title(self, turn: Turn) -> str:
        title = self.options.titles[turn.setting.backend]
        return f"{title}, {turn.setting.workers} ranks, repeat {turn.repeat + 1}"

    def command(self, turn: Turn, start: int = 0) -> list[str]:
        """`start`: greater than 0 where ranks have failed at a message and are started for the next ones."""
        here = self.store.folder / turn.name / f"start-{start}"
        here.mkdir(parents=True)
        backend = self.options.backends[turn.setting.backend]
        library = launchers.BYTEPS if backend.launcher in (BYTEPS, BYTEPS_LOCAL) else launchers.HVD
        words = launch_words(backend, turn.setting.workers, self.options.cluster, here)
        return [*words, sys.executable, str(RANK), library, str(here / PLAN), str(here)]

    def guess(self, turn: Turn) -> float:
        sent = self.to_send(turn)
        moved = sum(message.nbytes for message in sent) / RATE
        return START_S + len(sent) * self.options.message_seconds + moved

    def will_run(self, turn: Turn) -> bool:
        return bool(self.to_send(turn))

    def to_send(self, turn: Turn) -> list[Message]:
        """The messages that fit into memory and at which the backend has not failed, or was wrong, so far."""
        avoided = set(self.unfit[turn.setting])
        for other, earlier in self.made.items():
            if other.setting == turn.setting:
                avoided.update(earlier["wrong"], earlier["failures"])
        return [message for message in self.options.messages if message.name not in avoided]

    def measure(self, turn: Turn, directory: Path) -> dict[str, Any]:
        """Sends all messages that are left and returns the setting, the repeat, and

        - `results`: message -> `first_s`, `rounds_s` (slowest rank of each round), `ranks_s` (rounds by rank)
        - `wrong`: message -> which element was wrong
        - `failures`: message -> why there is no result; a launch that fails before it sends fails for all
        - `notes`: what went wrong after the last message
        - `attempts`: command, returncode, seconds, peak_bytes of every start, the CPU seconds that its
          processes took, the share of this machine's time that "others" took meanwhile, and, None where the
          ranks did not come so far, `start_up_s`: from the launch until all ranks had the first average, and
          `agreement_s`: of an agreement (the slowest rank's median)

        Every start has a folder of its own in `directory`, with the log and what the ranks wrote.
        """
        options, (key, workers) = self.options, turn.setting
        begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
        outcome: dict[str, Any] = {**turn.setting._asdict(), "repeat": turn.repeat, "begun": begun}
        outcome.update(results={}, wrong={}, failures={}, notes=[])
        attempts = outcome["attempts"] = []
        todo, start = self.to_send(turn), time.monotonic()
        while todo:
            command = self.command(turn, len(attempts))
            here = directory / f"start-{len(attempts)}"
            seed = 1000 * options.seed + turn.repeat
            plan = worker_plan(todo, options.message_dtype, workers, options.message_seconds, seed)
            write_text(here / PLAN, as_json(plan))
            environ = environment(options.backends[key], options.cluster)
            ended = launch(command, environ, here / LOG, options.time_limit, RANK)
            said = [read_rank(here / f"rank-{rank}.jsonl") for rank in range(workers)]
            # None where not all ranks have come so far.
            ends = [each["results"].get(todo[0].name, {}).get("first_at") for each in said]
            agreements = [statistics.median(each["agreements_s"] or [0.0]) for each in said]
            attempts.append(
                {
                    "command": command,
                    "returncode": ended.returncode,
                    "seconds": round(ended.seconds, 3),
                    "peak_bytes": dict(ended.peak_bytes),
                    "cpu_s": ended.cpu_s,
                    "others": ended.others,
                    "start_up_s": None if None in ends else round(max(ends) - ended.begun, 3),
                    "agreement_s": max(agreements) if all(agreements) else None,
                }
            )
            outcome["joined"] = [each["joined"] for each in said]
            todo = _collect(outcome, said, todo, why(ended, here / LOG, options.time_limit, said))
        outcome["seconds"] = round(time.monotonic() - start, 3)
        return outcome

    def said(self, launch: Any) -> Said:
        troubles = {**launch["wrong"], **launch["failures"]}
        text = "; ".join(f"{message}: {text}" for message, text in troubles.items())
        others = max(each["others"] for each in launch["attempts"])
        return Said(text or f"done in {launch['seconds']:.0f} s", others, bool(troubles))

    def report_of(self, records: Sequence[dict[str, Any]], complete: bool) -> tuple[Report, list[str]]:
        options = self.options
        facts = {**self.facts, "dtype": options.message_dtype, "repeats": options.repeats}
        report = report_of(facts, options.cells, options.messages, records, self.unfit, complete)
        troubles = [
            f"{Cell(each['backend'], each['workers']).name} {message}: {reason}"
            for each in records
            for message, reason in {**each["wrong"], **each["failures"]}.items()
        ]
        return report, [*dict.fromkeys(troubles)]


def _unfit(store: Store, options: MessagesOptions) -> dict[Cell, dict[str, str]]:
    """Messages that do not fit into memory. It is looked at once, and they stay left out in the calls that
    continue."""
    cells, cluster = options.cells, options.cluster
    kept = store.load(LEFT_OUT, dict)
    if kept is not None:
        return {cell: kept.get(Turn(cell, 0).name, {}) for cell in cells}
    available = available_bytes() - RESERVE
    reasons = {}
    for cell in cells:
        # The most ranks that a host has; all hosts are taken to have this one's memory.
        hosts = merged(cluster.first(cell.workers)) if cluster else [("localhost", cell.workers)]
        ranks = max(slots for _, slots in hosts)
        reasons[cell] = left_out_of(options.backends[cell.backend], ranks, options.messages, available)
    store.save(LEFT_OUT, {Turn(cell, 0).name: each for cell, each in reasons.items()})
    return reasons


def read_rank(path: Path) -> dict[str, Any]:
    """Lines that a rank has written until its end; one that its end cut off does not count. `joined`: None
    where it has left nothing, `begun`: messages in their order, `results`: by message, `agreements_s`:
    seconds of each agreement."""
    said: dict[str, Any] = {"joined": None, "begun": [], "results": {}, "agreements_s": []}
    try:
        lines = read_json_lines(str(path))
    except FileNotFoundError:
        return said
    said["joined"] = {}
    for values in lines:
        if "joined" in values:
            said["joined"] = values
        elif "begins" in values:
            said["begun"].append(values["begins"])
        elif "agreements_s" in values:
            said.update(values)
        else:
            said["results"][values.pop("message")] = values
    return said


def _collect(
    outcome: dict[str, Any], said: Sequence[Mapping[str, Any]], todo: Sequence[Message], reason: str
) -> list[Message]:
    """Enters what all ranks, or one that was sent something wrong, have to say, and `reason`, why they ended,
    where it was too early. Returns the messages for which they are to be started again."""
    left = []
    for message in todo:
        name = message.name
        results = [each["results"][name] for each in said if name in each["results"]]
        wrong = [result["wrong"] for result in results if result.get("wrong")]
        if wrong:
            outcome["wrong"][name] = wrong[0]
        elif len(results) < len(said):
            left.append(message)
        elif len({len(result.get("rounds_s", ())) for result in results}) > 1 or "rounds_s" not in results[0]:
            outcome["wrong"][name] = "the ranks do not agree on when to stop: all_agree is wrong"
        else:
            rounds = [result["rounds_s"] for result in results]
            outcome["results"][name] = {
                "first_s": max(result["first_s"] for result in results),
                "rounds_s": [max(seconds) for seconds in zip(*rounds)],
                "ranks_s": rounds,
            }
    if not left:
        if outcome["attempts"][-1]["returncode"]:
            outcome["notes"].append(f"after the last message: {reason}")
        return []
    if not {message.name for message in todo} & {name for each in said for name in each["begun"]}:
        outcome["failures"].update({message.name: f"before any message: {reason}" for message in left})
        return []
    # Ranks send in the plan's order: the first that not all have finished is where it ended.
    outcome["failures"][left[0].name] = reason
    return left[1:]


def why(ended: Launched, log: Path, limit: float, said: Sequence[Mapping[str, Any]]) -> str:
    """The reason of a failure in one line. `said`: of each rank, by `read_rank`."""
    missing = [str(rank) for rank, each in enumerate(said) if each["joined"] is None]
    if ended.timed_out:
        return f"no end within {limit:.0f} s (--time_limit)"
    if ended.returncode == 0 and missing:
        return (
            f"rank {', '.join(missing)} left no file in {log.parent}: with several hosts --output must be on"
            " a file system that all of them share"
        )
    return reason_of_exit(ended, log.read_text(encoding="utf-8", errors="replace"))[0]
