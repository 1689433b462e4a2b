"""The processes that a host file becomes, the addresses of hosts/addresses.py, and those at which ps-lite
will listen; a run's real sockets: tests/comm/watch/test_watchdog.py."""

from __future__ import annotations

import socket
import sys

import pytest

from base.errors import InputError
from base.launchers import hosts_of_run
from hosts.addresses import addresses, free_port, is_here
from hosts.launching import over_mpirun
from hosts.launching.over_byteps import interface_address, listening_address, warning
from hosts.launching.over_mpirun import Mpirun
from hosts.launching.parts import Access, Rendezvous, Wiring, plan_parts, python_of

P3DN = [(f"10.0.0.{n}", 8) for n in range(1, 5)]


def plan(workers, num_servers, command=("python", "x.py")):
    place = Rendezvous("10.0.0.1", "10.0.0.1", 9091)
    return plan_parts(workers, num_servers, place, {host: host for host, _ in workers}, command, "this-run")


def test_a_host_that_is_listed_twice():
    parts = plan([("a", 2), ("b", 2), ("a", 2)], 5)
    assert [part.host for part in parts if part.role == "server"] == ["a", "b", "a", "b", "a"]
    ranks = [part for part in parts if part.role == "rank"]
    assert [part.host for part in ranks] == ["a", "a", "b", "b", "a", "a"]
    assert [part.environment["DMLC_WORKER_ID"] for part in ranks] == ["0", "0", "1", "1", "2", "2"]
    assert [part.environment["RANKS_ON_HOST"] for part in ranks] == ["4", "4", "2", "2", "4", "4"]
    assert [hosts_of_run(part.environment) for part in ranks] == [[part.host for part in ranks]] * 6
    assert [part.name for part in ranks] == [f"rank {n}" for n in range(6)]


def test_options_of_the_users_for_mpirun_take_the_place_of_ours():
    """Open MPI 4 takes no parameter twice, and of other options the last one."""
    own = ["-mca", "pml", "ucx", "--bind-to", "core", "-x", "NCCL_DEBUG=INFO"]
    wiring = Wiring("hosts", None, (), {})
    (part,), _ = over_mpirun.plan([("localhost", 2)], ["x"], wiring, Mpirun(("mpirun", *own), False))
    assert part.command[0] == "mpirun" and part.command[-len(own) - 1 :] == (*own, "x")
    assert part.command.count("pml") == 1 and "^openib,ofi,uct" in part.command


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (["python", "x.py"], "python"),
        (["/opt/bin/python3.10", "x.py"], "/opt/bin/python3.10"),
        (["./train", "python"], sys.executable),
        (["pythonic"], sys.executable),
    ],
)
def test_servers_run_under_the_ranks_interpreter(command, python):
    assert python_of(command) == python
    assert plan(P3DN, 1, command)[1].command == (python, "-c", "import byteps.server")


def test_this_machine():
    own = socket.gethostname()
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1", own):
        assert is_here(host), host
    for host in ("192.0.2.1", "node-2", f"user@{own}", "user@localhost"):
        assert not is_here(host), host


def test_addresses_of_this_machine_alone():
    assert addresses(["localhost", socket.gethostname()], "file") == {
        "localhost": "127.0.0.1",
        socket.gethostname(): "127.0.0.1",
    }


def test_addresses_of_several_machines():
    numeric = addresses(["192.0.2.1", "someone@192.0.2.2"], "file")
    assert numeric == {"192.0.2.1": "192.0.2.1", "someone@192.0.2.2": "192.0.2.2"}
    with pytest.raises(InputError, match="name.invalid has no IPv4 address"):
        addresses(["192.0.2.1", "name.invalid"], "file")
    assert addresses(["192.0.2.1", "name.invalid"], "file", lenient=True)["name.invalid"] == "name.invalid"
    for loopback in ("localhost", "127.0.0.1", "user@localhost"):
        with pytest.raises(InputError, match=f"{loopback} means another machine on each host"):
            addresses([loopback, "192.0.2.1"], "file")


def test_a_free_port():
    port = free_port("127.0.0.1")
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        assert free_port("127.0.0.1") != port
    with pytest.raises(OSError):
        free_port("192.0.2.1")


def test_announced_hosts_that_are_none():
    for text in ("", "a", "a:", "a:²", "a:9999999999", f"a:{'9' * 5000}", ",,:", "a:-1"):
        assert hosts_of_run({"RUN_HOSTS": text}) == []
    assert hosts_of_run({"RUN_HOSTS": "a:x,b:2"}) == ["b", "b"]


HOSTS = ["10.0.0.1", "10.0.0.2"]


def exposed(numeric, environ, here=()):
    workers = [(host, 1) for host in HOSTS]
    parts = plan_parts(workers, 2, Rendezvous(HOSTS[0], HOSTS[0], 9091), numeric, ("python", "x.py"), "run")
    return parts, Access(("ssh",), frozenset(here), "/", environ, {})


def test_every_part_has_an_address():
    parts, access = exposed({host: host for host in HOSTS}, {})
    found = [(part.name, listening_address(part, access)) for part in parts]
    assert found == [
        ("scheduler", HOSTS[0]), ("server 0", HOSTS[0]), ("server 1", HOSTS[1]),
        ("rank 0", HOSTS[0]), ("rank 1", HOSTS[1]),
    ]  # fmt: skip
    assert warning(parts, access) == ""


def test_an_interface_has_an_address_on_this_machine_only():
    parts, access = exposed({}, {"DMLC_INTERFACE": "lo"}, here=HOSTS[:1])
    assert [listening_address(part, access) for part in parts] == [HOSTS[0], "127.0.0.1", "", "127.0.0.1", ""]
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("none-such-interface") == interface_address("") == ""


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.4.4", True),
        ("2001:4860::8", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),  # carriers' networks
        ("169.254.7.7", False),
        ("127.0.0.1", False),
        ("fd00::1", False),
        ("a-name", False),
    ],
)
def test_public_addresses(address, public):
    parts, access = exposed({HOSTS[0]: HOSTS[0], HOSTS[1]: address}, {})
    said = warning(parts, access)
    where = "all addresses of its host" if address == "0.0.0.0" else address
    assert f": {where} (server 1, rank 1); " in said if public else said == ""


def test_a_run_without_servers_listens_nowhere():
    parts = plan_parts([("8.8.4.4", 2)], 0, None, {}, ("python", "x.py"), "run")
    access = Access((), frozenset(), "/", {}, {})
    assert warning(parts, access) == ""
