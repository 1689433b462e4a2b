"""Kubernetes' objects: templates in YAML that are filled, merged with fields of one's own, and written.

The fields of one's own are the file of --patch of hosts/kubernetes.py:

    jobs:                                  # the MPIJob, or each Job of BytePS
      metadata: {labels: {kueue.x-k8s.io/queue-name: gpus}}
    pods:                                  # each of their pods
      spec: {priorityClassName: training, imagePullSecrets: [{name: registry}]}
    worker:                                # then its pods alone; so launcher, or scheduler and server
      spec:
        tolerations: [{key: nvidia.com/gpu, operator: Exists}]
        containers: [{env: [{name: NCCL_DEBUG, value: WARN}]}]

Mappings are merged, null takes a field away. Of a list of mappings, one with the key of one that is there is
merged with it (_KEYS, as kubectl has them), others are added. All else replaces. A container needs no name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping, Sequence

from base.errors import InputError
from base.yaml_files import compose, scalar

Object = Mapping[str, Any]

# The first is the label of all pods of a run.
INSTANCE, ROLE = "app.kubernetes.io/instance", "app.kubernetes.io/component"
# Text that every reader of YAML takes for text, also those with rules of their own for numbers and y.
_PLAIN = re.compile(
    r"(?!(?:y|yes|n|no|true|false|on|off|null|nan|inf)$)[A-Za-z/][A-Za-z0-9_./-]*", re.IGNORECASE
)
JOBS, PODS = "jobs", "pods"
_LARGEST, _MOST_VALUES = 1 << 20, 1 << 20  # bytes, and what they may become where aliases repeat them
_KEYS = ("mountPath", "topologyKey", "containerPort", "name")
_METADATA = ("labels", "annotations")
_TEXTS = (*_METADATA, "nodeSelector")  # of these, and of each `value`, Kubernetes takes text only
_BELOW = f"write it under {PODS}, or under the role of a pod"
_ELSEWHERE = {  # fields of a job's specification
    "template": _BELOW,
    "mpiReplicaSpecs": _BELOW,
    "completions": "--workers and --servers say it",
    "parallelism": "--workers and --servers say it",
    "slotsPerWorker": "--slots says it",
}


def documents(name: str) -> list[Any]:
    """The documents of a template beside this file.

    Raises:
        InputError: PyYAML is missing.
    """
    try:
        import yaml
    except ImportError as error:
        raise InputError("writing YAML needs PyYAML; run `make setup`") from error
    return list(yaml.safe_load_all(Path(__file__).with_name(name).read_text("utf-8")))


def filled(template: Any, fields: Mapping[str, Any]) -> Any:
    """A template with its `$NAME`s replaced by `fields`. In a sequence a list takes the place of its name; a
    field of a mapping whose value is None is left out."""
    if isinstance(template, dict):
        made = {name: filled(each, fields) for name, each in template.items()}
        return {name: each for name, each in made.items() if each is not None}
    if isinstance(template, list):
        items: list[Any] = []
        for each in template:
            item = filled(each, fields)
            items += item if isinstance(each, str) and isinstance(item, list) else [item]
        return items
    return fields[template[1:]] if isinstance(template, str) and template[:1] == "$" else template


def yaml_text(objects: Sequence[Object], comments: Sequence[str] = ()) -> str:
    """Objects as documents of a YAML file, below lines of comment."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # kubectl reads them, but people would have to look them up

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = None if _PLAIN.fullmatch(text) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, represent)
    text = yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=1 << 20)
    return "".join(f"# {line}\n" for line in comments) + str(text)


def patched(objects: Sequence[Object], path: str) -> list[Object]:
    """The objects with the fields of a file.

    Raises:
        InputError: the file cannot be read, or has what the run's objects do not take; the field is named.
    """
    flag = f"--patch {path}: "
    node = compose(path, flag[:-2], _LARGEST)
    try:
        if node is not None and _size(node, {}) > _MOST_VALUES:
            raise InputError(f"{flag}its aliases stand for more than {_MOST_VALUES:,} values")
        parts = {} if node is None else _value(node, flag)
    except RecursionError:  # an alias within what it stands for
        raise InputError(f"{flag}nested too deeply") from None
    jobs = [each for each in objects if each["kind"] in ("Job", "MPIJob")]
    roles = [_role(each["template"]) for job in jobs for each in holders(job)]
    unknown = [f"{part}: no part of this run" for part in parts if part not in (JOBS, PODS, *roles)]
    if unknown or not parts:
        said = unknown[0] if unknown else "holds no fields"
        raise InputError(f"{flag}{said}; write {JOBS}, {PODS} or a role: {', '.join(roles)}")
    for part, given in parts.items():
        _check(given, flag + part, part, roles)
    made = []
    for each in objects:
        if each in jobs:
            each = merged(each, parts.get(JOBS, {}), flag + JOBS)
            for holder in holders(each):
                role = _role(holder["template"])
                for part in (PODS, role):
                    given = parts.get(part, {})
                    containers = given.get("spec", {}).get("containers")
                    if containers:  # the pod's container has its role as its name
                        named = [{"name": role, **container} for container in containers]
                        given = {**given, "spec": {**given["spec"], "containers": named}}
                    holder["template"] = merged(holder["template"], given, flag + part)
        made.append(each)
    return made


