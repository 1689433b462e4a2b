"""A run over BytePS on Kubernetes: Indexed Jobs of batch/v1, because no operator supports BytePS any more.
Standard library only.

Reasons for each field:

clusterIP: None, publishNotReadyAddresses, subdomain
    A headless service: each pod has a name, NAME-scheduler-0.NAME, with its own address behind it, and has it
    before it is ready. Pods find the scheduler's by this name; BytePS itself needs addresses in numbers.
Secret, immutable
    By it the pods of a run know each other when they gather (hosts/gathering.py), also where the cluster's
    network enforces no policy. It is new in each manifest, or one that exists already (--secret). A file, not
    a variable: ranks pass variables on, and write them into logs.
completionMode: Indexed
    Each pod has a number of its own in JOB_COMPLETION_INDEX, which becomes DMLC_WORKER_ID; a pod that is
    replaced has the number of the lost one.
POD_IP
    BytePS's processes announce this address to the others, and listen there only.
restartPolicy: Never, podFailurePolicy
    All pods of a run end with the run's exit code (hosts/gathering.py) and are replaced: after 75 (saved, run
    me again), 143 and 130 (saved because of a signal) and the loss of a node without being counted, after a
    failure --retries times. Bad input (2) ends the run at once. --resume goes on from the last checkpoint.
    Needs Kubernetes 1.29 or later.
backoffLimit
    A failure of the run is one of each of a Job's pods: retries times pods. It is one number for a Job.
podReplacementPolicy: Failed
    A lost pod's successor comes when the pod has ended, not beside it.
topologySpreadConstraints
    Servers are on as many nodes as there are, as `compare.py --project` takes them to be: two on a node would
    share its network, and a step waits for the slowest. Nodes whose taints they do not tolerate do not count.
NVIDIA_VISIBLE_DEVICES=void
    Pods that ask for no GPU see none (hosts/manifests.py).
terminationGracePeriodSeconds
    SIGTERM to any pod makes all ranks save and end. SIGKILL comes after --grace and 30 s more.
"""

from __future__ import annotations

import secrets
from typing import Any, Sequence

from base.errors import RUN_AGAIN
from base.sealed import TOKEN_BYTES
from hosts.gathering import SCHEDULER, SERVER, WORKER
from hosts.manifests import INSTANCE, Deployment, mount, network_policy, pod

ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
SMALL = {"cpu": "1", "memory": "1Gi"}  # the scheduler
SAVED = [RUN_AGAIN, 130, 143]  # exit codes of ranks that have saved
BAD_INPUT = 2
SECRETS, KEY = "/etc/run-secret", "secret"  # folder, and the name of what is in it


def objects(
    deployment: Deployment, command: Sequence[str], server_resources: tuple[str, str]
) -> list[dict[str, Any]]:
    """The network policy, the secret, the service, and a Job for each role; for a single worker only its Job.

    Args:
        command: script and options of every rank.
        server_resources: CPUs and memory of a server.
    """
    requests = deployment.resources.of_pod(deployment.slots)
    number = deployment.workers
    workers = _job(deployment, WORKER, number, ["--", deployment.python, *command], requests)
    if number == 1:
        return [network_policy(deployment), workers]
    cpus, memory = server_resources
    made = [_secret(deployment)] if deployment.secret is None else []
    return [
        network_policy(deployment),
        *made,
        _service(deployment),
        _job(deployment, SCHEDULER, 1, [], SMALL),
        _job(deployment, SERVER, deployment.servers, [], {"cpu": cpus, "memory": memory}),
        workers,
    ]


def _secret(deployment: Deployment) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": deployment.metadata(),
        "type": "Opaque",
        "immutable": True,
        "stringData": {KEY: secrets.token_hex(TOKEN_BYTES)},
    }


def _service(deployment: Deployment) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": deployment.metadata(),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {INSTANCE: deployment.name},
        },
    }


def _job(
    deployment: Deployment, role: str, number: int, words: Sequence[str], requests: dict[str, str]
) -> dict[str, Any]:
    limits = deployment.limits
    command = [deployment.python, "hosts/byteps_pod.py", role]
    command += ["--workers", str(deployment.workers), "--slots", str(deployment.slots)]
    if deployment.workers > 1:
        scheduler = f"{deployment.name}-{SCHEDULER}-0.{deployment.name}"
        command += ["--servers", str(deployment.servers), "--scheduler", scheduler]
        command += ["--secret", f"{SECRETS}/{KEY}"]
    command += ["--patience", str(limits.patience), "--grace", str(limits.grace), *words]
    environment = [ADDRESS]
    template = pod(deployment, role, command, requests, env=environment)
    template["spec"].update({"restartPolicy": "Never", "subdomain": deployment.name})
    if role == SERVER:
        template["spec"]["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "nodeTaintsPolicy": "Honor",
                "labelSelector": {"matchLabels": template["metadata"]["labels"]},
            }
        ]
    if deployment.workers > 1:
        name = deployment.secret or deployment.name
        # The group reads it: the pod's, by fsGroup.
        mount(template, "secret", SECRETS, {"secret": {"secretName": name, "defaultMode": 0o440}})
    codes = {"containerName": role, "operator": "In"}
    rules = [
        {"action": "FailJob", "onExitCodes": {**codes, "values": [BAD_INPUT]}},
        {"action": "Ignore", "onExitCodes": {**codes, "values": SAVED}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": deployment.metadata(role),
        "spec": {
            "completionMode": "Indexed",
            "completions": number,
            "parallelism": number,
            "backoffLimit": limits.retries * number,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": template,
        },
    }
