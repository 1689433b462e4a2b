#!/usr/bin/env python3
"""Writes what Kubernetes needs for a run: an MPIJob (Kubeflow's MPI operator) for Horovod, Indexed Jobs for
BytePS.

    python hosts/kubernetes.py --backend hvd --name bert --image registry.example/bert:1 \\
        --workers 4 --slots 8 --gpu nvidia.com/gpu --volume corpus:/corpus:ro --volume runs:/runs \\
        --tokens_per_gpu 8192 --accumulate 2 \\
        -- --data '/corpus/*.txt' --vocab /corpus/vocab.txt --ckpt_dir /runs/bert > bert.yaml
    kubectl apply -f bert.yaml

With --tokens_per_gpu the run is the plan of hparams.py for workers x slots GPUs; without it, a script and all
of its options follow the --. The objects are templates, with the reasons for each field:
hosts/batch/pod.yaml, mpijob.yaml and byteps.yaml. Needs PyYAML; talks to no cluster.
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, Mapping, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, code_of, matching, path_name, shown, whole
from base.errors import InputError
from base.launchers import BYTEPS, HVD
from base.sealed import TOKEN_BYTES
from hosts.batch.gathering import SCHEDULER, SERVER, WORKER
from hosts.batch.templates import Object, documents, filled, holders, merged, patched, yaml_text
from hosts.networks import RULE, TCP, Network, read_network
from hosts.plans import BACKENDS, script_and_options, write_cluster_job

MEMLOCK = (
    "adapters need memory that stays in place: the nodes' container runtime has to let pods lock any amount "
    "(LimitMEMLOCK=infinity in containerd's service); IPC_LOCK is of no use to a user who is not root"
)
LAUNCHER = {"cpu": "1", "memory": "2Gi"}
SMALL = {"cpu": "1", "memory": "1Gi"}  # BytePS's scheduler
HEADROOM = 30  # seconds between the ranks' last limit and the kubelet's SIGKILL
_NVIDIA = "nvidia.com/"
_UNITS = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}
_AMOUNT = re.compile(rf"(\d{{1,19}}(?:\.\d{{1,9}})?)({'|'.join(_UNITS)})", re.ASCII)
_MOST_AMOUNT = 2**63 - 1  # of a quantity; Kubernetes makes that of a greater one
_DEVICE = r"[a-z0-9.-]+/[A-Za-z0-9._-]+"
_DNS_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
# With what is appended, a pod's host name stays below 63 characters.
_name = matching(
    r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", "at most 40 lower-case letters, digits and hyphens, a letter first"
)
_device = matching(_DEVICE, "a resource's name, such as nvidia.com/gpu")
_pair = matching(f"({_DEVICE}|hugepages-[^=]+)=.*", "NAME=NUMBER, such as vpc.amazonaws.com/efa=4")
_label = matching(r"[^=]+=(.|\n)+", "NAME=VALUE")
_volume = matching(f"{_DNS_NAME}:/[^:]*(:ro)?", "CLAIM:/PATH or CLAIM:/PATH:ro")
_secret = matching(_DNS_NAME, "the name of a Secret in --namespace")


def _quantity(given: str) -> str:
    """Reads a quantity as Kubernetes has it, above zero and within its 64 bits."""
    parts = _AMOUNT.fullmatch(given)
    if parts is None or not 0 < Fraction(parts[1]) * _UNITS[parts[2]] <= _MOST_AMOUNT:
        raise argparse.ArgumentTypeError(
            f"{shown(given)} is not a number with a unit as Kubernetes has it, such as 64Gi: above zero and "
            f"at most {_MOST_AMOUNT:,}"
        )
    return given


def _resource(given: str) -> str:
    _quantity(_pair(given).partition("=")[2])
    return given


def _parser() -> CommandParser:
    parser = CommandParser(
        "kubernetes",
        prog="hosts/kubernetes.py",
        usage="%(prog)s --backend {hvd,byteps} --name NAME --image IMAGE --workers N --slots N [options]"
        " -- ...",
        description=__doc__,
    )
    add = parser.add_argument
    add("--backend", required=True, choices=BACKENDS, help="hvd: MPIJob; byteps: Indexed Jobs")
    add("--name", type=_name, required=True, metavar="NAME", help="of the run, and of its objects")
    add("--namespace", type=_name, default="default", metavar="NAME", help="(default: default)")
    text = "container image with this project set up (docs/containers.md)"
    add("--image", required=True, metavar="IMAGE", help=text)
    text = "this project's folder in the image (default /opt/bert)"
    add("--directory", type=path_name, default="/opt/bert", metavar="DIR", help=text)
    text = "numeric user and group of the containers (default 1000)"
    add("--user", type=whole(1, 65534, "root is 0"), default=1000, metavar="ID", help=text)
    number = whole(1, 4096, "no cluster is so large")
    add("--workers", type=number, required=True, metavar="N", help="pods with ranks")
    text = "ranks of a pod. Rule of thumb: a node's GPUs, so that a pod has a node for itself"
    add("--slots", type=number, required=True, metavar="N", help=text)
    _resource_options(parser)
    _limit_options(parser)
    return parser


def _resource_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what a pod has").add_argument
    text = "one for each rank, such as nvidia.com/gpu (default: none)"
    add("--gpu", type=_device, metavar="RESOURCE", help=text)
    text = "(default 4). Rule of thumb: a node's, less 2 for its own services"
    add("--cpus", type=_quantity, default="4", metavar="N", help=text)
    text = "(default 16Gi); --estimate of the scripts says what is needed"
    add("--memory", type=_quantity, default="16Gi", metavar="SIZE", help=text)
    text = (
        "shared memory, a part of --memory (default 8Gi). Rule of thumb: 1Gi a rank, and the gradients with "
        "BytePS"
    )
    add("--shm", type=_quantity, default="8Gi", metavar="SIZE", help=text)
    text = "another resource, such as vpc.amazonaws.com/efa=4 or rdma/hca=1; can be repeated"
    add("--resource", type=_resource, action="append", default=[], metavar="NAME=NUMBER", help=text)
    text = (
        "a PersistentVolumeClaim and its path in the pods; can be repeated. --ckpt_dir has to be on one that "
        "all pods can write (ReadWriteMany)"
    )
    add("--volume", type=_volume, action="append", default=[], metavar="CLAIM:/PATH[:ro]", help=text)
    text = "only nodes with this label; can be repeated"
    add("--node", type=_label, action="append", default=[], metavar="LABEL=VALUE", help=text)
    add("--network", metavar="KIND", help=f"hvd: {RULE}")
    text = "byteps: pods with a server (default: as many as workers, BytePS's recommendation)"
    add("--servers", type=whole(1, 4096, "BytePS's largest networks have hundreds"), metavar="N", help=text)
    text = (
        "byteps: an existing Secret with an entry `secret`, 32 random bytes or more, by which the run's pods "
        "know each other (default: a new one in the manifest)"
    )
    add("--secret", type=_secret, metavar="NAME", help=text)
    text = "byteps: CPUs of a server (default 4)"
    add("--server_cpus", type=_quantity, default="4", metavar="N", help=text)
    text = (
        "byteps: memory of a server (default 8Gi). Rule of thumb: 3 times the parameters, divided by the "
        "servers"
    )
    add("--server_memory", type=_quantity, default="8Gi", metavar="SIZE", help=text)
    text = "YAML with fields that are merged into the jobs and pods: tolerations, queues (docs/kubernetes.md)"
    add("--patch", type=path_name, metavar="FILE", help=text)


def _limit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    seconds = whole(1, 86_400, "a day")
    text = (
        "seconds for the ranks to save and end when a pod has to go (default 90). Rule of thumb: a step and "
        "a checkpoint; spot nodes give 120 in all"
    )
    add("--grace", type=seconds, default=90, metavar="SECONDS", help=text)
    text = "seconds to wait for all pods (default 600). Rule of thumb: what the cluster takes to add a node"
    add("--patience", type=seconds, default=600, metavar="SECONDS", help=text)
    text = (
        "starts after failures until the run is given up (default 6). Rule of thumb: 3 to 6; a run that was "
        "preempted is not counted with byteps, and with hvd only where its launcher was"
    )
    add("--retries", type=whole(0, 1000, "more hides a defect"), default=6, metavar="N", help=text)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the manifest to standard output; returns the exit code (2 on bad input)."""
    return write_cluster_job(_parser(), _manifest, argv)


