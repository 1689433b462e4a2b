"""The set-up: what it refuses and how, what it leaves alone, and its wheel cache under interruption."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from io import BytesIO, StringIO
from pathlib import Path

import pytest

from setup import byteps_build, machine, packages, wheels
from setup.environment import Environment
from setup.errors import SetupError
from setup.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
PARTS = [
    "Makefile",
    "pyproject.toml",
    "requirements.txt",
    "requirements-build.txt",
    "constraints.txt",
    "setup",
    "native",
]
BASE_PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def clone(tmp_path):
    """A copy of what the set-up consists of, without an environment."""
    return copy_parts(tmp_path / "clone")


def copy_parts(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    return folder


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def make_setup(clone: Path, *arguments: str, prefix: tuple[str, ...] = (), **changes: str):
    """Runs `make setup`; returns (exit code, standard output, lines of ours in standard error)."""
    # What make hands on to its commands, `make test PYTHON=...` among it, is not for this make.
    outer = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "CUDA", "WHEEL_CACHE")
    clean = {name: value for name, value in os.environ.items() if name not in outer}
    env = {**clean, "WHEEL_CACHE": str(clone.parent / "wheels"), "PYTHONDONTWRITEBYTECODE": "1", **changes}
    process = subprocess.Popen(
        [*prefix, "make", "setup", *arguments],
        cwd=clone,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the set-up then ends what it has started
        output, errors = process.communicate(timeout=30)
        pytest.fail(f"make setup went to work:\n{output}\n{errors}")
    # make adds a line of its own: "make: *** [...] Error 1"
    ours = [line for line in errors.splitlines() if not line.startswith("make")]
    return process.returncode, output, ours


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


def executable(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def python_reporting(path: Path, version: str) -> str:
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
    python = python_reporting(tmp_path / "bin/python3.12", "3.12.1")
    message = refused(clone, f"PYTHON={python}")
    assert "Python 3.12.1" in message and "3.8 to 3.11" in message


def test_a_python_that_is_not_there(clone):
    message = refused(clone, "PYTHON=/nowhere/python3.11")
    assert "/nowhere/python3.11 does not run" in message


def test_no_suitable_python_on_path(clone, tmp_path):
    path = path_without(tmp_path / "bin")
    assert "there is no python3" in refused(clone, PATH=path)
    python_reporting(tmp_path / "bin/python3", "3.7.9")
    message = refused(clone, PATH=path)
    assert "python3 is 3.7.9" in message and "PYTHON=" in message


def test_a_suitable_python_is_found_behind_an_unsuitable_python3(clone, tmp_path):
    path = path_without(tmp_path / "bin")
    python_reporting(tmp_path / "bin/python3", "3.12.1")
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
    before = contents(clone)
    code, output, errors = make_setup(clone, f"PYTHON={BASE_PYTHON}", PATH=path)
    assert code != 0 and contents(clone) == before
    assert errors == ["setup: the C++ compiler g++ does not work: cannot execute cc1plus"]


def test_no_network(clone):
    began = time.monotonic()
    message = refused(
        clone,
        f"PYTHON={BASE_PYTHON}",
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
        PIP_RETRIES="1",
    )
    assert "package index" in message and "network" in message
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("cuda", ["11.0", "11", "cuda110"])
def test_cuda_versions_of_another_form(clone, cuda):
    assert f"CUDA={cuda}" in refused(clone, f"PYTHON={BASE_PYTHON}", f"CUDA={cuda}")


def test_cuda_without_its_compiler(clone, tmp_path):
    path = path_without(tmp_path / "bin", "nvcc")
    message = refused(clone, f"PYTHON={BASE_PYTHON}", "CUDA=110", PATH=path, HOROVOD_CUDA_HOME=str(tmp_path))
    assert "nvcc" in message and "HOROVOD_CUDA_HOME" in message


def test_a_wheel_cache_that_cannot_be_written(clone):
    message = refused(clone, f"PYTHON={BASE_PYTHON}", WHEEL_CACHE="/dev/null/wheels")
    assert "/dev/null/wheels" in message and "WHEEL_CACHE" in message


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
    began = time.monotonic()
    code, output, errors = make_setup(ROOT)
    assert time.monotonic() - began < 5
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
    end = time.monotonic() + float(os.environ["TINY_SECONDS"])
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
import sys
from pathlib import Path
from setup import wheels
from setup.progress import Progress
log, folder = Path(sys.argv[1]), Path(sys.argv[2])
source = wheels.Source("tinypackage", "1.0", "a moment", {})
wheels.build(folder, source, Path(sys.executable), Progress(1, log, sys.stdout), lambda: None)
"""


@pytest.fixture
def builder(tmp_path):
    """Starts a process that builds the small package into tmp_path/cache."""
    with tarfile.open(tmp_path / "tinypackage-1.0.tar.gz", "w:gz") as archive:
        pyproject = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        metadata = "Metadata-Version: 2.1\nName: tinypackage\nVersion: 1.0\n"
        for name, text in [("pyproject.toml", pyproject), ("backend.py", BACKEND), ("PKG-INFO", metadata)]:
            member = tarfile.TarInfo(f"tinypackage-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, BytesIO(text.encode()))
    started = []

    def start(name: str, seconds: float) -> subprocess.Popen:
        env = {
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path),
            "TINY_BUILDS": str(tmp_path / "builds"),
            "TINY_SECONDS": str(seconds),
        }
        command = [sys.executable, "-c", BUILD, str(tmp_path / f"{name}.log"), str(tmp_path / "cache")]
        started.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


def builds(tmp_path: Path) -> int:
    return len((tmp_path / "builds").read_text().splitlines())