def holders(job: Object) -> list[dict[str, Any]]:
    """A job's mappings that have a pod's template."""
    return list(job["spec"].get("mpiReplicaSpecs", {}).values()) or [job["spec"]]


def _role(template: Object) -> str:
    return str(template["metadata"]["labels"][ROLE])


def _size(node: Any, known: dict[int, int]) -> int:
    """Number of values in a node, counted as often as aliases repeat them."""
    if id(node) not in known:
        below = [] if node.id == "scalar" else node.value
        below = [each[1] for each in below] if node.id == "mapping" else below
        known[id(node)] = 1 + sum(_size(each, known) for each in below)
    return known[id(node)]


def _value(node: Any, where: str, name: str = "") -> Any:
    """The value of a node of the file; `where` leads to it, `name` is its field."""
    if node.id == "sequence":
        return [_value(each, f"{where}[{number}]") for number, each in enumerate(node.value)]
    if node.id == "scalar":
        try:
            return scalar(node)
        except ValueError:
            raise InputError(f"{where}: {node.value} is neither text nor a number; quote it") from None
    made: dict[str, Any] = {}
    for key, below in node.value:
        dot = "" if where.endswith(" ") else "."
        field = f"{where}{dot}{key.value if key.id == 'scalar' else key.id}"
        if not key.tag.endswith(":str"):
            raise InputError(f"{field}: the name of a field is text; quote it")
        if key.value in made:
            raise InputError(f"{field}: given twice; keep one of them")
        made[key.value] = value = _value(below, field, key.value)
        if (name in _TEXTS or key.value == "value") and not isinstance(value, (str, type(None))):
            raise InputError(f"{field}: Kubernetes takes text here; quote it")
    return made


def _check(given: Any, where: str, part: str, roles: Sequence[str]) -> None:
    """Raises InputError for fields of a part by which the run would no longer be the command line's."""
    for field, each in given.items() if isinstance(given, dict) else [("", None)]:
        if field not in ("metadata", "spec") or not isinstance(each, dict):
            dot = "." if field else ""
            raise InputError(f"{where}{dot}{field}: write metadata or spec, and fields below it")
    for field, each in given.get("metadata", {}).items():
        if field not in _METADATA or not isinstance(each, dict):
            raise InputError(
                f"{where}.metadata.{field}: write labels or annotations, and their names below it"
            )
        for label in {INSTANCE, ROLE} & each.keys():
            raise InputError(f"{where}.metadata.{field}.{label}: by it the run's pods find each other")
    for field in given.get("spec", {}):
        if part == JOBS and field in _ELSEWHERE:
            raise InputError(f"{where}.spec.{field}: {_ELSEWHERE[field]}")
    containers = given.get("spec", {}).get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        raise InputError(f"{where}.spec.containers: write a list with fields of the pod's container")
    for number, each in enumerate(containers):
        if "name" in each and each["name"] != part and [each["name"]] != roles:
            raise InputError(
                f"{where}.spec.containers[{number}].name: each pod has one container; leave it out"
            )


def merged(there: Any, given: Any, where: str = "") -> Any:
    """A value that is there, changed by one that is given; `where` leads to it, for messages."""
    if there is not None and given is not None and _kind(there) != _kind(given):
        raise InputError(f"{where}: there is {_kind(there)}, this is {_kind(given)}")
    if isinstance(given, dict):
        made = dict(there or {})
        for name, each in given.items():
            made[name] = merged(made.get(name), each, f"{where}.{name}")
        return {name: each for name, each in made.items() if given.get(name, each) is not None}
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        return given
    items = list(there or [])
    for number, each in enumerate(given):
        key = next((key for key in _KEYS if key in each), "")
        same = [
            place
            for place, item in enumerate(items)
            if key and isinstance(item, dict) and item.get(key) == each[key]
        ]
        if same:
            items[same[0]] = merged(items[same[0]], each, f"{where}[{number}]")
        else:
            items.append(merged({}, each, f"{where}[{number}]"))
    return items


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "a single value"
