"""A run over Horovod on Kubernetes: an MPIJob of Kubeflow's MPI operator (v2beta1, 0.4 and later). Standard
library only.

Reasons for each field:

slotsPerWorker, replicas
    Ranks of a pod, and pods. The operator writes a host file of them.
sshAuthMountPath
    The operator makes a key for the run; hosts/mpi_pod.py copies it, because ssh takes no key that others may
    read. The same key identifies the pods' ssh servers, so that none has to be trusted on sight.
launcherCreationPolicy: WaitForWorkersReady
    The launcher's pod is made when every worker's ssh server answers (readinessProbe). A worker that is
    replaced later may lag behind: hosts/mpi_pod.py waits again, for --patience seconds at most.
restartPolicy: OnFailure
    The launcher's container starts again after every exit code but 0: code 75 means saved, run me again, 143
    saved because of a signal, 1 a failure; --resume goes on from the last checkpoint. backoffLimit ends that.
    A worker's container starts again in its pod when it fails, such as for want of memory. The operator
    (0.8.2, read) makes a pod only where there is none of its name: the last was drained or preempted, or its
    node removed. A pod that has failed stays, and one that the kubelet has evicted fails the MPIJob
    (kubeflow/mpi-operator 647); requests that are limits make that rare.
--notes, an emptyDir
    An MPIJob knows no exit codes: the operator gives the launcher's Job no podFailurePolicy, and treats
    ExitCode as Never. Bad input (2) would start the run again on all hosts, --retries times. The launcher
    notes it in a volume that lives as long as its pod, and when its container starts again it says the same
    line and ends with 2 at once.
cleanPodPolicy: Running
    Workers only wait for ssh, and would hold their GPUs for ever.
terminationGracePeriodSeconds
    Kubernetes sends SIGTERM before it removes a pod. The launcher's passes it on to the ranks, a worker's
    ssh pod to the ranks in it: all ranks save and end. SIGKILL comes after --grace and 30 s more.
"""

from __future__ import annotations

from typing import Any, Sequence

from hosts.manifests import Deployment, mount, network_policy, pod

API = "kubeflow.org/v2beta1"
KEYS = "/etc/ssh-keys"  # where the operator's key is mounted
NOTES = "/var/run/notes"  # where the launcher keeps what its container must not forget
PORT = 2222  # of the pods' ssh servers: below 1024 a user who is not root may not listen
LAUNCHER = {"cpu": "1", "memory": "2Gi"}


def objects(deployment: Deployment, command: Sequence[str]) -> list[dict[str, Any]]:
    """The network policy and the MPIJob.

    Args:
        command: script and options of every rank.
    """
    limits = deployment.limits
    program = [deployment.python, "hosts/mpi_pod.py"]
    common = ["--keys", KEYS, "--port", str(PORT), "--grace", str(limits.grace)]
    launcher = [*program, "launcher", *common, "--patience", str(limits.patience), "--notes", NOTES]
    if deployment.network is not None:
        devices = deployment.network.devices
        launcher += [
            "--network",
            ":".join([deployment.network.kind, *([",".join(devices)] if devices else [])]),
        ]
    ready = {"readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 5}}
    ports = {"ports": [{"name": "ssh", "containerPort": PORT}]}
    requests = deployment.resources.of_pod(deployment.slots)
    first = pod(deployment, "launcher", [*launcher, "--", deployment.python, *command], LAUNCHER)
    mount(first, "notes", NOTES, {"emptyDir": {"sizeLimit": "1Mi"}})
    replicas = {
        "Launcher": {
            "replicas": 1,
            "restartPolicy": "OnFailure",
            "template": first,
        },
        "Worker": {
            "replicas": deployment.workers,
            "restartPolicy": "OnFailure",
            "template": pod(deployment, "worker", [*program, "worker", *common], requests, **ports, **ready),
        },
    }
    job = {
        "apiVersion": API,
        "kind": "MPIJob",
        "metadata": deployment.metadata(),
        "spec": {
            "slotsPerWorker": deployment.slots,
            "sshAuthMountPath": KEYS,
            "mpiImplementation": "OpenMPI",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": limits.retries},
            "mpiReplicaSpecs": replicas,
        },
    }
    return [network_policy(deployment), job]
