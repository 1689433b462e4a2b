#!/usr/bin/env python3
"""Compare Horovod with BytePS, side by side, through the real training scripts.

    python compare.py                              on embedded English text, about 21 minutes on two cores
    python compare.py --backends hvd_mpi byteps --workers 2 --dtypes float32 --batch_sizes 1024
    python compare.py --raw --data 'corpus/*.txt' --vocab vocab.txt --model bert_12_768_12 \\
        --max_seq_length 128 --use_avg_len --batch_sizes 2048 4096 --hostfile hosts/4x_p3dn -- --dropout 0
    python compare.py --comm_only                  communication alone: start-up, 4 KB to 512 MB
    python compare.py --project                    throughput on 1 to 1024 GPUs, predicted
    python compare.py --emulate                    real exchanges between hosts emulated on this machine
    python compare.py --merge runs/old runs/new    reports of earlier comparisons, laid over each other

Every combination of backend, number of workers, dtype and batch size is launched --repeats times, in turns.
The results are compared before the times (losses, gradient norms, learning rates, tokens, final parameters):
a backend that computes something else is reported as wrong and gets no figures.
The report goes to --output as report.md, report.html, report.json and plots. Ctrl-C leaves a partial report,
and the same command continues; with --dry_run it only says what it would launch, and how long that takes.
"""

from __future__ import annotations

from base.errors import InputError, explain_missing

if __name__ == "__main__":
    explain_missing()  # a library that is not installed

import signal
import sys
from types import FrameType
from typing import Any, Callable, Mapping, Sequence

from comparison.backends import BACKENDS, Backend
from comparison.campaign import code_of
from comparison.options import EmulationOptions, MergeOptions, MessagesOptions, RunsOptions, parse_options
from comparison.projection.command import ProjectionOptions, project
from training.entry import exit_code


def main(arguments: Sequence[str], backends: Mapping[str, Backend] = BACKENDS) -> int:
    """The comparison that the options choose; its exit code, see --help.

    Args:
        backends: those that --backends can name.

    Raises:
        InputError: before any work; or where the output cannot be written.
    """
    options = parse_options(arguments, backends, __doc__)
    # Only now: a wrong option is said in half the time.
    from comparison.emulation.command import emulate
    from comparison.merge import merge
    from comparison.messages.command import compare_messages
    from comparison.runs.command import compare_runs

    comparisons: Mapping[type, Callable[[Any], int]] = {
        RunsOptions: compare_runs,
        MessagesOptions: compare_messages,
        ProjectionOptions: project,
        EmulationOptions: emulate,
        MergeOptions: merge,
    }

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)  # SIGTERM: the meaning of Ctrl-C, with another exit code

    before = signal.signal(signal.SIGTERM, end)
    try:
        return comparisons[type(options)](options)
    except KeyboardInterrupt as interrupt:
        return code_of(interrupt)
    except BrokenPipeError:
        raise  # whoever reads the output has seen enough
    except OSError as error:  # a full disk, a file system that has gone, a file where a folder is to be
        said = filter(None, (options.output, error.filename, error.strerror or error))
        raise InputError(f"--output {': '.join(dict.fromkeys(map(str, said)))}") from error
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
