"""A fine-tuning command: one run, or all of --seeds and --search, over one communicator."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from base import notify
from base.errors import InputError
from base.launchers import launched_rank
from base.options import RUN, taken
from base.tables import terminal
from base.threads import set_threads
from comm.base import Communicator
from comm.options import CommunicationConfig, choose_backend, communication_config
from tasks.base import Task
from training.estimate import check_memory
from training.finetuning.beginning import BeginningConfig, find_beginning, take_initial
from training.finetuning.inputs import FinetuningInputs
from training.finetuning.options import Script, finetuning_config, parse
from training.profiling.profiler import separate_operators
from training.results.members import Member, Plan, check_plan, members_of, run_members
from training.results.summary import members_tables, read_members
from training.run_inputs import Part
from training.start.initial import Wanted
from training.start.pretrained import pretrained_config
from training.start.start import check_start
from training.stopping import asked


class Prepared(NamedTuple):
    """A run whose input is read and checked. `task` makes its task, for which MXNet is imported; `backend` is
    the name of its exchange."""

    part: Part
    task: Callable[[], Task]
    backend: str
    communication: CommunicationConfig


def prepare(script: Script, argv: Sequence[str] | None) -> Prepared:
    """The run of a command line: everything is read and checked, MXNet is not imported.

    Raises:
        InputError: bad options, files or weights.
    """
    options = parse(script, argv)
    backend = choose_backend(options.backend, os.environ)
    found = find_beginning(taken(BeginningConfig, options, described=pretrained_config(options)))
    length, positions = options.max_seq_length, found.bert.positions
    if positions < length:
        raise InputError(f"--max_seq_length {length}: the model has {positions} positions")
    files = script.open(options, found)
    config = finetuning_config(options, found, script.table)
    wanted = Wanted(found.bert, found.vocab_size, found.tokenizer.vocabulary)
    start = check_start(config, wanted, lambda: take_initial(found, files.parameters))
    read = files.read(config.checkpoint.ckpt_dir)
    inputs = FinetuningInputs(
        training=read.training,
        evaluation=read.evaluation,
        vocabulary=found.tokenizer.vocabulary,
        vocab_size=found.vocab_size,
        max_seq_length=length,
        epochs=options.epochs,
        start=start,
        messages=read.messages,
        about=replace(
            files.about,
            epochs=None if options.num_steps or options.only_predict else options.epochs,
            evaluation_options=files.about.evaluation_options if read.evaluation else (),
        ),
    )
    return Prepared(Part(config, inputs), files.task, backend, communication_config(options))


def fine_tune(
    script: Script,
    open_communicator: Callable[..., Communicator],
    argv: Sequence[str] | None = None,
) -> int:
    """Runs the command; every rank calls it. Returns the exit code of the process.

    With --seeds or --search, `prepare` is called for the whole, so that bad files are errors before any work,
    and then for each run with its own options and folder.

    Raises:
        InputError: bad options, files or weights, or a folder with other runs.
        TrainingError: as `training.train.train_stages`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    whole = prepare(script, words)
    config = whole.part.config
    notify.appoint(config.report.notify)
    plan, place, resume = (
        _plan_of(script, config.options),
        config.checkpoint.ckpt_dir,
        config.checkpoint.resume,
    )
    if plan.members and launched_rank(os.environ) == 0:
        check_plan(place, plan, resume)
    code = check_memory([whole.part], whole.backend, config.report.estimate)
    if code is not None:
        return code
    set_threads()  # before mxnet is imported below
    if config.report.profile:
        separate_operators()

    from training.agreement import agree, describe
    from training.exchange import broadcast_json
    from training.start.lock import locked
    from training.train import train_stages

    communicator = open_communicator(whole.backend, whole.communication, asked)
    seed = broadcast_json(config.optimization.seed, communicator)
    if resume and config.optimization.seed is None is not seed:
        whole = prepare(script, [*words, "--seed", str(seed)])  # of a checkpoint that only rank 0 sees
    if not plan.members:
        code = train_stages([whole.part], whole.task(), communicator)
        communicator.close()
        return code
    description = describe([whole.part], communicator.size)
    del whole  # its examples, which each run has again

    def run(member: Member, folder: str, stop: Any) -> int:
        part, task, *_ = prepare(script, [*words, *member.words, "--ckpt_dir", folder])
        # Its records do not say that there are others.
        own, without = part.config, {"seeds": None, "search": None}
        own = replace(own, options={**own.options, **without}, given={**own.given, **without})
        return train_stages([part._replace(config=own)], task(), communicator, stop)

    def note(message: str) -> None:
        if communicator.rank == 0:
            print(message, flush=True)

    agree(description, communicator)
    with locked(place, communicator):
        if communicator.rank == 0:
            check_plan(place, plan, resume)  # once more: another launch may have ended there since
        code = run_members(plan, place, run, communicator, note)
        if code == 0:
            for table in members_tables(read_members(place)) if communicator.rank == 0 else ():
                note(f"\n{terminal(table)}")
    communicator.close()
    return code


def _plan_of(script: Script, options: Mapping[str, Any]) -> Plan:
    """The members that the options name. Raises InputError as `members_of`, and for values that no option
    takes, or that change nothing."""
    members = members_of(options["seeds"], options["search"], options["seed"])
    if members and options["only_predict"]:
        raise InputError("--seeds and --search train; leave --only_predict out")
    if options["num_steps"] and "epochs" in dict(options["search"] or ()):
        raise InputError("--search epochs: with --training_steps all are the same run; leave one of them out")
    parser = script.parser()
    for member in members:
        try:
            parser.parse_args(member.words)
        except InputError as error:
            raise InputError(f"--search: {error}") from error
    # What may be another one in a resumed launch, and what the members themselves have.
    left_out = {"seed", "seeds", "search", *(name for name, _ in options["search"] or ())}
    left_out |= {name for name, each in script.table.items() if each.scope != RUN}
    return Plan(members, {name: value for name, value in options.items() if name not in left_out})
