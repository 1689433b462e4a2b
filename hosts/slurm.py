#!/usr/bin/env python3
"""Writes a batch script for Slurm that starts a run over Horovod or BytePS on several nodes.

    python hosts/slurm.py --backend hvd --nodes 4 --tasks_per_node 8 --gpus_per_node 8 --cpus_per_task 12 \\
        --time 2-00:00:00 --tokens_per_gpu 8192 --accumulate 2 \\
        -- --data '/corpus/*.txt' --vocab /corpus/vocab.txt --ckpt_dir /runs/bert > bert.sbatch
    sbatch bert.sbatch

With --tokens_per_gpu the run is the plan of hparams.py for nodes x tasks_per_node GPUs; without it, a script
and all of its options follow the --. Submit it in the project's folder, which all nodes share, with .venv.

--notice seconds before the time limit, and when the job is preempted in a cluster that announces that
(docs/slurm.md), the run saves a checkpoint and ends, the job is queued again, and the next start goes on
with --resume. The nodes are reached through srun, not ssh (hosts/srun.py). Needs the standard library only;
asks no Slurm.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, code_of, matching, path_name, whole
from base.errors import InputError
from base.launchers import HVD
from hosts.networks import RULE, TCP, read_network
from hosts.plans import BACKENDS, script_and_options, write_cluster_job
from hosts.shell import VENV

LEAST_NOTICE = 120  # Slurm looks at time limits once a minute
_time = matching(r"(\d{1,4}-)?\d{1,3}(:\d{2}){0,2}|\d{1,7}", "minutes, H:M:S or D-H:M:S, below 10,000 days")
_name = matching(r"[\w.-]{1,200}", "at most 200 letters, digits, . _ and -, of which a file's name is made")
# mpirun would start its daemons with an srun of its own, and look for its slots in Slurm's variables.
_MPIRUN = "mpirun -mca plm rsh -mca ras ^slurm"

_BODY = """
set -u
if [ ! -f hosts/launch.py ]; then
    echo "$PWD has no hosts/launch.py; submit in the project's folder" >&2
    exit 2
fi
hostfile=$(mktemp "${{TMPDIR:-/tmp}}/hosts.$SLURM_JOB_ID.XXXXXX") || exit 1
trap 'rm -f "$hostfile"' EXIT
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots={slots}/' >"$hostfile"

{launch} &
launcher=$!
saving= again=
# The time limit is near, or a job with a higher priority needs the nodes.
trap 'saving=yes again=yes; kill -USR1 "$launcher" 2>/dev/null' USR1
# scancel --batch --signal=TERM: save, and do not queue it again.
trap 'again=yes; kill -TERM "$launcher" 2>/dev/null' TERM
wait "$launcher"
code=$?
while [ "$again" ]; do  # a signal ends the wait, not the launcher
    again=
    wait "$launcher"
    code=$?
done
if [ "$code" = 75 ] || {{ [ "$saving" ] && [ "$code" = 143 ]; }}; then
    if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {requeues} ]; then
        echo "queued {requeues} times already (--requeues); sbatch this script again to go on" >&2
    elif scontrol requeue "$SLURM_JOB_ID"; then
        exit 0
    fi
fi
exit "$code"
"""


def _parser() -> CommandParser:
    parser = CommandParser(
        "slurm",
        prog="hosts/slurm.py",
        usage="%(prog)s --backend {hvd,byteps} --nodes N --tasks_per_node N [options] -- ...",
        description=__doc__,
    )
    add = parser.add_argument
    add(
        "--backend", required=True, choices=BACKENDS, help="hvd: mpirun inside the job; byteps: its own parts"
    )
    add("--name", type=_name, default="bert", metavar="NAME", help="of the job (default bert)")
    number = whole(1, 4096, "no cluster is so large")
    add("--nodes", type=number, required=True, metavar="N", help="nodes")
    text = "ranks of a node. Rule of thumb: its GPUs; on CPUs one for each socket"
    add("--tasks_per_node", type=number, required=True, metavar="N", help=text)
    text = "CPUs of a rank (default: Slurm's). Rule of thumb: the node's, divided by its ranks"
    add("--cpus_per_task", type=number, metavar="N", help=text)
    add("--gpus_per_node", type=number, metavar="N", help="(default: none); as many as --tasks_per_node")
    text = "time limit as Slurm writes it: 120 (minutes), 8:00:00, 2-00:00:00 (default: the partition's)"
    add("--time", type=_time, metavar="TIME", help=text)
    text = (
        "seconds before the time limit at which the run saves and ends (default 300). Rule of thumb: two "
        f"minutes, a step and a checkpoint; at least {LEAST_NOTICE}"
    )
    add("--notice", type=whole(LEAST_NOTICE, 86_400, "a day"), default=300, metavar="SECONDS", help=text)
    text = (
        "how often the job may be queued again (default 100). Rule of thumb: the whole run's hours divided "
        "by the time limit, and some more for preemptions"
    )
    add("--requeues", type=whole(0, 10_000, "more hides a defect"), default=100, metavar="N", help=text)
    text = "another option of sbatch, such as partition=gpu or account=nlp; can be repeated"
    add("--sbatch", action="append", default=[], metavar="NAME[=VALUE]", help=text)
    add("--interface", metavar="NAME", help="network interface between the nodes, as in hosts/launch.py")
    add("--network", metavar="KIND", help=RULE)
    text = f"the ranks' interpreter, from the project's folder (default {VENV}/python)"
    add("--python", type=path_name, default=f"{VENV}/python", metavar="PATH", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the script to standard output; returns the exit code (2 on bad input)."""
    return write_cluster_job(_parser(), _script, argv)


