"""Members over two real ranks, killed in the second one and resumed."""

from __future__ import annotations

from tests.finetuned import classifier, write_data
from tests.processes import ROOT, start_ranks
from training.results.record import FINISHED, UNFINISHED, has_result, read_result

SCRIPT, ENV = ROOT / "finetune_classifier.py", {"OMP_NUM_THREADS": "1"}


def test_killed_in_the_second_and_resumed(tmp_path):
    write_data(tmp_path)
    folder = tmp_path / "members"
    given = {"seed": None, "seeds": 3, "num_steps": 18, "ckpt_interval": 3, "resume": True}
    words = classifier(tmp_path, folder, **given)
    second = folder / "seed_1"
    with start_ranks(SCRIPT, 2, "mpirun", args=words, env=ENV) as run:
        run.kill_when((second / "0000003.json").exists)
    first = (folder / "seed_0" / "results.json").read_bytes()
    assert read_result(str(second)).status == UNFINISHED and not has_result(str(folder / "seed_2"))

    with start_ranks(SCRIPT, 2, "mpirun", args=words, env=ENV) as run:
        said = run.wait().check().ranks
    assert "1 of 3 runs have ended before\nrun 2 of 3: seed_1\n" in said[0].stdout
    assert "continuing after step " in said[0].stdout and "run " not in said[1].stdout
    assert (folder / "seed_0" / "results.json").read_bytes() == first
    for number in (0, 1, 2):
        found = read_result(str(folder / f"seed_{number}"))
        assert (found.status, found.steps, found.seed) == (FINISHED, 18, number)
        assert (found.backend, found.world_size, found.hosts) == ("horovod", 2, 1)
    assert len({read_result(str(path)).parameters for path in folder.glob("seed_*")}) == 3