def test_two_set_ups_build_a_wheel_once(builder, tmp_path):
    both = [builder("one", 2), builder("two", 2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert builds(tmp_path) == 1
    assert os.listdir(tmp_path / "cache") == ["tinypackage-1.0-py3-none-any.whl"]


def test_an_interrupted_build_leaves_no_wheel_and_the_next_one_completes(builder, tmp_path):
    first = builder("first", 300)
    wait_for(tmp_path / "builds")
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert list((tmp_path / "cache").glob("*.whl")) == []
    second = builder("second", 0)
    output = second.communicate(timeout=120)[0]
    assert second.returncode == 0, output
    assert builds(tmp_path) == 2
    assert os.listdir(tmp_path / "cache") == ["tinypackage-1.0-py3-none-any.whl"]


def test_a_damaged_wheel_is_not_taken(tmp_path):
    source = wheels.gluonnlp()
    wheel = tmp_path / f"gluonnlp-{source.version}-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gluonnlp/__init__.py", "x" * 1000)
    assert wheels.cached(tmp_path, source) == wheel
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert wheels.cached(tmp_path, source) is None


def test_a_full_cache_needs_no_index(tmp_path):
    source = wheels.Source("tinypackage", "1.0", "a moment", {})
    wanted = wheels.Wanted(["numpy==1.23.5"], ["idna==3.15"], [source])
    wheels.pinned(tmp_path, wanted).mkdir()
    assert not wheels.all_cached(tmp_path, wanted)
    zipfile.ZipFile(tmp_path / "tinypackage-1.0-py3-none-any.whl", "w").close()
    assert wheels.all_cached(tmp_path, wanted)
    assert not wheels.all_cached(tmp_path, wanted._replace(requirements=["numpy==1.23.4"]))
    assert not wheels.all_cached(tmp_path, wanted._replace(constraints=["idna==3.14"]))


def test_wheels_for_different_machines_are_kept_apart():
    keys = {wheels.machine_key(cuda, mpi) for cuda in ("cpu", "110") for mpi in ("4.1.4", "4.1.2")}
    assert len(keys) == 4


def test_a_wheel_of_byteps_belongs_to_its_host_runtime_and_compiler(clone, tmp_path):
    sources = clone / "native/byteps_host"
    names = [byteps_build.variant(sources), byteps_build.variant(None)]
    assert byteps_build.variant(sources) == names[0]
    fingerprint = Environment(clone)._fingerprint("cpu", "4.1.4")
    with open(sources / "reduce.cc", "a") as source:
        source.write("// changed\n")
    names.append(byteps_build.variant(sources))
    assert Environment(clone)._fingerprint("cpu", "4.1.4") != fingerprint
    assert len(set(names)) == 3
    source = byteps_build.byteps("cpu", clone)
    wheel = tmp_path / "cache" / names[2] / f"byteps-{source.version}-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir(parents=True)
    zipfile.ZipFile(wheel, "w").close()
    assert wheels.cached(tmp_path / "cache", source) == wheel
    (sources / "reduce.cc").write_text("")
    assert wheels.cached(tmp_path / "cache", source) is None


def test_byteps_for_cuda_has_nothing_of_the_host_runtime(clone, tmp_path):
    source = byteps_build.byteps("110", clone)
    assert source.arrange(tmp_path, Progress(1, tmp_path / "log", StringIO())) == {}
    assert "LDSHARED" not in source.env and "BYTEPS_NCCL_HOME" not in source.env
    shutil.rmtree(clone / "native")
    assert source.variant() == byteps_build.variant(None)


def test_the_host_runtime_compiles_into_what_byteps_links(clone, tmp_path):
    progress = Progress(1, tmp_path / "setup.log", StringIO())
    env = byteps_build.compile_host_runtime(clone / "native/byteps_host", tmp_path, progress)
    home = Path(env["BYTEPS_NCCL_HOME"])
    assert (home / "include/nccl.h").exists() and (home / "lib/libnccl_static.a").exists()
    for name in ("shm_open", "bind", "sendto", "nanosleep", "zmq_msg_recv", "pthread_mutex_unlock"):
        assert f"--wrap={name}," in env["LDSHARED"]


def test_a_path_that_the_linker_cannot_take_is_refused(clone, tmp_path):
    progress = Progress(1, tmp_path / "setup.log", StringIO())
    with pytest.raises(SetupError, match="WHEEL_CACHE"):
        byteps_build.compile_host_runtime(clone / "native/byteps_host", tmp_path / "a b", progress)


def test_a_command_that_fails_names_the_log_and_shows_its_end(tmp_path):
    progress = Progress(1, tmp_path / "setup.log", StringIO())
    with pytest.raises(SetupError) as failure:
        progress.run(["sh", "-c", "seq 1000; exit 3"], "counting")
    lines = str(failure.value).splitlines()
    assert "counting failed (exit code 3)" in lines[0] and str(tmp_path / "setup.log") in lines[0]
    assert [line.strip() for line in lines[1:]] == [str(number) for number in range(981, 1001)]


def test_a_command_past_its_limit_is_ended_with_its_children(tmp_path):
    progress = Progress(1, tmp_path / "setup.log", StringIO())
    pid_file = tmp_path / "pid"
    with pytest.raises(SetupError, match="within 1 seconds"):
        progress.run(["sh", "-c", f"sleep 300 & echo $! > {pid_file}; wait"], "sleeping", limit=1)
    child = Path("/proc") / pid_file.read_text().strip() / "stat"
    end = time.monotonic() + 10
    while child.exists() and child.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < end, "the command's child outlived it"
        time.sleep(0.05)
