"""Kubernetes' objects as tests need them: parsed, checked against what the APIs accept, in our own words, and
their containers as commands with the variables that Kubernetes sets."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import yaml

from tests.processes import ROOT, RunResult, run_command

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTP]|[KMGTP]i)?")
STRING, NUMBER, BOOLEAN = (str,), (int,), (bool,)


@dataclass(frozen=True)
class Fields:
    """A mapping with these fields, and no others: an unknown one is an error of `kubectl apply`, too.

    `known`: types of a scalar, Fields, or a list of one of them for a sequence of it; None: not looked at.
    """

    known: Mapping[str, Any]
    required: Sequence[str] = ()

    def problems(self, value: Any, where: str) -> list[str]:
        """Sentences about what is wrong."""
        if not isinstance(value, dict):
            return [f"{where}: is no mapping"]
        found = [f"{where}.{name}: unknown" for name in value if name not in self.known]
        found += [f"{where}.{name}: missing" for name in self.required if name not in value]
        for name, each in value.items():
            found += _problems(each, self.known.get(name), f"{where}.{name}")
        return found


def _problems(value: Any, wanted: Any, where: str) -> list[str]:
    if wanted is None:
        return []
    if isinstance(wanted, Fields):
        return wanted.problems(value, where)
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{where}: is no sequence"]
        return [p for n, each in enumerate(value) for p in _problems(each, wanted[0], f"{where}[{n}]")]
    if callable(wanted):
        return [] if wanted(value) else [f"{where}: {value!r} is not accepted"]
    return [] if type(value) in wanted else [f"{where}: {value!r} is of another type"]


def one_of(*values: Any) -> Any:
    return lambda value: value in values


def quantities(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, str) and QUANTITY.fullmatch(each) for each in value.values()
    )


def labels(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair)


METADATA = Fields(
    {
        "name": lambda name: bool(NAME.fullmatch(name)),
        "namespace": STRING,
        "labels": labels,
        "annotations": labels,
    },
    ("name",),
)
CONTAINER = Fields(
    {
        "name": lambda name: bool(NAME.fullmatch(name)),
        "image": STRING,
        "imagePullPolicy": one_of("Always", "Never", "IfNotPresent"),
        "workingDir": STRING,
        "command": [STRING],
        "env": [
            Fields({"name": STRING, "value": STRING, "valueFrom": Fields({"fieldRef": None})}, ("name",))
        ],
        "terminationMessagePolicy": one_of("File", "FallbackToLogsOnError"),
        "ports": [Fields({"name": STRING, "containerPort": NUMBER}, ("containerPort",))],
        "readinessProbe": Fields({"tcpSocket": Fields({"port": NUMBER}, ("port",)), "periodSeconds": NUMBER}),
        "resources": Fields({"requests": quantities, "limits": quantities}),
        "securityContext": Fields(
            {
                "allowPrivilegeEscalation": BOOLEAN,
                "capabilities": Fields({"drop": [STRING], "add": [STRING]}),
            }
        ),
        "volumeMounts": [
            Fields({"name": STRING, "mountPath": STRING, "readOnly": BOOLEAN}, ("name", "mountPath"))
        ],
    },
    ("name", "image"),
)
VOLUME = Fields(
    {
        "name": STRING,
        "emptyDir": Fields(
            {"medium": one_of("", "Memory"), "sizeLimit": lambda q: bool(QUANTITY.fullmatch(q))}
        ),
        "secret": Fields({"secretName": STRING, "defaultMode": lambda mode: 0 <= mode <= 0o777}),
        "persistentVolumeClaim": Fields({"claimName": STRING, "readOnly": BOOLEAN}, ("claimName",)),
    },
    ("name",),
)
SELECTOR = Fields({"matchLabels": labels})
POD = {
    "automountServiceAccountToken": BOOLEAN,
    "enableServiceLinks": BOOLEAN,
    "terminationGracePeriodSeconds": NUMBER,
    "securityContext": Fields(
        {
            "runAsNonRoot": BOOLEAN,
            "runAsUser": NUMBER,
            "runAsGroup": NUMBER,
            "fsGroup": NUMBER,
            "fsGroupChangePolicy": one_of("OnRootMismatch", "Always"),
            "seccompProfile": Fields({"type": one_of("RuntimeDefault", "Unconfined", "Localhost")}),
        }
    ),
    "containers": [CONTAINER],
    "volumes": [VOLUME],
    "nodeSelector": labels,
    "subdomain": STRING,
    "schedulerName": STRING,
    "priorityClassName": STRING,
    "imagePullSecrets": [Fields({"name": STRING})],
    "tolerations": [
        Fields(
            {
                "key": STRING,
                "operator": one_of("Exists", "Equal"),
                "effect": one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
            }
        )
    ],
    "topologySpreadConstraints": [
        Fields(
            {
                "maxSkew": NUMBER,
                "topologyKey": STRING,
                "whenUnsatisfiable": one_of("DoNotSchedule", "ScheduleAnyway"),
                "nodeTaintsPolicy": one_of("Honor", "Ignore"),
                "labelSelector": SELECTOR,
            },
            ("maxSkew", "topologyKey", "whenUnsatisfiable"),
        )
    ],
}
TEMPLATE_METADATA = Fields({"labels": labels, "annotations": labels})
RULE = Fields(
    {
        "action": one_of("FailJob", "Ignore", "Count"),
        "onExitCodes": Fields(
            {
                "containerName": STRING,
                "operator": one_of("In", "NotIn"),
                # In increasing order, without 0, at most 255 of them.
                "values": lambda v: v == sorted(set(v)) and v[0] > 0 and v[-1] <= 255,
            },
            ("operator", "values"),
        ),
        "onPodConditions": [Fields({"type": STRING, "status": one_of("True", "False")}, ("type", "status"))],
    },
    ("action",),
)
JOB = Fields(
    {
        "completionMode": one_of("Indexed", "NonIndexed"),
        "completions": NUMBER,
        "parallelism": NUMBER,
        "backoffLimit": NUMBER,
        "podReplacementPolicy": one_of("Failed", "TerminatingOrFailed"),
        "podFailurePolicy": Fields({"rules": [RULE]}, ("rules",)),
        "template": Fields(
            {
                "metadata": TEMPLATE_METADATA,
                # A Job's pods may not restart their containers where it has a podFailurePolicy.
                "spec": Fields({**POD, "restartPolicy": one_of("Never")}, ("containers", "restartPolicy")),
            },
            ("spec",),
        ),
    },
    ("template",),
)
# The operator overrides a template's restartPolicy, and warns: it belongs to the replicas.
REPLICAS = Fields(
    {
        "replicas": NUMBER,
        "restartPolicy": one_of("Never", "OnFailure"),
        "template": Fields({"metadata": TEMPLATE_METADATA, "spec": Fields(POD, ("containers",))}, ("spec",)),
    },
    ("replicas", "template"),
)
MPI_JOB = Fields(
    {
        "slotsPerWorker": NUMBER,
        "sshAuthMountPath": STRING,
        "mpiImplementation": one_of("OpenMPI", "Intel", "MPICH"),
        "launcherCreationPolicy": one_of("AtStartup", "WaitForWorkersReady"),
        "runPolicy": Fields(
            {
                "cleanPodPolicy": one_of("None", "Running", "All"),
                "backoffLimit": NUMBER,
                "schedulingPolicy": Fields({"queue": STRING}),
            },
            ("cleanPodPolicy",),
        ),
        "mpiReplicaSpecs": Fields({"Launcher": REPLICAS, "Worker": REPLICAS}, ("Launcher",)),
    },
    ("mpiReplicaSpecs",),
)
POLICY = Fields(
    {
        "podSelector": SELECTOR,
        "policyTypes": [one_of("Ingress", "Egress")],
        "ingress": [Fields({"from": [Fields({"podSelector": SELECTOR})]})],
    },
    ("podSelector",),
)
SERVICE = Fields({"clusterIP": one_of("None"), "publishNotReadyAddresses": BOOLEAN, "selector": labels})
KINDS = {
    ("batch/v1", "Job"): JOB,
    ("kubeflow.org/v2beta1", "MPIJob"): MPI_JOB,
    ("networking.k8s.io/v1", "NetworkPolicy"): POLICY,
    ("v1", "Service"): SERVICE,
}
# A Secret has no spec.
SECRET = Fields(
    {
        "apiVersion": STRING,
        "kind": STRING,
        "metadata": METADATA,
        "type": one_of("Opaque"),
        "immutable": BOOLEAN,
        "stringData": labels,
    },
    ("metadata",),
)


def problems(document: Any) -> list[str]:
    """Sentences of an API server about an object; empty where it is accepted."""
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind == ("v1", "Secret"):
        return SECRET.problems(document, "Secret")
    if kind not in KINDS:
        return [f"{kind}: unknown"]
    known = {"apiVersion": STRING, "kind": STRING, "metadata": METADATA, "spec": KINDS[kind]}
    found = Fields(known, ("metadata", "spec")).problems(document, kind[1])
    for spec in pod_specs(document):
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            mounts = container["volumeMounts"]
            found += [f"{each['name']}: no such volume" for each in mounts if each["name"] not in volumes]
            paths = [each["mountPath"] for each in mounts]
            found += ["a path is mounted twice"] if len(set(paths)) < len(paths) else []
    return found


def pod_specs(document: Mapping[str, Any]) -> list[Any]:
    """Specifications of an object's pods."""
    if document["kind"] == "Job":
        return [document["spec"]["template"]["spec"]]
    if document["kind"] == "MPIJob":
        return [each["template"]["spec"] for each in document["spec"]["mpiReplicaSpecs"].values()]
    return []


def write(*words: object) -> RunResult:
    """Runs hosts/kubernetes.py."""
    return run_command([sys.executable, ROOT / "hosts" / "kubernetes.py", *map(str, words)])


def objects(*words: object) -> list[Any]:
    """The objects that hosts/kubernetes.py writes."""
    return list(yaml.safe_load_all(write(*words).check().stdout))


def command(spec: Mapping[str, Any]) -> list[str]:
    """A container's command as the kubelet runs it: two dollar signs are one."""
    (container,) = spec["containers"]
    return [word.replace("$$", "$") for word in container["command"]]
