"""native/ps_lite/same_host.h: whose memory a BytePS server reads and writes."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys

import pytest

from setup import byteps_build
from tests.processes import LIMIT, ROOT, run_command

CALLS = """
#include "same_host.h"
extern "C" {
void* open_tickets(const char* address) { return new ps::Tickets(address); }
void close_tickets(void* tickets) { delete static_cast<ps::Tickets*>(tickets); }
int holder(void* tickets, const char* ticket) {
  return static_cast<ps::Tickets*>(tickets)->Holder(std::string(ticket, ps::kTicketBytes));
}
int ask(const char* address, char* ticket) {
  const std::string got = ps::AskForTicket(address);
  memcpy(ticket, got.data(), got.size());
  return static_cast<int>(got.size());
}
}
"""
ASK = """
import ctypes, sys
library, ticket = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(16)
size = library.ask(sys.argv[2].encode(), ticket)
print(ticket.raw[:size].hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same_host")
    (folder / "calls.cc").write_text(CALLS)
    options = [word for word in byteps_build.COMPILE if word != "-fvisibility=hidden"]
    words = [*options, "-Werror", "-shared", f"-I{ROOT / 'native' / 'ps_lite'}", "-o", folder / "calls.so"]
    subprocess.run([*words, folder / "calls.cc", "-pthread"], check=True, timeout=LIMIT)
    loaded = ctypes.CDLL(str(folder / "calls.so"))
    loaded.open_tickets.restype = ctypes.c_void_p
    loaded.close_tickets.argtypes = [ctypes.c_void_p]
    loaded.holder.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return loaded


@pytest.fixture
def server(library):
    """The tickets of a server, and its address."""
    address = f"tcp://127.0.0.1:{os.getpid()}"
    tickets = library.open_tickets(address.encode())
    yield tickets, address
    library.close_tickets(tickets)


def connected(address: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(LIMIT)
    client.connect(f"\0bert-ps {os.getuid()} {address}")
    return client


def test_a_worker_gets_a_ticket(library, server):
    tickets, address = server
    words = [sys.executable, "-c", ASK, library._name, address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        ticket = bytes.fromhex(worker.stdout.readline())
        assert len(ticket) == 16 and library.holder(tickets, ticket) == worker.pid
        worker.stdin.close()
    assert library.holder(tickets, bytes(16)) == 0 == library.holder(tickets, ticket[::-1])


def test_no_server_no_ticket(library):
    assert library.ask(b"tcp://127.0.0.1:1", ctypes.create_string_buffer(16)) == 0


def test_who_cannot_show_that_its_memory_is_read_gets_none(library, server):
    """As a process of another namespace that the server takes for a third one."""
    number = ctypes.c_uint64(7)
    for address, value in ((ctypes.addressof(number), 8), (8, 7)):
        with connected(server[1]) as client:
            client.sendall(address.to_bytes(8, sys.byteorder) + value.to_bytes(8, sys.byteorder))
            assert client.recv(16) == b""
    with connected(server[1]) as client:
        client.sendall(ctypes.addressof(number).to_bytes(8, sys.byteorder) + bytes(number))
        assert len(client.recv(16)) == 16


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, and read its memory")
def test_another_user_gets_none(library, server):
    program = (
        "import ctypes, os, socket, sys\n"
        "os.setuid(65534)\n"
        "number = ctypes.c_uint64(7)\n"
        "client = socket.socket(socket.AF_UNIX)\n"
        f"client.connect('\\0bert-ps {os.getuid()} {server[1]}')\n"
        "try:\n"
        "    client.sendall(ctypes.addressof(number).to_bytes(8, sys.byteorder) + bytes(number))\n"
        "    print(client.recv(16))\n"
        "except ConnectionError:\n"
        "    print(b'')\n"
    )
    assert run_command([sys.executable, "-c", program]).check().stdout == "b''\n"


def test_a_name_that_is_taken_is_left(library, server):
    """The server does without, and its end is not waited for."""
    second = library.open_tickets(server[1].encode())
    library.close_tickets(second)
    test_a_worker_gets_a_ticket(library, server)
