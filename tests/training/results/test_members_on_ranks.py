"""Members over two real ranks, killed in the second one and resumed."""

from __future__ import annotations

from pathlib import Path

from tests.processes import ROOT, start_ranks
from tests.training.results.test_of_run import TINY
from training.results.record import FINISHED, UNFINISHED, has_result, read_result

WORKER = ROOT / "tests/training/results/members_worker.py"


def test_killed_in_the_second_and_resumed(tmp_path):
    folder = tmp_path / "members"
    words = [str(folder), *TINY, "--num_steps", "40"]
    second = folder / "seed_1"
    with start_ranks(WORKER, 2, "mpirun", args=words) as run:
        run.kill_when((second / "0000003.json").exists)
    first = (folder / "seed_0" / "results.json").read_bytes()
    assert read_result(str(second)).status == UNFINISHED and not has_result(str(folder / "seed_2"))

    with start_ranks(WORKER, 2, "mpirun", args=words) as run:
        said = run.wait().check().ranks
    assert "1 of 3 runs have ended before\nrun 2 of 3: seed_1\n" in said[0].stdout
    assert "continuing after step " in said[0].stdout and "run " not in said[1].stdout
    assert (folder / "seed_0" / "results.json").read_bytes() == first
    for number in (0, 1, 2):
        found = read_result(str(folder / f"seed_{number}"))
        assert (found.status, found.steps, found.seed) == (FINISHED, 40, number)
        assert (found.backend, found.world_size, found.hosts) == ("horovod", 2, 1)
    assert len({read_result(str(path)).parameters for path in Path(folder).glob("seed_*")}) == 3
