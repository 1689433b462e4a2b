"""The set-up: what it refuses and how, what it leaves alone, and its wheel cache under interruption."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from setup import (
    building,
    byteps_build,
    cuda,
    horovod_build,
    machine,
    mxnet_wheel,
    operators_build,
    packages,
    wanted,
    wheels,
)
from setup.building import Source, Tools
from setup.environment import Environment
from setup.errors import SetupError
from setup.progress import Progress, Stopped, excerpt
from tests.processes import executable, run_command, start_command, until, wait_for_file

ROOT = Path(__file__).resolve().parents[2]
PARTS = [
    "Makefile",
    "pyproject.toml",
    "requirements.txt",
    "requirements-build.txt",
    "requirements-cuda.txt",
    "base",
    "setup",
    "native",
]
BASE_PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def clone(tmp_path):
    """A copy of what the set-up consists of, without an environment."""
    return copy_parts(tmp_path / "clone")


@pytest.fixture
def progress(tmp_path):
    return Progress(1, tmp_path / "setup.log", StringIO())


def copy_parts(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part in PARTS:
        if (ROOT / part).is_dir():  # without what other tests' processes write there meanwhile
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def make_setup(clone: Path, *arguments: str, prefix: tuple[str, ...] = (), **changes: str):
    """Runs `make setup`; returns (exit code, standard output, lines of ours in standard error)."""
    # What make hands on to its commands, `make test PYTHON=...` among it, is not for this make.
    outer = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "CUDA", "PYTHONPATH", "TMPDIR")
    own = {"WHEEL_CACHE": str(clone.parent / "wheels"), "PYTHONDONTWRITEBYTECODE": "1", **changes}
    words = [*prefix, "make", "setup", *arguments]
    result = run_command(words, cwd=clone, env={**dict.fromkeys(outer), **own})
    assert not result.timed_out, f"it went to work: {result.describe()}"
    # make adds a line of its own: "make: *** [...] Error 1"
    ours = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    return result.returncode, result.stdout, ours


def refused(clone: Path, *arguments: str, **options):
    """Runs `make setup`, which must fail with one line and change nothing; returns the line."""
    before = contents(clone.parent)
    code, output, errors = make_setup(clone, *arguments, **options)
    assert code != 0
    assert "complete" not in output
    assert len(errors) == 1, errors
    assert errors[0].startswith("setup: ")
    assert contents(clone.parent) == before
    return errors[0]


def python_reporting(path: Path, version: str) -> Path:
    """A real interpreter that says it has another version."""
    return executable(
        path,
        f"""#!{BASE_PYTHON}
import sys
sys.version_info = ({version.replace(".", ", ")}, "final", 0)
exec(sys.argv[sys.argv.index("-c") + 1])
""",
    )


def path_without(folder: Path, *names: str) -> str:
    """A PATH with every command of the present one except those named and all Pythons."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        if not os.path.isdir(directory):
            continue
        for entry in os.scandir(directory):
            link = folder / entry.name
            if entry.name not in names and not entry.name.startswith("python") and not os.path.lexists(link):
                link.symlink_to(entry.path)
    return str(folder)


def test_a_python_that_mxnet_cannot_run_on(clone, tmp_path):
    python = python_reporting(tmp_path / "bin/python3.15", "3.15.1")
    message = refused(clone, f"PYTHON={python}")
    assert "Python 3.15.1" in message and "3.9 to 3.14" in message


def test_no_suitable_python_on_path(clone, tmp_path):
    path = path_without(tmp_path / "bin")
    assert "there is no python3" in refused(clone, PATH=path)
    python_reporting(tmp_path / "bin/python3", "3.7.9")
    message = refused(clone, PATH=path)
    assert "python3 is 3.7.9" in message and "PYTHON=" in message and "apt-get install python3;" in message


def test_a_suitable_python_is_found_behind_an_unsuitable_python3(clone, tmp_path):
    path = path_without(tmp_path / "bin")
    python_reporting(tmp_path / "bin/python3", "3.8.18")
    executable(tmp_path / "bin/python3.9", f'#!/bin/sh\nexec "{BASE_PYTHON}" "$@"\n')
    # The next thing to refuse shows that the search ended well.
    assert "CUDA=11.0" in refused(clone, "CUDA=11.0", PATH=path)


