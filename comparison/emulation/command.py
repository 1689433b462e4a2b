"""`python compare.py --emulate`: real Horovod and BytePS between hosts with links of a given rate, emulated
on this machine, beside what the projection says of the same cluster.

    python compare.py --emulate --hosts 2 4 --rates 25 --work 64MB
    python compare.py --emulate --hosts 8 --rates 10 100 --work bert_24_1024_16 --scale 400 20

Under --output: emulation.md, .html, .json and .png, and in emulation/ what each launch has left. A
second call with the same options continues; finished launches are not repeated.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Mapping, Sequence

from base.errors import InputError
from base.files import sha256_of
from base.json_files import read_json_lines
from base.memory import available_bytes
from base.options import options_in
from bert.configuration import parse_model
from comparison.backends import ROOT, environment
from comparison.campaign import Campaign, Said, Store, what_counts
from comparison.emulation import network
from comparison.emulation.plan import (
    LEAST_STEPS,
    MOST_STEPS,
    SECONDS,
    TRACE,
    OfEmulation,
    Scale,
    Setting,
    cluster_of,
    layout_of,
    message_workload,
    replay_of,
    traced_workload,
)
from comparison.emulation.report import report_of, setting_of
from comparison.launch import launch, reason_of_exit
from comparison.messages.plan import PROCESS_BYTES, UNITS
from comparison.options import EmulationOptions
from comparison.projection.clusters import Cluster
from comparison.projection.command import plan_of
from comparison.projection.model import Projection, project
from comparison.projection.workload import Workload
from comparison.report import Report, as_json, plain, write_text
from comparison.settings import Turn, turns_of

FOLDER = "emulation"  # under --output
LOG, PLAN, CLUSTER = "run.log", "plan.json", "cluster.json"
YIELD = ROOT / "comparison" / "emulation" / "yield.c"
START_S = 15.0  # a launch's start, before one was made
PATIENCE = 60.0  # seconds for the start of the ranks, and for busy machines
# Shares of a step in which a thread may be ready to run and have no processor, and of all processors' time
# that the emulation may take. More is no longer the network's time: the step does not count.
MOST_WAITED, MOST_TAKEN = 0.25, 0.75
LEAST_COUNTED = 2  # steps of a launch; where fewer count, the processors do not carry the setting


def emulate(options: EmulationOptions) -> int:
    """Runs the emulation. Returns 0 when every setting has its figures or is more than the processors carry,
    1 when a backend was wrong or failed.

    Raises:
        InputError: before any work; this machine cannot emulate hosts, say.
        KeyboardInterrupt: after the partial report has been written.
    """
    workloads = _workloads(options)
    missing = network.lacking()
    if missing is not None:
        if not options.dry_run:
            raise InputError(f"--emulate {missing}")
        print(f"would not start here: --emulate {missing}")
    with Store(os.path.join(options.output, FOLDER), options.dry_run) as store:
        names = sorted({"backends", "seed", *vars(options.projection), *options_in(OfEmulation)} - {"output"})
        values = {f"--{name}": options.given[name] for name in names}
        values["content of --trace"] = options.trace and sha256_of(options.trace)
        store.agree_on(what_counts({**values, "--backends": list(options.backends)}, None), options.repeats)
        emulation = Emulation(options, store, workloads)
        if options.dry_run:
            return emulation.dry_run()
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-o", store.directory / "yield.so", YIELD], check=True
        )
        return emulation.run(Path(options.output))


def _workloads(options: EmulationOptions) -> dict[tuple[str, str, int], Workload]:
    """By work, dtype of gradients and accumulation. Raises InputError."""
    found: dict[tuple[str, str, int], Workload] = {}
    for key in dict.fromkeys(setting.group[2:5] for setting in options.settings):
        work, dtype, accumulate = key
        if work.startswith("bert_"):
            try:
                parse_model(work)
            except InputError as error:
                raise InputError(f"--work {str(error).partition(' ')[2]}") from error
            projection = replace(options.projection, model=work, gpus=[1], accumulate=accumulate)
            found[key] = plan_of(replace(projection, gradient_dtype=dtype)).workload
        elif accumulate > 1:
            raise InputError(f"--accumulations {accumulate}: {work} is one exchange of gradients")
        elif work == TRACE and options.trace is not None:
            found[key] = traced_workload(options.trace, dtype)
        else:
            try:
                found[key] = message_workload(work, dtype)
            except ValueError as error:
                raise InputError(f"--work {error}, or bert_LAYERS_UNITS_HEADS") from error
    return found


class Emulation(Campaign):
    """Launches of emulated clusters, contenders of a group next to each other."""

    options: EmulationOptions
    alike = (lambda turn: turn.setting, lambda turn: turn.setting.group)
    rule = (
        f"{START_S:g} s to start, and {LEAST_STEPS + 1} steps of the projected time on the scale, or"
        f" {SECONDS:g} s"
    )

    def __init__(
        self, options: EmulationOptions, store: Store, workloads: Mapping[tuple[str, str, int], Workload]
    ):
        self.workloads, self.scale = workloads, Scale(*options.scale)
        self.cluster: Cluster = plan_of(replace(options.projection, gpus=[1], compute_s=1.0)).cluster
        super().__init__(options, store, turns_of(options.settings, {"": options.repeats}, options.seed))

    def title(self, turn: Turn) -> str:
        title, group = turn.setting.title(self.options.titles), turn.setting.group
        return f"{title}, {group.place}, {group.exchanged}, repeat {turn.repeat + 1}"

    def command(self, turn: Turn) -> list[str]:
        return network.command(self.store.folder / turn.name / CLUSTER)

    def guess(self, turn: Turn) -> float:
        projected = self.projected(turn.setting)
        step_s = self.scale.times * projected.step_s if projected else 1.0
        return START_S + max(SECONDS, (LEAST_STEPS + 1) * step_s)

    def will_run(self, turn: Turn) -> bool:
        return not any(
            record["trouble"] for other, record in self.made.items() if other.setting == turn.setting
        )

    def projected(self, setting: Setting) -> Projection | None:
        """Time and bytes by the projection; None for a compression that it does not know."""
        group, workload = setting.group, self.workloads[setting.group[2:5]]
        if group.compression not in ("none", "fp16"):
            return None
        if group.compression == "fp16":
            workload = replace(workload, gradient_bytes=2)
        cluster = cluster_of(self.cluster, setting, self.scale)
        return project(workload, setting.strategy, cluster, group.hosts)

    def failed(self, turn: Turn, record: Any) -> bool:
        return bool(record["trouble"])

    def said(self, record: Any) -> Said:
        text = record["trouble"] or f"done in {record['seconds']:.0f} s"
        return Said(text, record["others"], record["failed"])

    def measure(self, turn: Turn, directory: Path) -> dict[str, Any]:
        """Makes the launch. Returns its setting and repeat, and

        - `steps`: seconds of each step in the emulation, the slowest rank's, but for the first (`first_s`)
          and those that the processors did not carry, of which there were `left_out`
        - medians of these steps: `cpu_share` of all processors' time, `waited_share` of the thread that
          waited most for a processor, `link_bytes` through the busiest link
        - `trouble`: why there are no figures, or None; `failed`: the backend is to blame
        - `command`, `seconds`, `begun`, `others`
        """
        options, setting = self.options, turn.setting
        os.link(self.store.directory / "yield.so", directory / "yield.so")
        backend = options.backends[setting.backend]
        layout = layout_of(setting, backend, self.cluster, self.scale, directory)
        projected = self.projected(setting)
        step_s = self.scale.times * (projected.step_s if projected else 60.0)
        limit = max(options.time_limit, PATIENCE + 3 * MOST_STEPS * step_s)
        workload, seed = self.workloads[setting.group[2:5]], 1000 * options.seed + turn.repeat
        plan = replay_of(setting, workload, self.scale, seed, PATIENCE + 10 * step_s)
        write_text(directory / PLAN, as_json(plan))
        write_text(directory / CLUSTER, as_json(layout))
        command = self.command(turn)
        begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
        record = {"setting": plain(setting), "repeat": turn.repeat, "begun": begun}
        needed = layout.hosts * PROCESS_BYTES + 6 * setting.group.hosts * sum(plan["elements"]) * 4
        if needed > available_bytes():
            why = f"needs about {needed / UNITS['GB']:.1f} GiB of memory"
            return {**record, "trouble": why, "failed": False, "seconds": 0.0, "others": 0.0, "steps": []}
        ended = launch(command, environment(backend), directory / LOG, limit)
        record.update(command=command, seconds=round(ended.seconds, 3), others=ended.others)
        record.update(measured(directory, setting.group.hosts))
        wrong = (record["trouble"] or "").startswith("wrong")
        if ended.timed_out:
            record.update(trouble=f"failed: no end within {limit:.0f} s", failed=True)
        elif ended.returncode and not wrong:
            said = (directory / LOG).read_text(encoding="utf-8", errors="replace")
            record.update(trouble=f"failed: {reason_of_exit(ended, said)[0]}", failed=True)
        return record

    def report_of(self, records: Sequence[dict[str, Any]], complete: bool) -> tuple[Report, list[str]]:
        facts = {
            **self.facts,
            "repeats": self.options.repeats,
            "cluster": vars(self.cluster),
            "scale": self.scale,
            "launches": len(self.works),
        }
        projected = {setting: self.projected(setting) for setting in self.options.settings}
        report = report_of(facts, projected, records, complete)
        failed = {setting_of(each).name: each["trouble"] for each in records if each["failed"]}
        return report, [f"{name}: {trouble}" for name, trouble in failed.items()]


def measured(directory: Path, ranks: int) -> dict[str, Any]:
    """Figures of what the ranks of a launch have left; for the keys see `Emulation.measure`."""
    paths = [directory / f"rank-{rank}.jsonl" for rank in range(ranks)]
    rounds = list(zip(*(read_json_lines(str(path)) if path.exists() else [] for path in paths)))
    found: dict[str, Any] = {"trouble": None, "failed": False, "steps": []}
    for number, steps in enumerate(rounds):
        wrong = [f"rank {rank}: {each['wrong']}" for rank, each in enumerate(steps) if each["wrong"]]
        if not wrong and len({each["bits"] for each in steps}) > 1:
            wrong = ["the ranks have different bits"]
        if wrong:
            return {**found, "trouble": f"wrong: step {number}, {wrong[0]}", "failed": True}
    if len(rounds) < 2:
        return {**found, "trouble": "failed: the ranks took no step", "failed": True}
    cores = os.cpu_count() or 1
    steps_s = [max(each["seconds"] for each in steps) for steps in rounds[1:]]
    loads = [steps[0] for steps in rounds[1:]]
    waited = [each["waited_s"] / each["seconds"] for each in loads]
    taken = [each["cpu_s"] / each["seconds"] / cores for each in loads]
    counted = [
        step for step, _ in enumerate(loads) if waited[step] <= MOST_WAITED and taken[step] <= MOST_TAKEN
    ]
    if len(counted) < LEAST_COUNTED:
        found["trouble"] = (
            f"the processors do not carry it: a thread waited for one {statistics.median(waited):.0%} of a"
            f" step, the emulation took {statistics.median(taken):.0%} of them; a larger --scale or lower"
            " --rates slow it down"
        )
    chosen = counted if not found["trouble"] else range(len(loads))
    return {
        **found,
        "steps": [steps_s[step] for step in chosen],
        "left_out": len(loads) - len(counted),
        "first_s": max(each["seconds"] for each in rounds[0]),
        "cpu_share": statistics.median(taken[step] for step in chosen),
        "waited_share": statistics.median(waited[step] for step in chosen),
        "link_bytes": statistics.median(loads[step]["link_bytes"] for step in chosen),
    }
