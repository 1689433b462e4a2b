"""The rules of the house, read from the syntax trees: nothing is imported to check them.

scripts -> bench, comparison -> training -> tasks -> bert -> data, comm, hosts -> base, lamb_paper

A module imports from the layers below its own and from its own package.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The lowest first. No package imports another one of its layer.
LAYERS = (
    ("base",),
    ("lamb_paper",),
    ("data", "comm", "hosts"),
    ("bert",),
    ("tasks",),
    ("training",),
    ("bench", "comparison"),
    (
        *("run_pretraining_hvd", "run_pretraining_byteps", "finetune_squad", "finetune_classifier"),
        *("convert", "predict", "score", "compare", "hparams", "results", "run_sagemaker"),
    ),
)
ALONE = "setup"  # it runs before anything is installed
SETUP_MAY_USE = "base"  # those of its modules that need the standard library only

FRAMEWORKS = {"mxnet", "gluonnlp", "horovod", "byteps"}
WITHOUT_FRAMEWORKS = ("base", "data", "hosts", "lamb_paper", "hparams")
LIBRARIES_OF_BASE = {"tqdm", "yaml", "matplotlib"}
# They run what it built.
SETUP_CHECKS = {"setup.check_horovod", "setup.check_byteps", "setup.check_libraries"}

# Importing one of these decides how ranks communicate: scripts do, and commands that start ranks themselves.
IMPLEMENTATIONS = ("comm.horovod", "comm.byteps", "comm.local")
STARTS_RANKS = {"training.profile", "bench.ours"}

LONGEST = 500  # lines of a module
MOST_PARAMETERS = 6  # of a function, without self and cls
# Gluon calls it with the block's inputs and every parameter that the block has registered, by name.
CALLED_BY_A_LIBRARY = {"hybrid_forward"}
# They make frozen configurations of parsed options; nothing below them sees a Namespace.
MAKES_CONFIGURATIONS = {"base.options"}


def modules(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def imported(node: ast.AST, at_import: bool = False) -> Iterator[str]:
    """Dotted names of what a module imports anywhere in it, also through importlib and __import__; with
    `at_import` only what it imports as soon as it is imported, outside functions and `if TYPE_CHECKING:`.
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
    for child in node.orelse if at_import and for_typing else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
        yield from imported(child, at_import)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports_of(path: Path, at_import: bool = False) -> set[str]:
    return set(imported(tree_of(path), at_import))


def dotted(path: Path) -> str:
    """`data/text/lines.py` -> `data.text.lines`; a package's `__init__.py` -> the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PACKAGES = sorted({path.parent.name for path in modules("*/__init__.py")} - {"tests"})
PROJECT = {dotted(path): path for path in modules("*.py", *(f"{package}/**/*.py" for package in PACKAGES))}


def tops(names: Iterable[str]) -> set[str]:
    """The first parts of dotted names."""
    return {name.partition(".")[0] for name in names}


def closure(start: Iterable[Any], following: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """All that one comes to from `start`, which is included."""
    found: set[Any] = set()
    todo = set(start)
    while todo:
        found |= todo
        todo = {each for one in todo for each in following(one)} - found
    return found


def files_of_project(path: Path) -> list[Path]:
    """The files of what a module imports of this project."""
    return [PROJECT[name] for name in of_project(path)]


def of_project(path: Path) -> set[str]:
    """The modules of this project that one imports anywhere in it."""
    return {name for name in imports_of(path) if name in PROJECT and PROJECT[name].stem != "__init__"}


def package_of(module: str) -> str:
    """The name in LAYERS that a module belongs to."""
    return module.partition(".")[0]


def layer_of(module: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if package_of(module) in layer)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """All that it takes, `*args` and `**kwargs` included; self and cls left out."""
    given = function.args
    starred = [each for each in (given.vararg, given.kwarg) if each is not None]
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]
    return [each for each in every if each.arg not in ("self", "cls")]


def is_standard_library(name: str) -> bool:
    """Whether a top-level name is a module of Python itself (3.10 and later have sys.stdlib_module_names)."""
    spec = importlib.util.find_spec(name) if name not in sys.builtin_module_names else None
    if name in sys.builtin_module_names or (spec and spec.origin in ("built-in", "frozen")):
        return True
    if spec is None or spec.origin is None:
        return False
    origin = Path(spec.origin).resolve()
    folders = {Path(sysconfig.get_path(each)).resolve() for each in ("stdlib", "platstdlib")}
    installed = {"site-packages", "dist-packages"} & set(origin.parts)
    return not installed and any(folder in origin.parents for folder in folders)


# --- The rules: each gives its violations as lines of text.


def layers() -> set[str]:
    """Imports from a layer above or from a neighbour."""
    return {
        f"{module} imports {name}"
        for module, path in PROJECT.items()
        if package_of(module) != ALONE
        for name in of_project(path)
        if package_of(name) == ALONE
        or (layer_of(name) >= layer_of(module) and package_of(name) != package_of(module))
    }


def scripts_choose_the_backend() -> set[str]:
    """Imports of a communicator's implementation outside comm/, the scripts and what starts ranks itself."""
    return {
        f"{module} imports {name}"
        for module, path in PROJECT.items()
        if package_of(module) not in ("comm", *LAYERS[-1]) and module not in STARTS_RANKS
        for name in of_project(path)
        if name.startswith(IMPLEMENTATIONS)
    }