def _manifest(args: argparse.Namespace, own: Sequence[str]) -> str:
    _check_backend(args)
    network = read_network(args.network or TCP, args.backend)
    fields = _fields(args, network)
    command, comments = script_and_options(args, args.backend, args.workers * args.slots, own)
    comments += [f"--network {args.network}: {each}" for each in network.comment()]
    if network.kind != TCP:
        comments.append(f"--network {args.network}: {MEMLOCK}")
    fields["command"] = command
    pod, policy = documents("pod.yaml")
    objects = [filled(policy, fields)]
    if args.backend == HVD:
        job = filled(documents("mpijob.yaml")[0], fields)
        launcher, worker = holders(job)
        small = {**fields, "role": "launcher", "resources": LAUNCHER}
        launcher["template"] = _pod(pod, small, launcher["template"])
        worker["template"] = _pod(pod, {**fields, "role": "worker"}, worker["template"])
        objects.append(job)
    else:
        objects += _byteps_jobs(pod, fields, {"cpu": args.server_cpus, "memory": args.server_memory})
        if args.workers > 1 and args.secret is None:
            comments.append(
                "It has the run's secret: keep it where only you can read it, or name one: --secret"
            )
    return yaml_text(patched(objects, args.patch) if args.patch else objects, comments)


def _byteps_jobs(pod: Any, fields: Mapping[str, Any], server: Mapping[str, str]) -> list[Any]:
    """The secret, the service, and a Job for each role; for a single worker only its Job."""
    job, service, secret, of_several, of_server = documents("byteps.yaml")

    def job_of(role: str, number: int, more: Mapping[str, Any]) -> Any:
        own = {**fields, "role": role, "job": f"{fields['name']}-{role}", "number": number, **more}
        made = filled(job, {**own, "failures": fields["retries"] * number})
        additions = [made["spec"]["template"]]
        additions += [filled(of_several, own)] if several else []
        additions += [filled(of_server, own)] if role == SERVER else []
        made["spec"]["template"] = _pod(pod, own, *additions)
        return made

    several = fields["workers"] > 1
    workers = job_of(WORKER, fields["workers"], {"program": ["--", fields["python"], *fields["command"]]})
    if not several:
        return [workers]
    return [
        *([filled(secret, fields)] if fields["token"] else []),
        filled(service, fields),
        job_of(SCHEDULER, 1, {"program": [], "resources": SMALL}),
        job_of(SERVER, fields["servers"], {"program": [], "resources": server}),
        workers,
    ]


