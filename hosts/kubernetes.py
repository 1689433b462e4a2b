#!/usr/bin/env python
"""Writes what Kubernetes needs for a run: an MPIJob (Kubeflow's MPI operator) for Horovod, Indexed Jobs for
BytePS.

    python hosts/kubernetes.py --backend hvd --name bert --image registry.example/bert:1 \\
        --workers 4 --slots 8 --gpu nvidia.com/gpu --volume corpus:/corpus:ro --volume runs:/runs \\
        --tokens_per_gpu 8192 --accumulate 2 \\
        -- --data '/corpus/*.txt' --vocab /corpus/vocab.txt --ckpt_dir /runs/bert > bert.yaml
    kubectl apply -f bert.yaml

With --tokens_per_gpu the run is the plan of hparams.py for workers x slots GPUs; without it, a script and all
of its options follow the --. The reasons for each field are in hosts/kubernetes_mpi.py and
hosts/kubernetes_byteps.py. Needs the standard library, and for --patch PyYAML; talks to no cluster.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, path_name, split_at_dashes, whole
from base.errors import InputError
from hosts import kubernetes_byteps, kubernetes_mpi, manifests
from hosts.cluster_job import BACKENDS, BYTEPS, HVD, add_plan_group, script_and_options
from hosts.manifests import Deployment, Limits, Resources, Volume
from hosts.networks import RULE, TCP, read_network
from hosts.patches import patched

MEMLOCK = (
    "adapters need memory that stays in place: the nodes' container runtime has to let pods lock any amount "
    "(LimitMEMLOCK=infinity in containerd's service); IPC_LOCK is of no use to a user who is not root"
)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "kubernetes",
        prog="hosts/kubernetes.py",
        usage="%(prog)s --backend {hvd,byteps} --name NAME --image IMAGE --workers N --slots N [options]"
        " -- ...",
        description=__doc__,
    )
    parser.add_argument(
        "--backend", required=True, choices=BACKENDS, help="hvd: MPIJob; byteps: Indexed Jobs"
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="of the run, and of its objects")
    parser.add_argument("--namespace", default="default", metavar="NAME", help="(default: default)")
    text = "container image with this project set up (docs/launching.md, Containers)"
    parser.add_argument("--image", required=True, metavar="IMAGE", help=text)
    text = "this project's folder in the image (default /opt/bert)"
    parser.add_argument("--directory", type=path_name, default="/opt/bert", metavar="DIR", help=text)
    text = "numeric user and group of the containers (default 1000)"
    parser.add_argument("--user", type=whole(1, 65534, "root is 0"), default=1000, metavar="ID", help=text)
    number = whole(1, 4096, "no cluster is so large")
    parser.add_argument("--workers", type=number, required=True, metavar="N", help="pods with ranks")
    text = "ranks of a pod. Rule of thumb: a node's GPUs, so that a pod has a node for itself"
    parser.add_argument("--slots", type=number, required=True, metavar="N", help=text)
    _resource_options(parser)
    _limit_options(parser)
    add_plan_group(parser)
    return parser


def _resource_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what a pod has")
    add = group.add_argument
    add("--gpu", metavar="RESOURCE", help="one for each rank, such as nvidia.com/gpu (default: none)")
    add(
        "--cpus",
        default="4",
        metavar="N",
        help="(default 4). Rule of thumb: a node's, less 2 for its own services",
    )
    add(
        "--memory",
        default="16Gi",
        metavar="SIZE",
        help="(default 16Gi); --estimate of the scripts says what is needed",
    )
    text = (
        "shared memory, a part of --memory (default 8Gi). Rule of thumb: 1Gi a rank, and the gradients with "
        "BytePS"
    )
    add("--shm", default="8Gi", metavar="SIZE", help=text)
    text = "another resource, such as vpc.amazonaws.com/efa=4 or rdma/hca=1; can be repeated"
    add("--resource", action="append", default=[], metavar="NAME=NUMBER", help=text)
    text = (
        "a PersistentVolumeClaim and its path in the pods; can be repeated. --ckpt_dir has to be on one that "
        "all pods can write (ReadWriteMany)"
    )
    add("--volume", action="append", default=[], metavar="CLAIM:/PATH[:ro]", help=text)
    add(
        "--node",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="only nodes with this label; can be repeated",
    )
    add("--network", metavar="KIND", help=f"hvd: {RULE}")
    text = "byteps: pods with a server (default: as many as workers, BytePS's recommendation)"
    add("--servers", type=whole(1, 4096, "BytePS's largest networks have hundreds"), metavar="N", help=text)
    text = (
        "byteps: an existing Secret with an entry `secret`, 32 random bytes or more, by which the run's pods "
        "know each other (default: a new one in the manifest)"
    )
    add("--secret", metavar="NAME", help=text)
    add("--server_cpus", default="4", metavar="N", help="byteps: CPUs of a server (default 4)")
    text = (
        "byteps: memory of a server (default 8Gi). Rule of thumb: 3 times the parameters, divided by the "
        "servers"
    )
    add("--server_memory", default="8Gi", metavar="SIZE", help=text)
    text = "YAML with fields that are merged into the jobs and pods: tolerations, queues (docs/launching.md)"
    add("--patch", type=path_name, metavar="FILE", help=text)


def _limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    seconds = whole(1, 86_400, "a day")
    text = (
        "seconds for the ranks to save and end when a pod has to go (default 90). Rule of thumb: a step and "
        "a checkpoint; spot nodes give 120 in all"
    )
    group.add_argument("--grace", type=seconds, default=90, metavar="SECONDS", help=text)
    text = "seconds to wait for all pods (default 600). Rule of thumb: what the cluster takes to add a node"
    group.add_argument("--patience", type=seconds, default=600, metavar="SECONDS", help=text)
    text = (
        "starts after failures until the run is given up (default 6). Rule of thumb: 3 to 6; a run that was "
        "preempted is not counted with byteps, and with hvd only where its launcher was"
    )
    group.add_argument(
        "--retries", type=whole(0, 1000, "more hides a defect"), default=6, metavar="N", help=text
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the manifest to standard output; returns the exit code (2 on bad input)."""
    words, own = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    try:
        text = _manifest(args, own)
    except InputError as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(text)
    return 0


