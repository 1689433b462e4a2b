"""State of a run as one of its processes sees it without help from the others: the variables of its launcher,
/proc of this host, and whether the other hosts and BytePS's scheduler answer. For error messages; standard
library only."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Mapping, NamedTuple

from base.launchers import RANK_VARIABLES, hosts_of_run, launched_rank, number_in
from base.processes import Running, running

# By a launcher's rank variable, the variables that together identify one of its runs: Open MPI 4 and 5,
# horovodrun, Slurm's PMIx. MPICH has none.
_RUN_VARIABLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("OMPI_COMM_WORLD_RANK", ("OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")),
    ("OMPI_COMM_WORLD_RANK", ("PMIX_NAMESPACE",)),  # prterun-HOST-PID@1
    ("HOROVOD_RANK", ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")),
    ("PMIX_RANK", ("PMIX_NAMESPACE",)),
)
_LOCAL_SIZES = ("BYTEPS_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE")
_SSH_PORT = 22  # where the launcher reaches a host; a host that is there accepts or rejects the connection
_BYTEPS_RUN = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
# A BytePS run of one worker has nothing that is its own; its ranks are known by their command line as well.
_BYTEPS_WORKER = ("DMLC_ROLE", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_SIZE")


class Part(NamedTuple):
    """A process of this run on this host. `role`: "rank 3", "a BytePS server" or "the BytePS scheduler"."""

    role: str
    pid: int
    stopped: bool


def uses_byteps(environ: Mapping[str, str]) -> bool:
    """Returns whether this process is a BytePS worker that has servers and a scheduler."""
    if environ.get("DMLC_ROLE") != "worker" or any(name not in environ for name in _BYTEPS_RUN):
        return False
    return environ.get("DMLC_NUM_WORKER") != "1" or environ.get("BYTEPS_FORCE_DISTRIBUTED", "0") != "0"


def parts_on_this_host(environ: Mapping[str, str]) -> list[Part]:
    """The run's processes on this host, this one included, by role and process id; empty under a launcher
    whose runs cannot be told apart."""
    if environ.get("DMLC_ROLE") == "worker":
        wanted: list[tuple[str, ...]] = [_BYTEPS_RUN if uses_byteps(environ) else _BYTEPS_WORKER]
    else:
        wanted = [names for rank, names in _RUN_VARIABLES if rank in environ]
    known = next((names for names in wanted if all(name in environ for name in names)), None)
    if known is None:
        return []
    marks = {name: environ[name] for name in known}
    processes = list(running())
    alike = known == _BYTEPS_WORKER
    own_command = next((each.words for each in processes if each.pid == os.getpid()), []) if alike else None
    by_role: dict[str, list[Running]] = {}
    for each in processes:
        if any(each.variables.get(name) != value for name, value in marks.items()):
            continue
        role = _role(each.variables, each.words)
        if role and own_command in (None, each.words):
            by_role.setdefault(role, []).append(each)
    parts = []
    for role, found in by_role.items():
        if role.startswith("rank "):
            # The rank with what it has started, and what it was started by: a stopped one speaks for all.
            found = [min(found, key=lambda each: (each.state not in "Tt", each.pid))]
        parents = {each.parent for each in found}
        parts += [Part(role, each.pid, each.state in "Tt") for each in found if each.pid not in parents]
    return sorted(parts)


def scheduler_address(environ: Mapping[str, str]) -> str:
    """Address of BytePS's scheduler, host:port; empty where there is none to connect to."""
    # Another van than ZeroMQ's would not greet.
    if not uses_byteps(environ) or environ.get("DMLC_ENABLE_RDMA", "0") not in ("0", "", "zmq"):
        return ""
    return f"{environ['DMLC_PS_ROOT_URI']}:{environ['DMLC_PS_ROOT_PORT']}"


def scheduler_state(environ: Mapping[str, str], seconds: float = 1.0) -> str:
    """Result of a connection to BytePS's scheduler: "answers" when it greets, else what it does instead.
    Takes at most about `seconds`."""
    host, port = environ["DMLC_PS_ROOT_URI"], number_in(environ, "DMLC_PS_ROOT_PORT")
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            # ZeroMQ greets whoever connects; the kernel of a stopped process accepts, but nobody greets.
            return "answers" if connection.recv(1) else "closes connections"
    except socket.timeout:
        return "does not answer"
    except OSError as error:
        return f"cannot be reached ({error.strerror or error})"


def silent_hosts(environ: Mapping[str, str], seconds: float = 1.0) -> list[str]:
    """The run's other hosts, where its launcher has announced them, that neither accept nor reject a
    connection within `seconds`."""
    hosts = hosts_of_run(environ)
    own = hosts[launched_rank(environ)] if launched_rank(environ) < len(hosts) else ""
    others = dict.fromkeys(host for host in hosts if host != own)
    answered: set[str] = set()

    def ask(host: str) -> None:
        try:
            socket.create_connection((host, _SSH_PORT), timeout=seconds).close()
        except ConnectionRefusedError:
            pass
        except OSError:
            return
        answered.add(host)

    # Threads, because looking for the address of a name may take long without a network.
    threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in others]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [host for host in others if host not in answered]


def describe_run(environ: Mapping[str, str], ask_others: bool) -> str:
    """The run as seen from this process, as one clause for an error line; empty if nothing is. Asking other
    hosts and BytePS's scheduler may take two seconds."""
    parts = parts_on_this_host(environ)
    said = []
    stopped = [part for part in parts if part.stopped]
    if stopped:
        names = ", ".join(f"{part.role} (pid {part.pid})" for part in stopped)
        said.append(f"stopped by a signal on this host: {names}")
    here = _missing_here(environ, parts)
    if here:
        said.append(here)
    for host in silent_hosts(environ) if ask_others else ():
        ranks = [str(rank) for rank, where in enumerate(hosts_of_run(environ)) if where == host]
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        said.append(f"{host} ({named}) does not answer at port {_SSH_PORT}")
    address = scheduler_address(environ)
    if address and ask_others:
        said.append(f"the BytePS scheduler at {address} {scheduler_state(environ)}")
    return "; ".join(said)


def _missing_here(environ: Mapping[str, str], parts: list[Part]) -> str:
    ranks = sum(part.role.startswith("rank ") for part in parts)
    if uses_byteps(environ):
        # Which of them belong on other hosts is not known here.
        servers = sum(part.role == "a BytePS server" for part in parts)
        workers = number_in(environ, "DMLC_NUM_WORKER", 1) * number_in(environ, "BYTEPS_LOCAL_SIZE", 1)
        wanted = number_in(environ, "DMLC_NUM_SERVER", 1)
        if ranks < workers or servers < wanted:
            return f"on this host run {ranks} of {workers} ranks and {servers} of {wanted} BytePS servers"
        return ""
    local = next((number_in(environ, name) for name in _LOCAL_SIZES if name in environ), 0)
    return f"on this host run {ranks} of its {local} ranks" if parts and ranks < local else ""


def _role(variables: Mapping[str, str], argv: list[str]) -> str:
    role = variables.get("DMLC_ROLE")
    if role == "scheduler" or role == "server":
        # Launchers and shells around them have the same variables, but not these words for themselves.
        if "import byteps.server" not in argv:
            return ""
        return "the BytePS scheduler" if role == "scheduler" else "a BytePS server"
    if role == "worker" and "BYTEPS_LOCAL_RANK" not in variables:
        return ""  # bpslaunch itself
    if role == "worker" or any(name in variables for name in RANK_VARIABLES):
        return f"rank {launched_rank(variables)}"
    return ""
