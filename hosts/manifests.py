"""Objects of Kubernetes as data, and as YAML. Standard library only.

Pods run as a user who is not root, without rights of their own, and with as much shared memory as --shm says:
a container has 64 MiB by default, and NCCL, Open MPI, BytePS and the loaders of batches exchange data there.
The label `app.kubernetes.io/instance` is that of all pods of a run, and nobody else is let in by the network
policy: neither Open MPI nor BytePS asks who connects (docs/network.md).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from base.errors import InputError
from hosts.networks import TCP, Network

Object = Mapping[str, Any]

INSTANCE = "app.kubernetes.io/instance"
ROLE = "app.kubernetes.io/component"
HEADROOM = 30  # seconds between the ranks' last limit and the kubelet's SIGKILL
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+")
_NVIDIA = "nvidia.com/"
_LONGEST_NAME = 40  # with what is appended, a pod's host name stays below 63 characters
# Text that YAML reads as nothing else.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_OTHER_MEANING = re.compile(r"(y|yes|n|no|true|false|on|off|null|nan|inf)", re.IGNORECASE)


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim and the path at which containers have it."""

    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Resources:
    """Of a pod with ranks: CPUs, memory, shared memory (a part of it) as Kubernetes writes quantities; the
    resource of which it gets one for each rank, such as nvidia.com/gpu, None without; others by name, such as
    network adapters."""

    cpus: str
    memory: str
    shared_memory: str
    gpu: str | None = None
    others: tuple[tuple[str, str], ...] = ()

    def of_pod(self, slots: int) -> dict[str, str]:
        """Requests of a pod with `slots` ranks. They are its limits too: it is then the last to be
        evicted."""
        gpus = {} if self.gpu is None else {self.gpu: str(slots)}
        return {"cpu": self.cpus, "memory": self.memory, **gpus, **dict(self.others)}


@dataclass(frozen=True)
class Limits:
    """`grace`: seconds for the ranks to save after SIGTERM. `patience`: seconds to wait for all pods.
    `retries`: starts after failures until the run is given up."""

    grace: int
    patience: int
    retries: int


@dataclass(frozen=True)
class Deployment:
    """A run on Kubernetes: its name, where it is, what it has.

    `workers`: pods with ranks. `slots`: ranks of each. `servers`: pods with a server of BytePS. `image` has
    this project in `directory`, set up. `user`: its numeric user and group there. `secret`: name of a Secret
    that exists; None: the run has one of its own.
    """

    name: str
    namespace: str
    image: str
    directory: str
    user: int
    workers: int
    slots: int
    servers: int
    resources: Resources
    volumes: tuple[Volume, ...]
    limits: Limits
    nodes: tuple[tuple[str, str], ...] = ()
    network: Network | None = None
    secret: str | None = None

    @property
    def python(self) -> str:
        """The interpreter in a container."""
        return f"{self.directory}/.venv/bin/python"

    def metadata(self, role: str = "") -> dict[str, Any]:
        """Name and labels of an object."""
        labels = {INSTANCE: self.name, **({ROLE: role} if role else {})}
        name = f"{self.name}-{role}" if role else self.name
        return {"name": name, "namespace": self.namespace, "labels": labels}


def check(deployment: Deployment) -> None:
    """Raises InputError for what the API server would reject, or what no pod would ever start with."""
    for flag, name in (("--name", deployment.name), ("--namespace", deployment.namespace)):
        if not _DNS_LABEL.fullmatch(name) or len(name) > _LONGEST_NAME:
            raise InputError(
                f"{flag} {name}: it must be at most {_LONGEST_NAME} lower-case letters, digits and hyphens, "
                "a letter first"
            )
    resources = deployment.resources
    if deployment.secret is not None and not _DNS_NAME.fullmatch(deployment.secret):
        raise InputError(f"--secret {deployment.secret}: write the name of a Secret in --namespace")
    quantities = (
        ("--cpus", resources.cpus),
        ("--memory", resources.memory),
        ("--shm", resources.shared_memory),
    )
    for flag, value in quantities:
        if not _QUANTITY.fullmatch(value):
            raise InputError(f"{flag} {value}: write a number with a unit as Kubernetes has it, such as 64Gi")
    if resources.gpu is not None and not _RESOURCE.fullmatch(resources.gpu):
        raise InputError(f"--gpu {resources.gpu}: write the resource's name, such as nvidia.com/gpu")
    for name, amount in resources.others:
        if not (_RESOURCE.fullmatch(name) or name.startswith("hugepages-")) or not _QUANTITY.fullmatch(
            amount
        ):
            raise InputError(
                f"--resource {name}={amount}: write NAME=NUMBER, such as vpc.amazonaws.com/efa=4"
            )
    if deployment.network is not None and deployment.network.kind != TCP and not resources.others:
        raise InputError(
            f"--network {deployment.network.kind}: pods have no adapter without --resource, such as "
            "vpc.amazonaws.com/efa=4 and hugepages-2Mi=5120Mi, or rdma/hca=1"
        )
    paths = [volume.path for volume in deployment.volumes]
    for volume in deployment.volumes:
        where = f"--volume {volume.claim}:{volume.path}"
        if not _DNS_NAME.fullmatch(volume.claim) or not volume.path.startswith("/"):
            raise InputError(f"{where}: write CLAIM:/PATH or CLAIM:/PATH:ro")
        if paths.count(volume.path) > 1:
            raise InputError(f"{where}: this path is given twice")


