#!/usr/bin/env python3
"""Prints the Python call that starts a run on Amazon SageMaker, over Horovod.

    python hosts/sagemaker.py --image ACCOUNT.dkr.ecr.REGION.amazonaws.com/bert:1 \\
        --role arn:aws:iam::ACCOUNT:role/ROLE --instances 4 --instance_type ml.p3dn.24xlarge --slots 8 \\
        --channel corpus=s3://BUCKET/corpus --checkpoints s3://BUCKET/checkpoints \\
        --tokens_per_gpu 8192 --accumulate 2 -- --data 'channel:corpus/*.txt' --vocab channel:corpus/vocab.txt

The image needs this project (docs/containers.md) and SageMaker's training toolkit;
run_sagemaker.py is the entry point. The call needs `pip install sagemaker`; printing it needs the standard
library only, and talks to nobody. With --tokens_per_gpu the run is the plan of hparams.py; without it, a
script and all of its options follow the --.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, code_of, matching, whole
from base.errors import InputError
from base.launchers import HVD
from hosts.mpirun import variables
from hosts.plans import CKPT_DIR, script_and_options, write_cluster_job

SIGKILL_AFTER = "3"  # seconds; every failure takes twice as long there
_BUCKET = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?"
_place = matching(_BUCKET, "s3://BUCKET/FOLDER")
_channel = matching(r"[A-Za-z0-9.\-_]{1,64}=" + _BUCKET, "NAME=s3://BUCKET/FOLDER")
_type = matching(r"ml\.[a-z0-9-]+\.[a-z0-9]+", "a type of instance, such as ml.p3dn.24xlarge")
CHECKPOINTS = "/opt/ml/checkpoints"
CHANNEL = "channel:"
# Of the variables that hosts/mpirun.py gives the ranks, the toolkit sets these itself.
TOOLKITS = ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME")
LONGEST_WAIT = 3600  # seconds for spot instances, beside --max_hours


def _parser() -> CommandParser:
    parser = CommandParser(
        "sagemaker",
        prog="hosts/sagemaker.py",
        usage="%(prog)s --image IMAGE --role ARN --instances N --instance_type TYPE --slots N [options]"
        " -- ...",
        description=__doc__,
    )
    add = parser.add_argument
    add("--image", required=True, metavar="IMAGE", help="in ECR")
    add("--role", required=True, metavar="ARN", help="role of the job")
    number = whole(1, 4096, "no cluster is so large")
    add("--instances", type=number, required=True, metavar="N", help="hosts")
    add("--instance_type", type=_type, required=True, metavar="TYPE", help="such as ml.p3dn.24xlarge")
    add("--slots", type=number, required=True, metavar="N", help="ranks of a host. Rule of thumb: its GPUs")
    text = (
        "an input channel and its data; can be repeated. `channel:NAME/…` in the script's options is its "
        "folder"
    )
    add("--channel", type=_channel, action="append", default=[], metavar="NAME=s3://...", help=text)
    text = "where SageMaker keeps /opt/ml/checkpoints; a job with the same one goes on"
    add("--checkpoints", type=_place, metavar="s3://...", help=text)
    text = "spot instances; needs --checkpoints. Rule of thumb: with --ckpt_interval every 10 minutes or so"
    add("--spot", action="store_true", help=text)
    text = "hours until SageMaker ends the job (default 24)"
    add("--max_hours", type=whole(1, 672, "28 days"), default=24, metavar="HOURS", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the call; returns the exit code (2 on bad input)."""
    return write_cluster_job(_parser(), _call, argv)


def hyperparameters(words: Sequence[str], channels: Sequence[str]) -> dict[str, str]:
    """A script and its options as SageMaker's hyperparameters: text, a flag as "true". --resume is
    run_sagemaker.py's own.

    Raises:
        InputError: an option that is given twice, a word that belongs to none, a BytePS script, or a channel
            that is not among `channels`.
    """
    script, *options = words
    if script.endswith("_byteps.py"):
        raise InputError(f"{script}: SageMaker's toolkit starts MPI; take run_pretraining_hvd.py")
    given: dict[str, str] = {"script": script}
    position = 0
    while position < len(options):
        name, equals, value = options[position].partition("=")
        position += 1
        if not name.startswith("--"):
            raise InputError(f"{name}: belongs to no option; write --NAME VALUE")
        if not equals:
            follows = position < len(options) and not options[position].startswith("--")
            value = options[position] if follows else "true"
            position += follows
        if name[2:] in given:
            raise InputError(f"{name}: is given twice")
        for piece in value.split(","):
            channel = piece[len(CHANNEL) :].partition("/")[0]
            if piece.startswith(CHANNEL) and channel not in channels:
                raise InputError(f"{name} {value}: add --channel {channel}=s3://... for it")
        given[name[2:]] = value
    given.pop("resume", None)
    return given


def _call(args: argparse.Namespace, own: Sequence[str]) -> str:
    if args.spot and args.checkpoints is None:
        raise InputError("--spot: needs --checkpoints, or an interruption would lose the run")
    words, about = script_and_options(args, HVD, args.instances * args.slots, own)
    channels = dict(each.partition("=")[::2] for each in args.channel)
    options = hyperparameters(words, list(channels))
    if options.get("ckpt_dir") in (CHECKPOINTS, CKPT_DIR):
        del options["ckpt_dir"]  # run_sagemaker.py's own
    elif args.checkpoints is not None and "ckpt_dir" in options:
        raise InputError(f"--ckpt_dir {options['ckpt_dir']}: SageMaker keeps {CHECKPOINTS}; leave it out")
    hosts = [(f"algo-{number + 1}", args.slots) for number in range(args.instances)]
    environment = {name: value for name, value in variables(hosts).items() if name not in TOOLKITS}
    mpi = [f"-x {name}={value}" for name, value in environment.items()]
    options.update(
        sagemaker_mpi_enabled="true",
        sagemaker_mpi_num_of_processes_per_host=str(args.slots),
        # The signal reaches the ranks first, and they leave together when they have saved.
        sagemaker_mpi_custom_mpi_options=" ".join(
            ["--NCCL_DEBUG WARN", "-mca odls_base_sigkill_timeout", SIGKILL_AFTER, *mpi]
        ),
    )
    seconds = args.max_hours * 3600
    fields: dict[str, object] = {
        "image_uri": args.image,
        "role": args.role,
        "instance_count": args.instances,
        "instance_type": args.instance_type,
        "max_run": seconds,
        "hyperparameters": options,
    }
    if args.checkpoints is not None:
        fields.update(checkpoint_s3_uri=args.checkpoints, checkpoint_local_path=CHECKPOINTS)
    if args.spot:
        fields.update(use_spot_instances=True, max_wait=seconds + LONGEST_WAIT)
    lines = [
        *(f"# {each}" for each in about),
        "from sagemaker.estimator import Estimator",
        "",
        "estimator = Estimator(",
    ]
    for name, value in fields.items():
        if isinstance(value, dict):
            pairs = [f"        {json.dumps(key)}: {json.dumps(each)}," for key, each in value.items()]
            lines += [f"    {name}={{", *pairs, "    },"]
        else:
            lines.append(f"    {name}={value!r},")
    return "\n".join([*lines, ")", f"estimator.fit({json.dumps(channels)})", ""])


if __name__ == "__main__":
    sys.exit(code_of(main))
