"""hosts/kubernetes.py: what it writes, against what the APIs accept (tests/hosts/manifests.py)."""

from __future__ import annotations

import copy
import shlex

import pytest
import yaml

from hosts import kubernetes
from hosts.batch.templates import yaml_text
from tests.hosts.launcher import rejected
from tests.hosts.manifests import command, objects, pod_specs, problems, write

COMMON = shlex.split("--name bert --image r.example/bert:1 --workers 2 --slots 8 --gpu nvidia.com/gpu")
COMMON += shlex.split("--volume corpus:/corpus:ro --volume runs:/runs --tokens_per_gpu 8192 --accumulate 2")
SMALL = shlex.split("--name one --image i --workers 1 --slots 2 --")
OWN = ["--", "--data", "/corpus/*.txt", "--vocab", "/corpus/vocab.txt", "--ckpt_dir", "/runs/bert"]


def value(spec, option):
    """An option's in a container's command."""
    words = command(spec)
    return words[words.index(option) + 1]


def mounts(spec):
    """The path of each volume in a pod's container."""
    return {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}


@pytest.fixture(scope="module")
def mpi():
    network = ["--network", "efa", "--resource", "vpc.amazonaws.com/efa=4"]
    return objects("--backend", "hvd", *COMMON, *network, *OWN)


@pytest.fixture(scope="module")
def byteps():
    return objects("--backend", "byteps", *COMMON, "--node", "pool=gpu", *OWN)


def test_all_objects_are_accepted(mpi, byteps):
    assert [each["kind"] for each in mpi] == ["NetworkPolicy", "MPIJob"]
    assert [each["kind"] for each in byteps] == ["NetworkPolicy", "Secret", "Service", *["Job"] * 3]
    assert [problems(each) for each in (*mpi, *byteps)] == [[]] * 8
    names = [(each["kind"], each["metadata"]["name"]) for each in byteps]
    assert len(set(names)) == len(names)


def test_the_check_notices_what_is_wrong(mpi, byteps):
    """The words of tests/hosts/manifests.py reject what the API server rejects."""
    wrong = copy.deepcopy(mpi[1])
    wrong["spec"]["cleanPodPolicy"] = "Running"  # v1 of the operator had it there
    wrong["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["restartPolicy"] = "Never"
    job = copy.deepcopy(byteps[-1])
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] = [143, 75]
    job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = 4
    assert len(problems(wrong)) == 2 and len(problems(job)) == 3, (problems(wrong), problems(job))


def test_a_pod_that_starts_again_goes_on(mpi, byteps):
    """The options between are compared with those of hparams.py in test_plans.py."""
    for documents, script in ((mpi, "hvd"), (byteps, "byteps")):
        line = shlex.join(command(pod_specs(documents[-1])[0]))
        assert f" run_pretraining_{script}.py " in line and line.endswith("--ckpt_dir /runs/bert --resume")


