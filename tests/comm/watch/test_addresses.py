"""Addresses at which rank 0 listens: from made-up machines, and this one's."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from comm.watch.addresses import Interface, candidates, choose, interfaces, machine, shares

BYTEPS = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}
BYTEPS.update(DMLC_PS_ROOT_URI="10.0.0.1", DMLC_PS_ROOT_PORT="9091")


def host(**addresses):
    return [Interface(name, ipaddress.ip_interface(each)) for name, each in addresses.items()]


OWN = host(eth0="8.8.4.7/24", eth1="10.0.0.7/16", docker0="172.17.0.1/16", ib0="fd00::7/64")


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["eth0", "eth1", "docker0", "ib0"]),
        ({"OMPI_MCA_btl_tcp_if_include": "eth1"}, ["eth1"]),
        ({"OMPI_MCA_oob_tcp_if_include": "10.0.0.0/16,fd00::/64"}, ["eth1", "ib0"]),
        ({"HOROVOD_GLOO_IFACE": "ib0"}, ["ib0"]),
        ({"NCCL_SOCKET_IFNAME": "=eth1"}, ["eth1"]),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, ["eth0", "eth1", "docker0", "ib0"]),
        ({"DMLC_INTERFACE": "eth1"}, ["eth0", "eth1", "docker0", "ib0"]),  # not a BytePS run
        ({**BYTEPS, "DMLC_INTERFACE": "eth1"}, ["eth1"]),
        ({**BYTEPS, "DMLC_NODE_HOST": "8.8.4.7", "DMLC_INTERFACE": "eth1"}, ["eth0"]),
        ({"HOROVOD_GLOO_IFACE": "eth9"}, ["eth0", "eth1", "docker0", "ib0"]),
    ],
)
def test_interfaces_that_the_launcher_names(environ, names):
    assert [each.name for each in candidates(OWN, environ)] == names


@pytest.mark.parametrize(
    ("address", "shared"),
    [
        ("10.0.3.9/16", True),
        ("10.1.0.9/16", False),
        ("10.0.3.9/24", False),  # the hosts do not agree on the network
        ("172.17.0.1/16", False),  # Docker's, the same on every machine
        ("fd00::9/64", True),
        ("8.8.4.9/24", True),
    ],
)
def test_networks_that_two_machines_share(address, shared):
    assert shares(OWN, address) is shared


@pytest.mark.parametrize(
    ("shared", "chosen"),
    [
        ([True, True, False, True], ["10.0.0.7", "fd00::7"]),  # the public one is not needed
        ([True, False, False, False], ["8.8.4.7"]),
        ([False, False, False, False], ["8.8.4.7", "10.0.0.7", "172.17.0.1", "fd00::7"]),
    ],
)
def test_networks_that_are_chosen(shared, chosen):
    assert choose([str(each.address) for each in OWN], shared) == chosen


def test_this_machine():
    assert machine() == machine() and len(machine()) == 32
    for each in interfaces():
        assert not each.address.is_loopback
        family = socket.AF_INET if each.address.version == 4 else socket.AF_INET6
        with socket.create_server((str(each.address.ip), 0), family=family):
            pass


def test_a_machine_that_cannot_be_known_is_nobodys(tmp_path):
    assert machine(tmp_path) != machine(tmp_path)