def test_no_compiler(clone, tmp_path):
    if not packages._installed("g++"):
        pytest.skip("without the package g++ the set-up would install it here")
    message = refused(clone, f"PYTHON={BASE_PYTHON}", PATH=path_without(tmp_path / "bin", "g++"))
    assert "g++" in message and "PATH" in message


def test_a_compiler_that_does_not_work(clone, tmp_path):
    path = path_without(tmp_path / "bin", "g++")
    executable(tmp_path / "bin/g++", "#!/bin/sh\necho 'cannot execute cc1plus' >&2\nexit 1\n")
    message = refused(clone, f"PYTHON={BASE_PYTHON}", PATH=path)
    assert message == "setup: the C++ compiler g++ does not work: cannot execute cc1plus"


def test_an_environment_that_is_a_link_to_another_one(clone, tmp_path):
    (tmp_path / "other/bin").mkdir(parents=True)
    (clone / ".venv").symlink_to(tmp_path / "other")
    message = refused(clone, f"PYTHON={BASE_PYTHON}")
    assert f".venv is a link to {tmp_path / 'other'}" in message and "remove the link" in message


NO_INDEX = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
NO_INDEX.update(PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="", PIP_RETRIES="1")
LACKING = ["libcusolver.so.10", "libcusolver-11-0", "libnvrtc.so.11.0", "cuda-nvrtc-11-0", "CUDA=112"]


@pytest.mark.parametrize(
    "words, variables, said",
    [
        (["PYTHON=/nowhere/python3.11"], {}, ["/nowhere/python3.11 does not run"]),
        ([], NO_INDEX, ["package index", "network"]),
        *((["CUDA=" + version], {}, ["CUDA=" + version]) for version in ("11", "cuda110")),
        (["CUDA=110"], {}, LACKING),  # libraries that no wheel has
        (["CUDA=102"], {}, ["CUDA=112"]),
        ([], {"WHEEL_CACHE": "/dev/null/wheels"}, ["/dev/null/wheels", "WHEEL_CACHE"]),
    ],
)
def test_what_cannot_be_set_up_is_one_line(clone, words, variables, said):
    message = refused(clone, f"PYTHON={BASE_PYTHON}", *words, **variables)
    assert [part for part in said if part not in message] == []


def test_cuda_from_wheels_alone(tmp_path):
    """NVIDIA's packages are pinned for GPUs and for nothing else, and every build for GPUs has them."""
    cpu, gpu = wanted.wanted("cpu", ROOT), wanted.wanted("112", ROOT)
    libraries = [pin for pin in gpu.requirements if pin.startswith("nvidia-")]
    assert len(libraries) == 10 and not any(pin.startswith("nvidia-") for pin in cpu.pins)
    for source in gpu.sources:
        if source.name != "gluonnlp":
            assert {pin.split("==")[0] for pin in libraries} < set(source.needs)
    assert [source.name for source in cpu.sources if source.change is not None] == ["horovod", "byteps"]


def library(place: Path, *words: object) -> None:
    """A real shared library of nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-shared", "-fPIC", "-o", place, "-x", "c", "/dev/null", *words]
    subprocess.run(list(map(str, command)), check=True)


def test_what_libmxnet_still_lacks_is_named(tmp_path):
    """Real libraries: one in a wheel's folder, and another that is nowhere."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    made, absent = (site / "nvidia/made/lib" / name for name in ("libmade.so.1", "libabsent.so.2"))
    for place in (made, absent):
        library(place, f"-Wl,-soname,{place.name}")
    library(site / "mxnet/libmxnet.so", "-Wl,--no-as-needed,-rpath,$ORIGIN", "-x", "none", made, absent)
    cuda.link_libraries(tmp_path)
    assert (site / "mxnet/libmade.so.1").resolve() == made.resolve()
    os.remove(absent)
    with pytest.raises(SetupError, match=r"libmxnet.so needs libabsent.so.2, which no package"):
        cuda.link_libraries(tmp_path)