def _pod(template: Any, fields: Mapping[str, Any], *additions: Any) -> Any:
    """A pod's template with what its role adds."""
    has_gpus = any(name == fields["gpu"] or name.startswith(_NVIDIA) for name in fields["resources"])
    # The image's is "all": NVIDIA's runtime would show every GPU of the node.
    none_shown = None if has_gpus else [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    pod = filled(template, {**fields, "environment": none_shown})
    for each in additions:
        pod = merged(pod, each)
    for container in pod["spec"]["containers"]:
        # Kubernetes replaces $(NAME) in it, and two dollar signs by one.
        container["command"] = [str(word).replace("$", "$$") for word in container["command"]]
    return pod


def _fields(args: argparse.Namespace, network: Network) -> dict[str, Any]:
    """Values of the templates' names, all options among them, but for the command of the ranks and what
    differs between roles.

    Raises:
        InputError: no pod would ever start with them.
    """
    others = dict(each.split("=", 1) for each in args.resource)
    if network.kind != TCP and not others:
        raise InputError(
            f"--network {network.kind}: pods have no adapter without --resource, such as "
            "vpc.amazonaws.com/efa=4 and hugepages-2Mi=5120Mi, or rdma/hca=1"
        )
    paths = [each.split(":")[1] for each in args.volume]
    mounts: list[Object] = []
    volumes: list[Object] = []
    for number, given in enumerate(args.volume):
        claim, path, *mode = given.split(":")
        if paths.count(path) > 1:
            raise InputError(f"--volume {given}: this path is given twice")
        name, read_only = f"volume-{number}", {"readOnly": True} if mode else {}
        mounts.append({"name": name, "mountPath": path, **read_only})
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim, **read_only}})
    directory = args.directory.rstrip("/")
    servers = args.servers or args.workers
    gathering = ["--servers", servers, "--scheduler", f"{args.name}-{SCHEDULER}-0.{args.name}"]
    gathering += ["--secret", "/etc/run-secret/secret"]
    gpus = {} if args.gpu is None else {args.gpu: str(args.slots)}
    return {
        **vars(args),
        "directory": directory,
        "python": f"{directory}/.venv/bin/python",
        "kill_after": args.grace + HEADROOM,
        "servers": servers,
        "gathering": gathering if args.workers > 1 else [],
        "secret": args.secret or args.name,
        "token": "" if args.secret else secrets.token_hex(TOKEN_BYTES),  # of a new secret
        "resources": {"cpu": args.cpus, "memory": args.memory, **gpus, **others},
        "nodes": dict(each.split("=", 1) for each in args.node) or None,
        "network": ["--network", args.network] if args.network else [],
        "mounts": mounts,
        "volumes": volumes,
    }


def _check_backend(args: argparse.Namespace) -> None:
    """Raises InputError for options that do not go with the backend."""
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


if __name__ == "__main__":
    sys.exit(code_of(main))