def pod(
    deployment: Deployment, role: str, command: Sequence[str], requests: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    """A pod's template.

    Args:
        role: of its container, for its name and label.
        command: words; the working directory is the project's.
        requests: resources, which are limits too.
        more: further fields of the container.
    """
    mounts: list[dict[str, Any]] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": deployment.resources.shared_memory},
        }
    ]
    for number, volume in enumerate(deployment.volumes):
        name, read_only = f"volume-{number}", {"readOnly": True} if volume.read_only else {}
        mounts.append({"name": name, "mountPath": volume.path, **read_only})
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": volume.claim, **read_only}})
    container = {
        "name": role,
        "image": deployment.image,
        "workingDir": deployment.directory,
        # Kubernetes replaces $(NAME) in it, and two dollar signs by one.
        "command": [word.replace("$", "$$") for word in command],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # `kubectl describe pod` has the last lines
        "resources": {"requests": dict(requests), "limits": dict(requests)},
        "volumeMounts": mounts,
        **more,
    }
    if deployment.resources.gpu not in requests and not any(name.startswith(_NVIDIA) for name in requests):
        # The image's is "all": NVIDIA's runtime would show every GPU of the node.
        container["env"] = [*more.get("env", []), {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    user = deployment.user
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,  # nothing in it talks to the API server
        "enableServiceLinks": False,  # variables of other services, which BytePS might take for its own
        "terminationGracePeriodSeconds": deployment.limits.grace + HEADROOM,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    if deployment.nodes:
        spec["nodeSelector"] = dict(deployment.nodes)
    return {"metadata": {"labels": {INSTANCE: deployment.name, ROLE: role}}, "spec": spec}


def mount(template: dict[str, Any], name: str, path: str, volume: Mapping[str, Any]) -> None:
    """Adds a volume to a pod's template and puts it at `path` in its container."""
    spec = template["spec"]
    spec["volumes"].append({"name": name, **volume})
    for container in spec["containers"]:
        container["volumeMounts"].append({"name": name, "mountPath": path})


def network_policy(deployment: Deployment) -> dict[str, Any]:
    """Connections to the run's pods from the run's pods only."""
    own = {"matchLabels": {INSTANCE: deployment.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": deployment.metadata(),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}],
        },
    }


def yaml_text(objects: Sequence[Object], comments: Sequence[str] = ()) -> str:
    """Objects as documents of a YAML file, below lines of comment."""
    documents = ["\n".join(_lines(each, "")) for each in objects]
    return "".join(f"# {line}\n" for line in comments) + "\n---\n".join(documents) + "\n"


def _lines(value: Any, indent: str) -> list[str]:
    """A mapping or sequence, not empty, in lines."""
    lines = []
    pairs = value.items() if isinstance(value, Mapping) else [(None, each) for each in value]
    for key, each in pairs:
        head = f"{indent}-" if key is None else f"{indent}{_scalar(key)}:"
        if isinstance(each, (Mapping, list, tuple)) and each:
            below = _lines(each, indent + "  ")
            # The first line of a mapping stands behind the hyphen of its item.
            lines += [f"{head} {below[0].lstrip()}", *below[1:]] if key is None else [head, *below]
        else:
            lines.append(f"{head} {_scalar(each)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and not _OTHER_MEANING.fullmatch(value)
        return value if plain else json.dumps(value)
    return json.dumps(value)
