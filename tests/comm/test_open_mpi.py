"""Open MPI's all-reduce of two ranks, as comm.horovod has it chosen."""

from __future__ import annotations

import sys

import pytest

from comm.horovod import choose_allreduce, leave_tcp_out
from hosts.mpirun import AS_ROOT
from tests.processes import run_command, run_ranks

# Its own choice takes memory for half of an array, here of 80 MB, and gives it back: the kernel then makes
# the same 9,766 pages again for each.
CODE = """
import resource
import mxnet as mx
import numpy as np
from comm.horovod import HorovodCommunicator

comm = HorovodCommunicator()
array = mx.nd.full((20_000_000,), comm.rank + 1)
for turn in range(3):
    array.wait_to_read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert comm.scaled_average([array]) == 2
    array.wait_to_read()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert (array.asnumpy() == 3 * 2**turn).all()
print(faults)
comm.close()
"""

PRINTED = """
import os
said = [os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "NCCL_DEBUG")]
os.write(1, (" ".join(said) + "\\n").encode())  # in one piece
"""


def test_two_ranks_exchange_large_arrays_in_segments():
    result = run_ranks(CODE, 2, env={"OMP_NUM_THREADS": "1"}).check()
    assert max(int(rank.stdout.split()[-1]) for rank in result.ranks) < 2000


def test_the_command_line_of_the_seeds(tmp_path):
    """As GluonNLP's pages have it, for Open MPI 4.1 and 5.0."""
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    words = ["mpirun", "-np", "2", "--hostfile", tmp_path / "hosts", "-map-by", "ppr:2:socket"]
    words += ["-mca", "pml", "ob1", "-mca", "btl", "^openib", "-mca", "btl_tcp_if_exclude", "docker0,lo"]
    words += ["-x", "NCCL_DEBUG=VERSION", "-x", "PATH", sys.executable, "-c", PRINTED]
    result = run_command(words, env=AS_ROOT).check()
    assert sorted(result.stdout.split("\n")) == ["", "0 2 VERSION", "1 2 VERSION"]


def test_a_choice_of_the_user_takes_the_place_of_the_rules():
    own = {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}
    choose_allreduce(own)
    assert list(own) == ["OMPI_MCA_coll_tuned_allreduce_algorithm"]


@pytest.mark.parametrize(
    ("local", "btl", "then"),
    [
        (2, None, "^tcp,openib,ofi,uct"),
        (2, "^openib,ofi", "^tcp,openib,ofi"),
        (2, "self,tcp", "self,tcp"),
        (1, "^ofi", "^ofi"),
    ],
)
def test_ranks_of_one_host_open_no_ports(local, btl, then):
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": str(local)}
    environ.update({"OMPI_MCA_btl": btl} if btl else {})
    leave_tcp_out(environ)
    assert environ["OMPI_MCA_btl"] == then
