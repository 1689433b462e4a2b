"""Addresses that ps-lite will listen at; a run's real sockets: tests/comm/test_watchdog.py."""

from __future__ import annotations

import pytest

from hosts.launching.over_byteps import interface_address, listening_address, warning
from hosts.launching.parts import Access, Rendezvous, plan_parts

HOSTS = ["10.0.0.1", "10.0.0.2"]


def plan(numeric, environ, here=()):
    workers = [(host, 1) for host in HOSTS]
    parts = plan_parts(workers, 2, Rendezvous(HOSTS[0], HOSTS[0], 9091), numeric, ("python", "x.py"), "run")
    return parts, Access(("ssh",), frozenset(here), "/", environ, {})


def test_every_part_has_an_address():
    parts, access = plan({host: host for host in HOSTS}, {})
    found = [(part.name, listening_address(part, access)) for part in parts]
    assert found == [
        ("scheduler", HOSTS[0]), ("server 0", HOSTS[0]), ("server 1", HOSTS[1]),
        ("rank 0", HOSTS[0]), ("rank 1", HOSTS[1]),
    ]  # fmt: skip
    assert warning(parts, access) == ""


def test_an_interface_has_an_address_on_this_machine_only():
    parts, access = plan({}, {"DMLC_INTERFACE": "lo"}, here=HOSTS[:1])
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
    parts, access = plan({HOSTS[0]: HOSTS[0], HOSTS[1]: address}, {})
    said = warning(parts, access)
    where = "all addresses of its host" if address == "0.0.0.0" else address
    assert f": {where} (server 1, rank 1); " in said if public else said == ""


def test_a_run_without_servers_listens_nowhere():
    parts = plan_parts([("8.8.4.4", 2)], 0, None, {}, ("python", "x.py"), "run")
    access = Access((), frozenset(), "/", {}, {})
    assert warning(parts, access) == ""
