"""Kubernetes' objects as tests need them: parsed, checked against what the APIs accept, in our own words
(manifests.yaml), and their containers as commands with the variables that Kubernetes sets."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Callable, Mapping

import yaml

from tests.processes import ROOT, RunResult, run_command

KNOWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def _is(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


_is_quantity = _is(r"\d+(\.\d+)?(m|[kMGTP]|[KMGTP]i)?")
TYPES: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "str": lambda value: type(value) is str,
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "name": _is(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
    "quantity": _is_quantity,
    "quantities": lambda value: isinstance(value, dict) and all(map(_is_quantity, value.values())),
    "labels": lambda value: (
        isinstance(value, dict) and all(type(each) is str for pair in value.items() for each in pair)
    ),
    "mode": lambda value: 0 <= value <= 0o777,
    # Exit codes in increasing order, without 0, at most 255 of them.
    "codes": lambda value: value == sorted(set(value)) and value[0] > 0 and value[-1] <= 255,
}


def _problems(value: Any, wanted: Any, where: str) -> list[str]:
    """Sentences about what is wrong with a value, by what manifests.yaml has for it."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{where}: is no mapping"]
        known = {name.rstrip("!"): each for name, each in wanted.items()}
        required = [name[:-1] for name in wanted if name.endswith("!")]
        found = [f"{where}.{name}: unknown" for name in value if name not in known]
        found += [f"{where}.{name}: missing" for name in required if name not in value]
        for name, each in value.items():
            found += _problems(each, known[name], f"{where}.{name}") if name in known else []
        return found
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{where}: is no sequence"]
        return [p for n, each in enumerate(value) for p in _problems(each, wanted[0], f"{where}[{n}]")]
    words = [each.strip() for each in wanted.split("|")]
    accepted = TYPES[wanted](value) if wanted in TYPES else value in words
    return [] if accepted else [f"{where}: {value!r} is not {wanted}"]


def problems(document: Any) -> list[str]:
    """Sentences of an API server about an object; empty where it is accepted."""
    kind = f"{document.get('apiVersion')} {document.get('kind')}"
    known = {"apiVersion!": "str", "kind!": "str", "metadata!": KNOWN["metadata"]}
    if kind == "v1 Secret":  # it has no spec
        return _problems(
            document, {**known, "type": "Opaque", "immutable": "bool", "stringData": "labels"}, kind
        )
    if kind not in KNOWN["kinds"]:
        return [f"{kind}: unknown"]
    found = _problems(document, {**known, "spec!": KNOWN["kinds"][kind]}, kind)
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