def test_an_mpijob_waits_restarts_and_cleans_up(mpi):
    spec = mpi[1]["spec"]
    launcher, worker = spec["mpiReplicaSpecs"]["Launcher"], spec["mpiReplicaSpecs"]["Worker"]
    assert (launcher["restartPolicy"], worker["restartPolicy"]) == ("OnFailure", "OnFailure")
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady" and spec["slotsPerWorker"] == 8
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    (container,) = worker["template"]["spec"]["containers"]
    # Ready means that its ssh server answers, and where the launcher looks for it.
    port = container["readinessProbe"]["tcpSocket"]["port"]
    for each in (launcher, worker):
        assert value(each["template"]["spec"], "--port") == str(port) and port >= 1024
        assert value(each["template"]["spec"], "--keys") == spec["sshAuthMountPath"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert "nvidia.com/gpu" not in str(launcher)


def test_pods_of_byteps_find_and_number_themselves(byteps):
    _, secret, service, *jobs = byteps
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert [job["spec"]["completions"] for job in jobs] == [1, 2, 2]
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        assert job["spec"]["completionMode"] == "Indexed"
        assert job["spec"]["parallelism"] == job["spec"]["completions"]
        assert spec["subdomain"] == service["metadata"]["name"] and spec["nodeSelector"] == {"pool": "gpu"}
        # The name of an Indexed Job's pod in its service: JOB-INDEX.SERVICE.
        scheduler = f"{jobs[0]['metadata']['name']}-0.{service['metadata']['name']}"
        assert value(spec, "--scheduler") == scheduler
        for selector in (service["spec"]["selector"], byteps[0]["spec"]["podSelector"]["matchLabels"]):
            assert selector.items() <= job["spec"]["template"]["metadata"]["labels"].items()
        fails, saved, lost = job["spec"]["podFailurePolicy"]["rules"]
        assert (fails["action"], fails["onExitCodes"]["values"]) == ("FailJob", [2])
        assert (saved["action"], saved["onExitCodes"]["values"]) == ("Ignore", [75, 130, 143])
        assert lost["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        # Every pod has the run's secret in a file that its group, and nobody else, can read.
        (volume,) = (each for each in spec["volumes"] if "secret" in each)
        assert volume["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
        assert value(spec, "--secret") == f"{mounts(spec)[volume['name']]}/secret"
        assert spec["terminationGracePeriodSeconds"] > int(value(spec, "--grace"))


def test_servers_are_spread_over_nodes(byteps):
    constraints = [spec.get("topologySpreadConstraints") for each in byteps[3:] for spec in pod_specs(each)]
    (only,) = constraints.pop(1)
    assert constraints == [None, None]
    assert (only["maxSkew"], only["whenUnsatisfiable"]) == (1, "DoNotSchedule")
    labels = byteps[4]["spec"]["template"]["metadata"]["labels"]
    assert only["labelSelector"]["matchLabels"] == labels and only["topologyKey"] == "kubernetes.io/hostname"


def test_adapters_need_locked_memory_of_the_node():
    words = ["--network", "infiniband", "--resource", "rdma/hca=1"]
    text = write("--backend", "hvd", *COMMON, *words, *OWN).check().stdout
    assert "# --network infiniband: adapters need memory" in text and "LimitMEMLOCK=infinity" in text


PATCH = """
jobs:
  metadata: {labels: {kueue.x-k8s.io/queue-name: gpus}, annotations: {asked: "1"}}
  spec: {backoffLimit: 3}
pods:
  metadata: {annotations: {scheduling.k8s.io/group-name: bert}}
  spec:
    schedulerName: volcano
    priorityClassName: training
    imagePullSecrets: [{name: registry}]
    nodeSelector: null
    volumes: [{name: shared-memory, emptyDir: {sizeLimit: 9Gi}}, {name: scratch, emptyDir: {}}]
    containers: [{imagePullPolicy: Always, env: [{name: MODE, value: "1"}]}]
worker:
  spec:
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
    containers: [{name: worker, env: [{name: MODE, value: "2"}],
                  volumeMounts: [{name: scratch, mountPath: /scratch}, {name: volume-0, mountPath: /runs}]}]
server:
  spec:
    topologySpreadConstraints: [{topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]
"""


def test_a_patch_reaches_the_jobs_and_pods_that_it_names(tmp_path):
    (tmp_path / "patch.yaml").write_text(PATCH)
    words = ["--backend", "byteps", *COMMON, "--secret", "ours", "--node", "pool=gpu"]
    expected = objects(*words, *OWN)
    for job in expected[2:]:
        job["metadata"]["annotations"] = {"asked": "1"}
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
        job["spec"]["backoffLimit"] = 3
        template = job["spec"]["template"]
        template["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "bert"}
        spec = template["spec"]
        spec.update(
            schedulerName="volcano", priorityClassName="training", imagePullSecrets=[{"name": "registry"}]
        )
        del spec["nodeSelector"]
        spec["volumes"][0]["emptyDir"]["sizeLimit"] = "9Gi"
        spec["volumes"].append({"name": "scratch", "emptyDir": {}})
        (container,) = spec["containers"]
        container["imagePullPolicy"] = "Always"
        role = container["name"]
        container["env"].append({"name": "MODE", "value": "2" if role == "worker" else "1"})
        if role == "worker":
            spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
            (runs,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/runs")
            runs["name"] = "volume-0"
            container["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
        if role == "server":
            spec["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "ScheduleAnyway"
    patched = objects(*words, "--patch", tmp_path / "patch.yaml", *OWN)
    assert patched == expected and [problems(each) for each in patched] == [[]] * 5


def test_a_patch_of_an_mpijob(mpi, tmp_path):
    (tmp_path / "patch.yaml").write_text(
        "jobs: {spec: {runPolicy: {schedulingPolicy: {queue: gpus}}}}\n"
        "launcher: {spec: {tolerations: [{key: a}]}}"
    )
    network = ["--network", "efa", "--resource", "vpc.amazonaws.com/efa=4"]
    patched = objects("--backend", "hvd", *COMMON, *network, "--patch", tmp_path / "patch.yaml", *OWN)
    expected = copy.deepcopy(mpi)
    expected[1]["spec"]["runPolicy"]["schedulingPolicy"] = {"queue": "gpus"}
    launcher, _ = pod_specs(expected[1])
    launcher["tolerations"] = [{"key": "a"}]
    assert patched == expected and problems(patched[1]) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no fields; write jobs, pods or a role: launcher, worker"),
        ("server: {spec: {}}", "server: no part of this run; write jobs, pods or a role: launcher, worker"),
        ("pods: [1]", "pods: write metadata or spec"),
        ("pods: {tolerations: []}", "pods.tolerations: write metadata or spec"),
        ("jobs: {metadata: {name: other}}", "jobs.metadata.name: write labels or annotations"),
        ("jobs: {metadata: {annotations: {a: 1}}}", "jobs.metadata.annotations.a: Kubernetes takes text"),
        (
            "pods: {metadata: {labels: {app.kubernetes.io/instance: x}}}",
            "pods.metadata.labels.app.kubernetes.io/instance: by it the run's pods find each other",
        ),
        ("jobs: {spec: {mpiReplicaSpecs: {}}}", "jobs.spec.mpiReplicaSpecs: write it under pods"),
        ("pods: {spec: {securityContext: 1}}", "pods.spec.securityContext: there is a mapping, this is a"),
        ("pods: {spec: {containers: [{name: x}]}}", "pods.spec.containers[0].name: each pod has one"),
        ("pods: {spec: {containers: {}}}", "pods.spec.containers: write a list"),
        ("worker: {spec: {tolerations: [{value: 1}]}}", "worker.spec.tolerations[0].value: Kubernetes takes"),
        ("pods: {spec: {a: 2026-01-01}}", "pods.spec.a: 2026-01-01 is neither text nor a number"),
        ("pods: {spec: {a: 1, a: 2}}", "pods.spec.a: given twice"),
        ("pods: {spec: {on: 1}}", "pods.spec.on: the name of a field is text"),
        ("pods: {spec: {a: !!bool maybe}}", "pods.spec.a: maybe is neither text nor a number"),
        ('pods: {spec: {a: !!int ""}}', "pods.spec.a:  is neither text nor a number"),
        ("pods: &a {spec: {b: *a}}", "nested too deeply"),
        (
            "".join(
                f"a{number}: &a{number} [{f'*a{number - 1},' * 9 if number else 'x'}]\n"
                for number in range(9)
            ),
            "its aliases stand for more than 1,048,576 values",
        ),
        ("pods: [", "line 1: no YAML"),
        (None, "No such file"),
    ],
)
def test_a_patch_that_does_not_fit_is_one_line(text, said, tmp_path, capsys, monkeypatch):
    # Tested below, 0.3 s each.
    monkeypatch.setattr("hosts.plans.check_script", lambda words: None)
    path = tmp_path / "patch.yaml"
    if text is not None:
        path.write_text(text)
    line = rejected(kubernetes.main, capsys, "--backend", "hvd", *COMMON, "--patch", path, *OWN)
    assert line.startswith(f"kubernetes: --patch {path}") and said in line


def test_the_secret_is_new_in_each_manifest_or_one_that_exists(byteps):
    def written(*words):
        return objects("--backend", "byteps", *COMMON, *words, *OWN)

    text = byteps[1]["stringData"]["secret"]
    assert len(bytes.fromhex(text)) == 32 and byteps[1]["immutable"] is True
    assert written()[1]["stringData"]["secret"] != text
    own = written("--secret", "ours")
    assert [each["kind"] for each in own] == ["NetworkPolicy", "Service", *["Job"] * 3]
    names = {
        volume["secret"]["secretName"]
        for spec in (each["spec"]["template"]["spec"] for each in own[2:])
        for volume in spec["volumes"]
        if "secret" in volume
    }
    assert names == {"ours"}


def test_a_launcher_keeps_notes_as_long_as_its_pod(mpi):
    launcher, worker = pod_specs(mpi[1])
    places = mounts(launcher)
    (volume,) = (e for e in launcher["volumes"] if places.get(e["name"]) == value(launcher, "--notes"))
    assert "medium" not in volume["emptyDir"] and "--notes" not in command(worker)


def test_every_pod_is_restricted_and_has_shared_memory(mpi, byteps):
    for spec in (spec for each in (*mpi, *byteps) for spec in pod_specs(each)):
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000
        (container,) = spec["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        # The image's NVIDIA_VISIBLE_DEVICES is "all"; a device plugin sets it where GPUs are asked for.
        shown = [
            each["value"] for each in container.get("env", []) if each["name"] == "NVIDIA_VISIBLE_DEVICES"
        ]
        assert shown == ([] if "nvidia.com/gpu" in container["resources"]["limits"] else ["void"])
        (memory,) = (each for each in spec["volumes"] if "medium" in each.get("emptyDir", {}))
        assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
        places = mounts(spec)
        assert places[memory["name"]] == "/dev/shm" and {"/corpus", "/runs"} <= set(places.values())


def test_a_single_worker_needs_no_scheduler():
    own = ["run_pretraining_byteps.py", "--dummy_data_len", 32, "--ckpt_dir", "/runs"]
    documents = objects("--backend", "byteps", *SMALL, *own)
    assert [each["kind"] for each in documents] == ["NetworkPolicy", "Job"]
    assert "--scheduler" not in command(pod_specs(documents[1])[0])
    assert [problems(each) for each in documents] == [[], []]


def test_dollar_signs_reach_the_script_unchanged():
    own = ["run_pretraining_hvd.py", "--raw", "--data", "/a/$(HOME) $x $$.txt"]
    own += ["--vocab", "v", "--ckpt_dir", "/r"]
    (spec, _) = pod_specs(objects("--backend", "hvd", *SMALL, *own)[1])
    assert command(spec)[-len(own) - 1 :] == [*own, "--resume"]
    (container,) = spec["containers"]
    assert "/a/$$(HOME) $$x $$$$.txt" in container["command"]


QUANTITY = "is not a number with a unit"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--name Bert", "--name: 'Bert' is not at most 40 lower-case letters"),
        ("--volume runs", "--volume: 'runs' is not CLAIM:/PATH"),
        ("--volume runs:/corpus", "corpus:/corpus:ro: this path is given twice"),
        ("--volume runs:/r:rw", "--volume: 'runs:/r:rw' is not CLAIM:/PATH"),
        ("--resource efa=x", "--resource: 'efa=x' is not NAME=NUMBER"),
        ("--resource rdma/hca=1e400", f"--resource: '1e400' {QUANTITY}"),
        *(
            (f"--server_cpus {each}", f"--server_cpus: '{each}' {QUANTITY}")
            for each in ("0", "0.0m", "10000Pi", "9223372036854775808")
        ),
        ("--server_memory much", f"--server_memory: 'much' {QUANTITY}"),
        ("--network efa", "--network efa: pods have no adapter without --resource"),
        ("--servers 2", "--servers 2: goes with --backend byteps"),
        ("--secret ours", "--secret ours: goes with several workers of --backend byteps"),
        ("--target_batch_size 32768", "--accumulate and --target_batch_size exclude each other"),
        ("--pipeline_stages 3", "16 ranks are no multiple of --pipeline_stages 3; 15 or 18 would do"),
        ("--backend byteps --pipeline_stages 2", "--pipeline_stages 2: goes with --backend hvd"),
        ("--backend byteps --network tcp:eth0", "--network tcp:eth0: goes with --backend hvd"),
    ],
)
def test_bad_options_are_one_line(words, said, capsys):
    assert said in rejected(kubernetes.main, capsys, "--backend", "hvd", *COMMON, *words.split(), *OWN)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*COMMON, "--", "--data", "x", "--no_such", "1"], "after --: unrecognized arguments: --no_such 1"),
        ([*COMMON, "--", "--vocab", "v"], "--data is missing after --"),
        ([*SMALL, "no_such.py"], "no_such.py: there is no such script in this project"),
        ([*SMALL, "--data", "x"], "after --: write a script and its options"),
        (SMALL, "after --: write a script and its options"),
    ],
)
def test_the_script_and_its_options_are_checked(words, said, capsys):
    assert said in rejected(kubernetes.main, capsys, "--backend", "hvd", *words)


def test_yaml_is_read_as_what_was_written():
    values = ["", "a b", "a\nb", "- a", "a: b", "a", "no", "Off", "null", "1", "1e3", "0x1", "#", "é", "~"]
    values += ["=", "2026-01-01"]
    document = {"a b": {"x": values, "empty": [], "none": {}, "deep": [{"y": [{"z": True}, 3, 2.5, None]}]}}
    assert list(yaml.safe_load_all(yaml_text([document, document], ["a comment"]))) == [document, document]
