"""A rank of a launch that runs members: python -m tests.training.results.members_worker FOLDER OPTIONS..."""

from __future__ import annotations

import sys

from base.threads import set_threads
from training.entry import exit_code
from training.inputs import check_parts
from training.options import parse_options, stage_config, stage_options
from training.results.members import Plan, members_of, run_members


def main() -> int:
    folder, *words = sys.argv[1:]
    set_threads()

    from comm.horovod import HorovodCommunicator
    from comm.watch.watchdog import watched
    from tasks.pretraining.task import Pretraining
    from training.train import train_stages

    def run(member, own, stop):
        options = parse_options([*words, *member.words, "--resume", "--ckpt_dir", own], "")
        parts = check_parts(map(stage_config, stage_options(options)))
        return train_stages(parts, Pretraining(), communicator, stop)

    communicator = watched(HorovodCommunicator, 60.0)
    note = print if communicator.rank == 0 else lambda message: None
    code = run_members(Plan(members_of(3, None, None)), folder, run, communicator, note)
    communicator.close()
    return code


if __name__ == "__main__":
    sys.exit(exit_code(main))