def test_cuda_libraries_from_elsewhere_are_named(tmp_path):
    """Real libraries of one name, one in a package and one beside it, loaded by a process of its own."""
    site, outside = tmp_path / "site-packages", tmp_path / "cuda-13.0"
    ours = site / "nvidia" / "made" / "lib" / "libmade.so.11"
    theirs = outside / "libmade.so.13"
    for place in (ours, theirs):
        library(place)
    script = (
        "import ctypes, sys; from pathlib import Path; from setup.check_libraries import mapped, strays; "
        "[ctypes.CDLL(name) for name in sys.argv[2:]]; "
        "print(*strays(mapped(), ['libmade.so.11'], Path(sys.argv[1])))"
    )
    for libraries, named in (([ours], ""), ([ours, theirs], str(theirs))):
        seen = subprocess.run(
            [sys.executable, "-c", script, str(site), *map(str, libraries)],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        assert seen.stdout.decode().strip() == named


def test_the_stand_in_for_the_driver_has_no_device(tmp_path, progress):
    driver = ctypes.CDLL(str(cuda.compile_no_driver(ROOT / "native" / "cuda", tmp_path / "driver", progress)))
    assert driver.cuInit(0) == 100  # CUDA_ERROR_NO_DEVICE
    text = ctypes.c_char_p()
    assert driver.cuGetErrorString(100, ctypes.byref(text)) == 0 and b"no NVIDIA driver" in text.value


def test_horovod_is_changed_only_where_it_is_known(tmp_path):
    home, archive = tmp_path / "cuda", tmp_path / "horovod"
    kernels = archive / "horovod" / "common" / "ops" / "cuda"
    kernels.mkdir(parents=True)
    (kernels / "cuda_kernels.cu").write_text("kernels of nvcc")
    (archive / "CMakeLists.txt").write_text("\n".join(horovod_build.CHANGES) + "\n")
    horovod_build.leave_out_nvcc(ROOT / "native" / "cuda", home, archive)
    changed = (archive / "CMakeLists.txt").read_text()
    assert str(home / "lib" / "libcudart.so") in changed and "CUDAToolkit" not in changed
    assert "$ORIGIN/../../mxnet" in changed and "${MPI_LIBRARIES}" in changed and "{{" not in changed
    assert not (kernels / "cuda_kernels.cu").exists() and (kernels / "cuda_kernels.cc").exists()
    (archive / "CMakeLists.txt").write_text("another release")
    with pytest.raises(SetupError, match="it is not that of 0.28.1"):
        horovod_build.leave_out_nvcc(ROOT / "native" / "cuda", home, archive)


def test_libraries_for_gpus_name_no_folder_that_is_removed(tmp_path):
    """Horovod's and BytePS's own build scripts write the folders of the build into what they link."""
    text = f"for lib_dir in mx_lib_dirs:\n    {byteps_build.RUN_PATH}\n    more(lib_dir)\n"
    (tmp_path / "setup.py").write_text(text)
    name, old, new = byteps_build.DITHERING
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(old)
    gpu = byteps_build.byteps("112", ROOT, "mxnet")
    gpu.change(tmp_path, tmp_path)
    assert (tmp_path / name).read_text() == new
    changed = (tmp_path / "setup.py").read_text()
    assert "rpath" not in changed and "more(lib_dir)" in changed
    compile(changed, "setup.py", "exec")
    with pytest.raises(SetupError, match="another release, or changed"):
        gpu.change(tmp_path, tmp_path)
    assert "$ORIGIN/../../mxnet" in gpu.env["LDSHARED"]


def test_missing_packages_are_named_once_and_installed_only_by_root():
    needs = [
        packages.Need("a shell", lambda: True, "bash"),
        packages.Need("one thing", lambda: False, "no-such-package-one"),
        packages.Need("another", lambda: False, "no-such-package-two"),
    ]
    missing = packages.missing(needs)
    assert missing == ["no-such-package-one", "no-such-package-two"]
    packages.refuse_unless_root(missing, user_id=0)
    packages.refuse_unless_root([], user_id=1000)
    with pytest.raises(SetupError) as refusal:
        packages.refuse_unless_root(missing, user_id=1000)
    commands = [line.strip() for line in str(refusal.value).splitlines() if "apt-get" in line]
    assert commands == [
        "sudo apt-get install -y --no-install-recommends no-such-package-one no-such-package-two"
    ]


def test_the_venv_module_is_there_once_its_package_is_installed(monkeypatch):
    """Set-up lists the needs, installs what is absent and asks the same needs again."""
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    found = []
    monkeypatch.setattr(packages, "find_spec", lambda name: found[0] if name in found else None)
    (need,) = [need for need in packages.system_needs() if need.package.endswith("-venv")]
    assert not need.present()
    found.append("ensurepip")
    assert need.present()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv")
def test_another_user_is_told_what_to_install(tmp_path):
    drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    pythons = [python for python in (BASE_PYTHON, "/usr/bin/python3") if os.path.exists(python)]
    runs = [
        p for p in pythons if subprocess.run([*drop, p, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0
    ]
    if not runs:
        pytest.skip("no Python that another user may run")
    outer = Path("/tmp") / f"setup-test-{os.getpid()}"
    try:
        clone = copy_parts(outer / "clone")
        path = path_without(outer / "bin", "g++", "dpkg-query")
        executable(outer / "bin/dpkg-query", "#!/bin/sh\nexit 1\n")
        subprocess.run(["chmod", "-R", "a+rX", str(outer)], check=True)
        before = contents(outer)
        code, _, errors = make_setup(clone, f"PYTHON={runs[-1]}", prefix=drop, PATH=path, HOME="/nonexistent")
        after = contents(outer)
    finally:
        shutil.rmtree(outer)
    assert code != 0 and after == before
    assert [line.strip() for line in errors[1:]] == ["sudo apt-get install -y --no-install-recommends g++"]


def test_a_complete_set_up_is_left_alone():
    environment = Environment(ROOT)
    if Path(sys.prefix) != environment.venv:
        pytest.skip("these tests do not run in .venv")
    if not environment.complete(environment.recorded_cuda() or "cpu", machine.open_mpi_version()):
        pytest.skip("make setup has not been run since its files changed")
    record = environment.record
    before = record.stat().st_mtime_ns
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, output, errors = make_setup(ROOT)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime < 5, "seconds of CPU time"
    assert (code, errors) == (0, [])
    assert output.startswith("set-up is complete") and len(output.splitlines()) == 1
    assert record.stat().st_mtime_ns == before


# The cache, with a package that builds in a moment and needs no build tools.

BACKEND = """
import os, time, zipfile
NAME = "tinypackage-1.0"
INFO = NAME + ".dist-info"
METADATA = "Metadata-Version: 2.1\\nName: tinypackage\\nVersion: 1.0\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open(os.environ["TINY_BUILDS"], "a") as log:
        log.write("begun in %s\\n" % os.environ["TMPDIR"])
    with open(os.environ["TINY_SECONDS"]) as seconds:
        end = time.monotonic() + float(seconds.read())
    while time.monotonic() < end:
        os.stat(os.environ["TMPDIR"])  # a real build, too, ends when its files vanish
        time.sleep(0.1)
    name = NAME + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("tinypackage.py", "")
        wheel.writestr(INFO + "/METADATA", METADATA)
        wheel.writestr(INFO + "/WHEEL", WHEEL)
        wheel.writestr(INFO + "/RECORD", "")
    return name
"""
BUILD = """
import json, sys
from pathlib import Path
from setup import building, wheels
from setup.progress import Progress
log, folder, env = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
source = building.Source("tinypackage", "1.0", "a moment", (), env)
wheels.build(folder, source, building.Tools(sys.argv[4], folder, ()), Progress(1, log, sys.stdout))
"""


def pack(folder: Path, backend: str) -> dict[str, str]:
    """Writes the source archive of the small package, as an index would offer it, into a folder; returns the
    variables of its build."""
    with tarfile.open(folder / "tinypackage-1.0.tar.gz", "w:gz") as archive:
        pyproject = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        metadata = "Metadata-Version: 2.1\nName: tinypackage\nVersion: 1.0\n"
        for name, text in [("pyproject.toml", pyproject), ("backend.py", backend), ("PKG-INFO", metadata)]:
            member = tarfile.TarInfo(f"tinypackage-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, BytesIO(text.encode()))
    (folder / "seconds").write_text("0")
    return {"TINY_BUILDS": str(folder / "builds"), "TINY_SECONDS": str(folder / "seconds")}


def test_an_interrupted_build_leaves_no_wheel_and_two_set_ups_after_it_build_one(tmp_path):
    own, cache = json.dumps(pack(tmp_path, BACKEND)), tmp_path / "cache"
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    first, one, two = (
        [sys.executable, "-c", BUILD, tmp_path / f"{name}.log", cache, own, BASE_PYTHON]
        for name in ("first", "one", "two")
    )
    (tmp_path / "seconds").write_text("300")
    process = subprocess.Popen(first, cwd=ROOT, env=env)
    try:
        wait_for_file(tmp_path / "builds")
    finally:
        process.kill()
        process.wait()
    assert list(cache.rglob("*.whl")) == []
    (tmp_path / "seconds").write_text("2")
    with start_command(one, cwd=ROOT, env=env) as run, start_command(two, cwd=ROOT, env=env) as beside:
        run.wait().check()
        beside.wait().check()
    assert len((tmp_path / "builds").read_text().splitlines()) == 2
    (place,) = cache.iterdir()
    assert os.listdir(place) == ["tinypackage-1.0-py3-none-any.whl"]


def test_a_damaged_wheel_is_not_taken(tmp_path):
    source = wanted.gluonnlp()
    wheel = tmp_path / f"gluonnlp-{source.version}-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gluonnlp/__init__.py", "x" * 1000)
    assert wheels.complete(tmp_path, source) == wheel
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert wheels.complete(tmp_path, source) is None


def test_a_full_cache_needs_no_index(tmp_path):
    source = Source("tinypackage", "1.0", "a moment", (), {})
    everything = wanted.Wanted(["numpy==1.23.5"], ["wheel==0.45.1"], [source])
    wheels.pinned(tmp_path, everything).mkdir()
    assert not wheels.all_cached(tmp_path, everything)
    place = wheels.place(tmp_path, source, everything.pins)
    place.mkdir()
    zipfile.ZipFile(place / "tinypackage-1.0-py3-none-any.whl", "w").close()
    assert wheels.all_cached(tmp_path, everything)
    assert not wheels.all_cached(tmp_path, everything._replace(requirements=["numpy==1.23.4"]))
    assert not wheels.all_cached(tmp_path, everything._replace(build_tools=["wheel==0.45.0"]))


@pytest.fixture
def built(tmp_path, progress, monkeypatch):
    """Function of a backend: the wheel that it makes of the small package in this process."""

    def build(backend: str) -> Path:
        source = Source("tinypackage", "1.0", "a moment", (), pack(tmp_path, backend))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        tools = Tools(BASE_PYTHON, tmp_path, ())
        return wheels.build(tmp_path / "cache", source, tools, progress.beside("tinypackage"))

    return build


# Isolation: what is merely installed must not change what is built.

PROBE = """
import os, subprocess, sys

folders = ["-I" + os.path.join(sys.exec_prefix, "include")]  # where setuptools looks in a virtual environment
source = "#if __has_include(<misleading.h>)\\nseen\\n#endif\\n"
command = ["g++", "-E", "-P", "-x", "c++", "-", *folders]
output = subprocess.run(command, input=source, text=True, stdout=-1).stdout
try:
    import misleading
    package = "seen"
except ImportError:
    package = ""
SEEN = [output.strip(), package, os.environ.get("MISLEADING", "")]
"""
PROBING_BACKEND = PROBE + BACKEND.replace(
    'writestr("tinypackage.py", "")', 'writestr("seen.txt", repr(SEEN))'
)


def test_a_build_sees_nothing_of_what_is_installed(tmp_path, monkeypatch, built):
    """A header and a package in `.venv`, a variable, and `.venv` activated, as a user would have it."""
    venv = tmp_path / "clone" / ".venv"
    subprocess.run([BASE_PYTHON, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages_folder = next((venv / "lib").glob("python3.*/site-packages"))
    (packages_folder / "misleading.py").write_text("")
    (venv / "include").mkdir(exist_ok=True)
    (venv / "include" / "misleading.h").write_text("")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "PYTHONPATH", "CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MISLEADING", "seen")
    probe = [str(venv / "bin" / "python"), "-W", "ignore", "-c", PROBE + "\nprint(SEEN)"]
    there = subprocess.run(probe, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert there.strip() == "['seen', 'seen', 'seen']", "the probe is blind"

    monkeypatch.setenv("CPATH", str(venv / "include"))
    monkeypatch.setenv("PYTHONPATH", str(packages_folder))
    monkeypatch.setenv("PATH", f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    with zipfile.ZipFile(built(PROBING_BACKEND)) as archive:
        assert archive.read("seen.txt").decode() == "['', '', '']"


def test_the_environment_of_a_build_is_the_one_that_was_named(tmp_path, monkeypatch):
    venv = tmp_path / "user"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("")
    monkeypatch.setenv("PATH", f"{venv / 'bin'}{os.pathsep}/usr/bin")
    monkeypatch.setenv("LIBRARY_PATH", str(venv))
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setenv("PIP_INDEX_URL", "index")
    env = building.variables(wanted.horovod("cpu", ROOT, "mxnet", ()), tmp_path / "own", tmp_path)
    assert env["PATH"].split(os.pathsep) == [str(tmp_path / "own" / "bin"), "/usr/bin"]
    assert "LIBRARY_PATH" not in env and "HOROVOD_GPU_OPERATIONS" not in env
    assert env["PIP_INDEX_URL"] == "index" and env["HOROVOD_WITH_MXNET"] == "1"


def test_a_wheel_is_named_by_all_that_can_change_it(monkeypatch, tmp_path):
    pins = ["mxnet==1.9.1", "cmake==3.31.10"]
    source = Source("tinypackage", "1.0", "a moment", ("mxnet",), {"A": "1"})
    names = {building.digest(source, pins)}
    monkeypatch.setenv("PIP_INDEX_URL", "elsewhere")
    monkeypatch.setenv("CPATH", "not handed to a build")
    assert {building.digest(source, list(reversed(pins)))} == names
    names.add(building.digest(source, ["mxnet==1.9.0", "cmake==3.31.10"]))
    names.add(building.digest(source._replace(needs=("mxnet", "cmake")), pins))
    names.add(building.digest(source._replace(env={"A": "2"}), pins))
    names.add(building.digest(source._replace(version="1.1"), pins))
    (tmp_path / "input").write_text("1")
    with_input = source._replace(inputs=lambda: [tmp_path / "input"])
    names.add(building.digest(with_input, pins))
    (tmp_path / "input").write_text("2")
    names.add(building.digest(with_input, pins))
    monkeypatch.setenv("CUDA_HOME", "/elsewhere")
    names.add(building.digest(source, pins))
    compiler = executable(tmp_path / "bin" / "g++", "#!/bin/sh\necho another compiler\n")
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    names.add(building.digest(source, pins))
    assert len(names) == 9


def test_development_headers_are_installed_for_no_run():
    pins = wanted.wanted("cpu", ROOT)
    assert [
        pin for pin in pins.requirements if "devel" in pin or pin.startswith(("cmake", "setuptools"))
    ] == []
    versions = dict(pin.partition(" ;")[0].split("==") for pin in pins.pins)
    assert versions["onednn-cpu-gomp"] == versions["onednn-devel-cpu-gomp"]
    known = set(versions)
    for source in pins.sources:
        assert set(source.needs) <= known, f"{source.name}: no pin for what its build names"


def test_every_python_has_one_release_of_every_package():
    pins = [Requirement(pin) for pin in wanted.wanted("cpu", ROOT).pins]
    lines = (ROOT / "requirements.in").read_text().splitlines()
    asked = [Requirement(line) for line in lines if line[:1] not in "# "]
    for python in (f"3.{minor}" for minor in range(9, 15)):
        here = {"python_version": python, "python_full_version": f"{python}.0"}

        def names(requirements, here=here):
            return [each.name for each in requirements if each.marker is None or each.marker.evaluate(here)]

        assert len(set(names(pins))) == len(names(pins))
        wanted_here = {canonicalize_name(name) for name in names(asked)}
        assert len(wanted_here) > 20 and wanted_here <= set(names(pins)), python


def test_mxnet_lacks_nothing_on_this_python():
    """Its changed modules have what NumPy removed, and NumPy itself has nothing more than before."""
    code = (
        "import numpy, types; before = dict(vars(numpy)); import mxnet\n"
        "new = [value for name, value in vars(numpy).items() if before.get(name) is not value]\n"
        "assert all(isinstance(value, types.ModuleType) for value in new)\n"
        "from mxnet import np; values = np.array([3.0, 1.0])\n"
        "assert np.alltrue(values) and np.PZERO == 0 and np.NINF == -np.inf and np.bool is bool\n"
        "assert np.msort(values).tolist() == [1, 3] and np.trapz(values) == 2\n"
        "assert np.in1d([[1]], [1]).tolist() == [True]\n"
        "assert type(numpy.sum(values)) is np.ndarray and not hasattr(np, 'npv')\n"
        "import mxnet.test_utils, mxnet.gluon.contrib.estimator\n"
    )
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "-c", code], check=True)


def test_another_wheel_of_mxnet_is_named(tmp_path):
    wheel = tmp_path / "mxnet-1.9.1-py3-none-any.whl"
    record = "mxnet-1.9.1.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mxnet/test_utils.py", "np.bool\n")
        archive.writestr(record, "mxnet/test_utils.py,sha256=x,8\n")
    with pytest.raises(SetupError, match="has no METADATA, mxnet/gluon"):
        mxnet_wheel.change(tmp_path)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mxnet/test_utils.py", "nothing of NumPy\n")
        archive.writestr(record, "")
    with pytest.raises(SetupError, match="test_utils.py has no line like"):
        mxnet_wheel.change(tmp_path)


def test_a_machine_whose_name_has_no_address(monkeypatch):
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "nobody.invalid")
    with pytest.raises(
        SetupError, match='nobody.invalid has no address .* "127.0.1.1 nobody.invalid" to /etc/hosts'
    ):
        machine.check_own_name()


def test_the_operators_compile_against_the_headers_of_the_wheel(tmp_path):
    wheel = tmp_path / f"{operators_build.ONEDNN}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{operators_build.ONEDNN}-1.data/data/include/oneapi/dnnl.h", "header")
        archive.writestr(f"{operators_build.ONEDNN}-1.data/data/lib/cmake/x", "")
    (tmp_path / "headers" / "include").mkdir(parents=True)
    (tmp_path / "headers" / "include" / "stale.h").write_text("")
    folder, name = operators_build._unpack_headers(tmp_path, tmp_path / "headers")
    assert name == wheel.name and contents(folder) == {"oneapi", "oneapi/dnnl.h"}


# Builds side by side, and what is shown of one that fails.


def test_the_first_compiler_error_is_shown_of_a_long_log(tmp_path):
    log = [f"  gcc -c file{number}.c" for number in range(5000)]
    log[4400:4400] = [
        "    In file included from engine.cc:3:",
        "    dnnl.hpp:20:10: fatal error: oneapi/dnnl.hpp: No such file or directory",
        "       20 | #include <oneapi/dnnl.hpp>",
        "    compilation terminated.",
    ]
    log += ["Traceback (most recent call last):", "ERROR: Failed to build one or more wheels"]
    shown = excerpt(log)
    assert shown[0] == "dnnl.hpp:20:10: fatal error: oneapi/dnnl.hpp: No such file or directory"
    assert len(shown) < 10
    assert excerpt(["a", "x.o: undefined reference to `f'", "make: *** Error 1"])[0].startswith(
        "x.o: undefined"
    )
    assert excerpt(["Collecting", "ERROR: No matching distribution"])[0] == "ERROR: No matching distribution"
    assert excerpt([str(number) for number in range(100)]) == [str(number) for number in range(88, 100)]
    assert len(excerpt(["error: " + "x" * 1000])[0]) == 160


def test_a_failed_build_fits_one_screen_and_names_package_error_and_log(tmp_path, built):
    """A real compiler's real error, far from the end of pip's output."""
    failing = BACKEND.replace(
        'name = NAME + "-py3-none-any.whl"',
        'import subprocess, sys\n'
        '    subprocess.run(["g++", "-x", "c++", "-c", "-", "-o", os.devnull], input=b"int broken = ;")\n'
        '    sys.stdout.write("noise\\n" * 3000)\n'
        '    raise SystemExit(1)',
    )  # fmt: skip
    with pytest.raises(SetupError) as failure:
        built(failing)
    message = str(failure.value)
    assert message.startswith("building tinypackage") and "failed (exit code 1)." in message
    assert len(message.splitlines()) < 20
    assert "error: expected primary-expression" in message
    log = tmp_path / "setup-tinypackage.log"
    assert message.endswith(f"The whole log is in {log}.") and log.read_text().count("noise") >= 3000


def test_a_failure_stops_the_work_beside_it(progress):
    beside = progress.beside("slow")
    progress.stopping.set()
    began = time.monotonic()
    with pytest.raises(Stopped):
        beside.run(["sleep", "300"], "sleeping")
    assert time.monotonic() - began < 250


def test_a_set_up_records_the_files_that_it_began_with(clone):
    """Changes that are pulled meanwhile have not been set up."""
    environment = Environment(clone)
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text("")
    with open(clone / "setup/wheels.py", "a") as file:
        file.write("# changed\n")
    environment.finish("cpu", "4.1.4")
    assert environment.complete("cpu", "4.1.4")
    assert not Environment(clone).complete("cpu", "4.1.4")


def test_wheels_for_different_machines_are_kept_apart():
    keys = {wheels.machine_key(version, mpi) for version in ("cpu", "110") for mpi in ("4.1.4", "4.1.2")}
    assert len(keys) == 4


def test_a_wheel_of_byteps_belongs_to_its_host_runtime(clone):
    def name() -> str:
        return building.digest(byteps_build.byteps("cpu", clone, "mxnet"), ["mxnet==1.9.1"])

    names = [name()]
    assert name() == names[0]
    fingerprint = Environment(clone)._fingerprint("cpu", "4.1.4")
    for changed in ("byteps_host/reduce.cc", "ps_lite/zmq_van.h", "ps_lite/customer.cc", "ps_lite/build.mk"):
        with open(clone / "native" / changed, "a") as source:
            source.write("\n")
        assert name() not in names
        names.append(name())
        assert Environment(clone)._fingerprint("cpu", "4.1.4") != fingerprint


def test_byteps_for_cuda_has_nothing_of_the_host_runtime(clone, tmp_path):
    source = byteps_build.byteps("110", clone, "mxnet-cu110")
    assert source.env["BYTEPS_NCCL_LINK"] == "SHARED" and "--wrap" not in source.env["LDSHARED"]
    assert not any("byteps_host" in str(file) for file in source.inputs())
    shutil.rmtree(clone / "native" / "byteps_host")
    assert building.digest(source, []) == building.digest(
        byteps_build.byteps("110", clone, "mxnet-cu110"), []
    )


def test_the_host_runtime_compiles_into_what_byteps_links(clone, tmp_path, progress):
    env = byteps_build.compile_host_runtime(clone / "native/byteps_host", tmp_path, progress)
    home = Path(env["BYTEPS_NCCL_HOME"])
    assert (home / "include/nccl.h").exists() and (home / "lib/libnccl_static.a").exists()
    for name in ("shm_open", "bind", "sendto", "nanosleep"):
        assert f"--wrap={name}," in env["LDSHARED"]


def test_a_path_that_the_linker_cannot_take_is_refused(clone, tmp_path, progress):
    with pytest.raises(SetupError, match="WHEEL_CACHE"):
        byteps_build.byteps("cpu", clone, "mxnet").arrange(tmp_path / "a b", progress)


def test_a_command_past_its_limit_is_ended_with_its_children(tmp_path, progress):
    pid_file = tmp_path / "pid"
    with pytest.raises(SetupError, match="within 1 seconds"):
        progress.run(["sh", "-c", f"sleep 300 & echo $! > {pid_file}; wait"], "sleeping", limit=1)
    child = Path("/proc") / pid_file.read_text().strip() / "stat"
    until(lambda: not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z")