def cycles() -> set[str]:
    """Imports between modules of which each leads back to the other, directly or through more, inside a
    package too and at whatever time."""
    graph = {module: of_project(path) for module, path in PROJECT.items()}
    return {f"{module} imports {name}, which leads back" for module, name in edges_in_cycles(graph)}


def edges_in_cycles(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Edges from whose end a way leads back to their beginning."""
    ends = {node: closure({node}, graph.__getitem__) for node in graph}
    return {(node, other) for node in graph for other in graph[node] if node in ends[other]}


def many_parameters() -> set[str]:
    return {
        f"{module}: {function.name} takes {len(parameters(function))}"
        for module, path in PROJECT.items()
        for function in functions(path)
        if len(parameters(function)) > MOST_PARAMETERS and function.name not in CALLED_BY_A_LIBRARY
    }


def namespaces() -> set[str]:
    """Modules that name argparse.Namespace as a type and neither define nor parse options."""
    return {
        module
        for module, path in PROJECT.items()
        if any(names_a_namespace(each) for each in annotations(path))
        and not (defines_options(path) or module in MAKES_CONFIGURATIONS)
    }


def annotations(path: Path) -> Iterator[ast.AST]:
    for node in ast.walk(tree_of(path)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                yield annotation


def names_a_namespace(annotation: ast.AST) -> bool:
    names = [getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(annotation)]
    return "Namespace" in names


def defines_options(path: Path) -> bool:
    """Whether it parses options or defines some, perhaps by an `add_argument` under another name."""
    attributes = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
    firsts = [node.args[0] for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call) and node.args]
    values = [str(first.value) for first in firsts if isinstance(first, ast.Constant)]
    parses = bool(attributes & {"ArgumentParser", "add_argument", "parse_args"})
    tables = "base.options" in of_project(path)
    return parses or tables or any(re.fullmatch("--[a-z]\\w+", value) for value in values)


def long_modules() -> set[str]:
    return {
        module
        for module, path in PROJECT.items()
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST
    }


RULES = (layers, scripts_choose_the_backend, cycles, many_parameters, namespaces, long_modules)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule):
    assert sorted(rule()) == []


# --- The reader itself.


def test_the_reader_sees_every_kind_of_import():
    source = """
from __future__ import annotations
import a.b as c
from d import e
if TYPE_CHECKING:
    import only_for_types
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
    assert {"a.b", "d", "d.e", "f", "g", "i.j", "k", "l.m", "l.m.n", "only_for_types"} <= names
    later = names - set(imported(ast.parse(source), at_import=True))
    assert later == {"g", "i.j", "k", "only_for_types"}


def test_the_reader_sees_what_the_rules_are_about(tmp_path):
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert edges_in_cycles(graph) == {("a", "b"), ("b", "c"), ("c", "a"), ("d", "e"), ("e", "d")}

    module = tmp_path / "module.py"
    module.write_text("class A:\n    def f(self, a, /, b, *c, d: argparse.Namespace | None, **e): pass\n")
    (function,) = functions(module)
    assert [each.arg for each in parameters(function)] == ["a", "b", "d", "c", "e"]
    assert any(names_a_namespace(each) for each in annotations(module)) and not defines_options(module)

    known = [name for name in ("json", "math", "sys", "numpy", "pytest") if is_standard_library(name)]
    assert known == ["json", "math", "sys"]


def test_every_module_is_in_a_layer():
    named = {name for layer in LAYERS for name in layer} | {ALONE}
    assert {package_of(module) for module in PROJECT} <= named
    assert "data" in PACKAGES and len(PROJECT) > 100, "has a folder been renamed?"


def test_nothing_imports_the_tests():
    assert [module for module, path in PROJECT.items() if "tests" in tops(imports_of(path))] == []


# --- Libraries.


def libraries_of(path: Path) -> set[str]:
    """Top-level names of all that a module imports and that is neither Python's nor this project's."""
    return {top for top in tops(imports_of(path)) - tops(PROJECT) if not is_standard_library(top)}


def test_modules_without_frameworks():
    """They run where only the standard library or NumPy is installed, and start in no time."""
    for module, path in PROJECT.items():
        assert package_of(module) not in WITHOUT_FRAMEWORKS or not tops(imports_of(path)) & FRAMEWORKS, path


def test_base_needs_little():
    needed = {name for path in modules("base/*.py") for name in libraries_of(path)}
    assert needed == LIBRARIES_OF_BASE


def test_setup_stands_alone():
    """It runs on the interpreter that it finds, before .venv exists."""
    own = {path for path in modules("setup/**/*.py") if dotted(path) not in SETUP_CHECKS}
    for path in closure(own, files_of_project):
        assert package_of(dotted(path)) in (ALONE, SETUP_MAY_USE), path
        assert libraries_of(path) == set(), path
    for module in SETUP_CHECKS:
        assert {package_of(name) for name in of_project(PROJECT[module])} <= {ALONE}


def test_hparams_needs_the_standard_library_only():
    """The command also asks the training scripts' parser, and what that is made of. YAML alone is imported,
    where --options_file is given."""
    seen = closure(modules("hparams.py", "lamb_paper.py"), files_of_project)
    for path in seen:
        own = {"yaml"} if path.stem in ("options_file", "yaml_files") else set()
        assert libraries_of(path) == own, path
        assert "yaml" not in imports_of(path, at_import=True)
    assert {ROOT / "hosts/hostfile.py", ROOT / "training/options.py", ROOT / "base/errors.py"} <= seen


def test_only_one_module_imports_each_library():
    """setup/ runs a check of its own on what it has built; it is no part of training."""
    users = {
        library: {
            module
            for module, path in PROJECT.items()
            if module not in SETUP_CHECKS and library in tops(imports_of(path))
        }
        for library in ("horovod", "byteps")
    }
    assert users == {"horovod": {"comm.horovod"}, "byteps": {"comm.byteps.library"}}


def test_comparing_needs_no_mxnet_but_in_the_ranks():
    """compare.py itself, while ranks are measured, holds neither MXNet's memory nor its threads."""
    ranks = {ROOT / "comparison/messages/rank.py", ROOT / "comparison/emulation/rank.py"}
    own = set(modules("comparison/**/*.py")) - ranks

    def needed(path: Path) -> set[Path]:
        names = imports_of(path, at_import=path not in own)
        assert not tops(names) & FRAMEWORKS, path
        return {PROJECT[name] for name in names if name in PROJECT} - ranks

    seen = closure({ROOT / "compare.py", *own}, needed)
    assert ROOT / "lamb_paper.py" in seen and ROOT / "training/profiling/breakdown.py" in seen


def test_training_knows_communicators_by_their_interface():
    taken = {
        name
        for module, path in PROJECT.items()
        if package_of(module) in ("bert", "tasks", "training") and module not in STARTS_RANKS
        for name in of_project(path)
        if package_of(name) == "comm"
    }
    # bits, buckets: the memory of arrays, no communicator
    assert taken == {"comm.base", "comm.bits", "comm.buckets", "comm.options"}


def test_the_scripts_import_mxnet_after_the_threads_are_set():
    """As long as `main` has not begun, nothing that a script imports has imported mxnet."""
    for script in modules("run_pretraining_*.py"):
        seen = closure(
            imports_of(script, at_import=True),
            lambda name: imports_of(PROJECT[name], at_import=True) if name in PROJECT else (),
        )
        assert {"training.options", "data.tokenizing.vocab"} <= seen, "the search has to go into the depth"
        assert not tops(seen) & {*FRAMEWORKS, "matplotlib", "crc32c"}, script


# --- Package docstrings.

NAMED = [path.parent for path in modules(*(f"{package}/**/__init__.py" for package in PACKAGES))]


@pytest.mark.parametrize("package", NAMED, ids=lambda package: str(package.relative_to(ROOT)))
def test_package_files_hold_a_docstring_that_names_the_modules(package):
    """Lines of its list are `module   phrase` or `module, module   phrase`; subpackages end with a slash."""
    (docstring,) = tree_of(package / "__init__.py").body
    assert isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)
    first, _, rest = str(docstring.value.value).strip().partition("\n")
    assert first.endswith((".", ":"))
    lists = re.findall(r"^(\w+/?(?:, \w+/?)*) {2,}\S.* \S", rest, re.MULTILINE)
    named = [name for each in lists for name in each.split(", ")]
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert sorted(named) == sorted(files | folders)


def test_docstrings_begin_with_a_verb_or_a_noun():
    questions = re.compile(r"(What|Which|Who|Whose|How|From|Where|When|Why)\b")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    questioning = [
        f"{path}: {getattr(node, 'name', 'module')}"
        for path in [*PROJECT.values(), *modules("tests/**/*.py")]
        if re.search(f'"""{questions.pattern}', path.read_text("utf-8"))  # few texts begin so
        for node in ast.walk(tree_of(path))
        if isinstance(node, kinds) and questions.match(ast.get_docstring(node) or "")
    ]
    assert questioning == []