def _manifest(args: argparse.Namespace, own: Sequence[str]) -> str:
    deployment = _deployment(args)
    manifests.check(deployment)
    command, lines = script_and_options(args, args.backend, args.workers * args.slots, own)
    comments = lines
    if deployment.network is not None:
        comments += [f"--network {args.network}: {each}" for each in deployment.network.comment()]
        if deployment.network.kind != TCP:
            comments.append(f"--network {args.network}: {MEMLOCK}")
    if args.backend == HVD:
        objects = kubernetes_mpi.objects(deployment, command)
    else:
        server = (args.server_cpus, args.server_memory)
        objects = kubernetes_byteps.objects(deployment, command, server)
        if args.workers > 1 and args.secret is None:
            comments.append(
                "It has the run's secret: keep it where only you can read it, or name one: --secret"
            )
    return manifests.yaml_text(patched(objects, args.patch) if args.patch else objects, comments)


def _deployment(args: argparse.Namespace) -> Deployment:
    if args.backend == HVD and args.servers is not None:
        raise InputError(f"--servers {args.servers}: goes with --backend byteps")
    if args.backend == BYTEPS and args.workers == 1 and args.servers is not None:
        raise InputError(f"--servers {args.servers}: a single worker needs no server; leave the option out")
    if args.secret is not None and (args.backend == HVD or args.workers == 1):
        raise InputError(
            f"--secret {args.secret}: goes with several workers of --backend byteps; the MPI operator makes "
            "a key"
        )
    if args.backend == BYTEPS and args.network is not None:
        raise InputError(
            f"--network {args.network}: goes with --backend hvd; pods of BytePS announce the address that "
            "the cluster gives them (POD_IP)"
        )
    others = tuple(_pair("--resource", each) for each in args.resource)
    resources = Resources(args.cpus, args.memory, args.shm, args.gpu, others)
    network = None if args.network is None else read_network(args.network, args.backend)
    return Deployment(
        name=args.name,
        namespace=args.namespace,
        image=args.image,
        directory=args.directory.rstrip("/"),
        user=args.user,
        workers=args.workers,
        slots=args.slots,
        servers=0 if args.backend == HVD or args.workers == 1 else args.servers or args.workers,
        resources=resources,
        volumes=tuple(map(_volume, args.volume)),
        limits=Limits(args.grace, args.patience, args.retries),
        nodes=tuple(_pair("--node", each) for each in args.node),
        network=network,
        secret=args.secret,
    )


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise InputError(f"{flag} {text}: write NAME=VALUE")
    return name, value


def _volume(text: str) -> Volume:
    claim, colon, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not colon or mode not in ("", "ro"):
        raise InputError(f"--volume {text}: write CLAIM:/PATH or CLAIM:/PATH:ro")
    return Volume(claim, path, mode == "ro")


if __name__ == "__main__":
    sys.exit(main())