def _script(args: argparse.Namespace, own: Sequence[str]) -> str:
    directives = _directives(args)
    command, about = script_and_options(args, args.backend, args.nodes * args.tasks_per_node, own)
    if not any(word.partition("=")[0] == "--ckpt_dir" for word in command):
        raise InputError("--ckpt_dir is missing after --: a job that is queued again goes on from there")
    network = read_network(args.network or TCP, args.backend, args.interface)
    head = ["#!/bin/bash", "# Written by hosts/slurm.py. In the project's folder: sbatch FILE"]
    head += [f"# {each}" for each in about]
    head += [f"#SBATCH --{each}" for each in directives]
    head += [f"# {each}" for each in network.comment()]
    if re.search(r"[\"\\$`\s]", args.python):
        raise InputError(f"--python {args.python}: has a blank or a quote; make a link to it without")
    python = args.python if args.python.startswith("/") else f"$PWD/{args.python}"
    launch = [args.python, "hosts/launch.py", "--backend", args.backend, "--hostfile"]
    lines = [f'{shlex.join(launch)} "$hostfile"', f'--ssh "{python} $PWD/hosts/srun.py"']
    # The launcher's own limit ends before Slurm's.
    lines[1] += f" --grace {args.notice - 60}"
    more = ["--interface", args.interface] if args.interface else []
    more += ["--network", args.network] if args.network else []
    more += ["--mpirun", _MPIRUN] if args.backend == HVD else []
    lines += [shlex.join(more)] if more else []
    lines.append(f"-- {shlex.join([args.python, *command])}")
    body = _BODY.format(slots=args.tasks_per_node, launch=" \\\n    ".join(lines), requeues=args.requeues)
    return "\n".join(head) + "\n" + body


def _directives(args: argparse.Namespace) -> list[str]:
    """Options of sbatch, without their dashes."""
    if args.gpus_per_node not in (None, args.tasks_per_node):
        raise InputError(
            f"--gpus_per_node {args.gpus_per_node}: a rank has one GPU, and --tasks_per_node is "
            f"{args.tasks_per_node}"
        )
    found = [f"job-name={args.name}", f"nodes={args.nodes}", f"ntasks-per-node={args.tasks_per_node}"]
    found += [f"cpus-per-task={args.cpus_per_task}"] if args.cpus_per_task else []
    found += [f"gpus-per-node={args.gpus_per_node}"] if args.gpus_per_node else []
    found += [f"time={args.time}"] if args.time else []
    found += [f"signal=B:USR1@{args.notice}", "requeue", "open-mode=append", "output=%x-%j.out"]
    own = {each.partition("=")[0] for each in found}
    for each in args.sbatch:
        name = each.lstrip("-").partition("=")[0]
        if name in own and name not in ("output", "open-mode"):
            raise InputError(f"--sbatch {each}: --{name} is in the script already")
        if not re.fullmatch(r"[a-z][a-z-]*", name) or "\n" in each:
            raise InputError(f"--sbatch {each}: write an option of sbatch as NAME=VALUE")
        found = [word for word in found if word.partition("=")[0] != name] + [each.lstrip("-")]
    return found


if __name__ == "__main__":
    sys.exit(code_of(main))
