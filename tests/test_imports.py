"""Who may import whom, read from the syntax trees: nothing is imported to find out.

scripts -> bert -> data, comm, hparams          data/ and hparams*.py: no MXNet
compare -> comparison -> bench, hosts, bert     comparison/: none but in its ranks
                                                comm/horovod.py alone: Horovod
                                                comm/byteps/library.py alone: BytePS
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("data", "bert", "comm", "hosts", "setup", "bench", "comparison")
LONGEST = 500  # lines of a module
SCRIPTS = ("run_pretraining_hvd", "run_pretraining_byteps", "compare", "comparison")


def modules(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def imported(node: ast.AST, at_import: bool = False) -> Iterator[str]:
    """Dotted names of what a module imports anywhere in it, also through importlib and __import__; with
    `at_import` only what it imports as soon as it is imported, outside functions.

    What is imported `if TYPE_CHECKING:` is left out: it never happens.
    """
    if at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "a relative import"
        yield str(node.module)
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            assert isinstance(first, ast.Constant), "an import of a name that cannot be read"
            yield str(first.value)
    for_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    for child in node.orelse if for_typing else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
        yield from imported(child, at_import)


def imports_of(path: Path, at_import: bool = False) -> set[str]:
    return set(imported(ast.parse(path.read_text(encoding="utf-8"), str(path)), at_import))


def offending(paths: list[Path], *forbidden: str) -> dict[str, list[str]]:
    """Module: what it imports of the forbidden packages."""
    assert paths, "no modules: has a folder been renamed?"
    found = {}
    for path in paths:
        bad = sorted({name for name in imports_of(path) if name.split(".")[0] in forbidden})
        if bad:
            found[str(path.relative_to(ROOT))] = bad
    return found


def test_the_reader_sees_every_kind_of_import():
    source = """
from __future__ import annotations
import a.b as c
from d import e
if TYPE_CHECKING:
    import never
else:
    import f
def function():
    import g
    h = importlib.import_module("i.j")
    return __import__("k")
try:
    from l.m import n
except ImportError:
    pass
"""
    names = set(imported(ast.parse(source)))
    assert {"a.b", "d", "d.e", "f", "g", "i.j", "k", "l.m", "l.m.n"} <= names
    assert "never" not in names
    assert names - set(imported(ast.parse(source), at_import=True)) == {"g", "i.j", "k"}


def test_data_and_hparams_run_without_mxnet():
    assert offending(modules("data/**/*.py", "hparams*.py"), "mxnet", "gluonnlp", "horovod", "byteps") == {}


def test_hparams_needs_the_standard_library_only():
    """The command also asks the training scripts' parser, and what that is made of."""
    todo, seen = set(modules("hparams*.py")), set()
    own = {"hparams", "hparams_check", "hparams_command", "hosts", "base", "data", "training"}
    while todo:
        path = todo.pop()
        seen.add(path)
        names = imports_of(path)
        files = {ROOT / (name.replace(".", "/") + ".py") for name in names}
        assert {name.split(".")[0] for name in names} - own <= STANDARD_LIBRARY, path
        todo |= {file for file in files if file.exists()} - seen
    assert {ROOT / "hosts/hostfile.py", ROOT / "training/options.py", ROOT / "base/errors.py"} <= seen


def test_only_one_module_imports_each_library():
    """setup/ runs a check of its own on what it has built; it is no part of training."""
    everything = modules("*.py", "data/**/*.py", "bert/**/*.py", "comm/**/*.py", "hosts/**/*.py")
    everything += modules("bench/**/*.py", "comparison/**/*.py")
    assert set(offending(everything, "horovod")) == {"comm/horovod.py"}
    assert set(offending(everything, "byteps")) == {"comm/byteps/library.py"}


@pytest.mark.parametrize(
    "package, forbidden",
    [
        ("data", ("bert", "comm", "hosts", "setup", *SCRIPTS)),
        ("comm", ("bert", "hosts", "setup", *SCRIPTS)),
        ("bert", ("hosts", "setup", *SCRIPTS)),
        ("hosts", ("bert", "setup", *SCRIPTS)),
        ("setup", ("bert", "data", "comm", "hosts", *SCRIPTS)),
        ("bench", ("setup", *SCRIPTS)),
        ("comparison", ("setup", "run_pretraining_hvd", "run_pretraining_byteps", "compare")),
    ],
)
def test_imports_point_one_way(package, forbidden):
    assert offending(modules(f"{package}/**/*.py"), "tests", *forbidden) == {}


def test_comparing_needs_no_mxnet_but_in_the_ranks():
    """compare.py itself, while ranks are measured, holds neither MXNet's memory nor its threads."""
    todo, seen = set(modules("compare.py", "comparison/**/*.py")), {ROOT / "comparison/messages/rank.py"}
    todo -= seen
    while todo:
        path = todo.pop()
        seen.add(path)
        names = imports_of(path, at_import=path not in modules("comparison/**/*.py"))
        assert not {name.split(".")[0] for name in names} & {"mxnet", "gluonnlp", "horovod", "byteps"}, path
        files = {ROOT / (name.replace(".", "/") + ".py") for name in names}
        todo |= {file for file in files if file.exists()} - seen
    assert ROOT / "hparams.py" in seen and ROOT / "training/profiling/breakdown.py" in seen


def test_comm_takes_only_the_exceptions_from_data():
    taken = {
        name
        for path in modules("comm/**/*.py")
        for name in imports_of(path)
        if name.split(".")[0] == "data" and name.count(".") == 1
    }
    assert taken <= {"base.errors"}


def test_bert_knows_communicators_by_their_interface():
    commands = modules("training/profile.py")  # python -m training.profile starts a run, as the scripts do
    taken = {
        name
        for path in modules("bert/**/*.py")
        if path not in commands
        for name in imports_of(path)
        if name.split(".")[0] == "comm" and name.count(".") == 1
    }
    assert taken == {"comm.base", "comm.watch.run_processes"}  # the latter for the rank in an error line


def test_the_scripts_import_mxnet_after_the_threads_are_set():
    """As long as `main` has not begun, nothing that a script imports has imported mxnet."""
    for script in modules("run_pretraining_*.py"):
        todo, seen = imports_of(script, at_import=True), set()
        while todo:
            name = todo.pop()
            seen.add(name)
            module = ROOT / (name.replace(".", "/") + ".py")
            if module.exists():
                todo |= imports_of(module, at_import=True) - seen
        assert {"training.options", "data.tokenizing.vocab"} <= seen, "the search has found what lies deeper"
        assert not {name.split(".")[0] for name in seen} & {"mxnet", "gluonnlp", "horovod", "byteps"}, script


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_short(package):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules(f"{package}/**/*.py")
    }
    assert lengths and {path: length for path, length in lengths.items() if length >= LONGEST} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_package_files_hold_at_most_a_docstring(package):
    for path in modules(f"{package}/**/__init__.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body), path


# sys.stdlib_module_names exists from Python 3.10 on; these are what hparams may want.
STANDARD_LIBRARY = {
    *(
        "__future__",
        "argparse",
        "collections",
        "dataclasses",
        "fractions",
        "functools",
        "ipaddress",
        "itertools",
    ),
    *("itertools", "json", "math", "os", "pathlib", "re", "shlex", "socket", "sys", "textwrap", "typing"),
}
