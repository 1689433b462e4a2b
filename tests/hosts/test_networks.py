"""--network: variables with their reasons, in what hparams.py prints and hosts/launch.py starts."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys

import pytest

import hparams
from base.errors import InputError
from hosts.networks import KINDS, read_network
from tests.hosts.launcher import HVD
from tests.processes import ROOT, run_command

HOSTS = ["--hostfile", str(ROOT / "hosts/4x_p3dn")]
TOKENS = ["--tokens_per_gpu", "8192"]
OWN = ["--", "--data", "/c/*.txt", "--vocab", "v"]
ALL = ["tcp", "tcp:ens5", "tcp:ens5,ens6", "efa", "infiniband", "infiniband:mlx5_0,mlx5_1"]


def printed(backend: str, *words: str) -> tuple[list[str], list[str]]:
    """Words of the command that hparams.py prints, and the lines of comment above it."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert hparams.main([*TOKENS, *HOSTS, "--launch", backend, *words, *OWN]) == 0
    lines = out.getvalue().splitlines()
    comment = [line for line in lines if line.startswith("# ")]
    return shlex.split(" ".join(line.rstrip("\\") for line in lines if not line.startswith("#"))), comment


def exported(words: list[str]) -> dict[str, str]:
    pairs = [after for before, after in zip(words, words[1:]) if before == "-x" and "=" in after]
    assert len({pair.partition("=")[0] for pair in pairs}) == len(pairs), "mpirun takes no name twice"
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("given", ALL)
def test_every_variable_stands_there_with_its_reason(given):
    plain = exported(printed("hvd")[0])
    words, comment = printed("hvd", "--network", given)
    network = read_network(given, "hvd")
    added = {name: value for name, value in exported(words).items() if plain.get(name) != value}
    added.pop("NCCL_SOCKET_IFNAME", None)  # its value is --network's own
    assert added == {each.name: each.value for each in network.settings()}
    for name, value in added.items():
        (line,) = (line for line in comment if line.startswith(f"# {name}={value}: "))
        assert len(line) > len(f"# {name}={value}: ") + 20
    assert network.kind in KINDS


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("--network tcp:ens5,ens6", "NCCL_SOCKET_IFNAME", "ens5,ens6"),
        # NCCL fails without the network that is named, instead of taking TCP.
        ("--network efa", "NCCL_NET", "AWS Libfabric"),
        ("--network infiniband:mlx5_0", "NCCL_IB_HCA", "=mlx5_0"),
        ("", "NCCL_NET", None),
        ("--network infiniband --interface ib0", "NCCL_SOCKET_IFNAME", "ib0"),
        ("--network infiniband --interface ib0", "NCCL_NET", "IB"),
    ],
)
def test_what_is_named_is_used_by_all_layers(options, name, value):
    words, _ = printed("hvd", *options.split())
    assert exported(words).get(name) == value
    if "tcp:" in options:
        assert words[words.index("btl_tcp_if_include") + 1] == value and "btl_tcp_if_exclude" not in words


def test_byteps_takes_one_interface():
    words, _ = printed("byteps", "--network", "tcp:ens5")
    assert words[words.index("--interface") + 1] == "ens5" and "DMLC_INTERFACE=ens5" in words


def test_the_launcher_starts_the_same_and_says_why():
    result = run_command([*HVD, *HOSTS, "--network", "efa", "--dry_run", "--", "hparams.py"]).check()
    started = exported(shlex.split(result.stdout.partition("\n")[2]))
    expected = {"FI_PROVIDER": "efa", "NCCL_NET": "AWS Libfabric", "NCCL_DEBUG": "INFO"}
    assert expected.items() <= started.items()
    assert result.stderr.count("launch: --network efa: ") == len(read_network("efa", "hvd").settings())


def test_the_launcher_leaves_horovods_fusion_to_the_ranks():
    """On CPUs they turn it off, so that sums of more than two ranks have the same bits again; a user's own
    value reaches all of them."""
    command = [*HVD, "--dry_run", *HOSTS, "--", "hparams.py"]
    plain = run_command(command, env={"HOROVOD_FUSION_THRESHOLD": None}).check().stdout
    assert "MXNET_SAFE_ACCUMULATION=1" in plain and "HOROVOD_" not in plain
    chosen = run_command(command, env={"HOROVOD_FUSION_THRESHOLD": "1048576"}).check().stdout
    assert " -x HOROVOD_FUSION_THRESHOLD " in chosen


@pytest.mark.parametrize(
    ("given", "backend", "interface", "said"),
    [
        ("token-ring", "hvd", None, "write tcp"),
        ("tcp:", "hvd", None, "write tcp"),
        ("tcp:a,a", "hvd", None, "write tcp"),
        ("tcp:a b", "hvd", None, "write tcp"),
        ("efa:rdmap0", "hvd", None, "takes all EFA devices"),
        ("efa", "byteps", None, "BytePS is built for TCP here"),
        ("infiniband", "byteps", None, "BytePS is built for TCP here"),
        ("tcp:a,b", "byteps", None, "name one interface"),
        ("tcp:a", "hvd", "b", "--interface b: --network tcp:a names the interface already"),
    ],
)
def test_bad_networks(given, backend, interface, said):
    with pytest.raises(InputError, match=said):
        read_network(given, backend, interface)


def test_bad_networks_are_one_line_of_the_commands():
    plan = [sys.executable, ROOT / "hparams.py", *TOKENS, "--network", "efa"]
    for words, said in (
        ([*plan, *HOSTS, "--launch", "byteps", *OWN], "hparams.py: --network efa: BytePS"),
        ([*plan, "--num_gpus", "8"], "hparams.py: --network goes with --launch only"),
        ([*HVD, *HOSTS, "--network", "x", "--", "hparams.py"], "launch: --network x: write"),
    ):
        result = run_command(words)
        assert result.returncode == 2 and result.stderr.startswith(said), result.describe()
