"""Members: their names, what a folder has already, and the driver over one run after the other."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import Any, Sequence

import pytest

from base.command_line import OptionParser
from base.errors import InputError, NotFiniteError
from base.options import add_options, options_in
from comm.local import LocalCommunicator
from tests.training.results.made import TUNED, written
from training.results.members import (
    MEMBERS_FILE,
    MOST,
    Member,
    MembersConfig,
    Plan,
    check_plan,
    has_plan,
    members_of,
    read_plan,
    run_members,
    write_plan,
)
from training.results.record import FAILED, FINISHED, NO_MEMORY, NOT_FINITE, UNFINISHED


def parsed(*words: str) -> argparse.Namespace:
    parser = OptionParser()
    add_options(parser.add_argument, options_in(MembersConfig), "seeds search")
    return parser.parse_args(words)


class TestOptions:
    def test_seeds(self):
        assert parsed("--seeds", "5").seeds == 5
        assert parsed("--seeds", "7, 1,3").seeds == (7, 1, 3)
        assert parsed().seeds is None and parsed().search is None

    @pytest.mark.parametrize("text", ["0", "-1", "x", "", "1,", "1,1", "1.5", "3,x"])
    def test_what_is_no_seeds(self, text):
        with pytest.raises(InputError, match="--seeds"):
            parsed(f"--seeds={text}")

    def test_search(self):
        found = parsed("--search", "lr=2e-5,3e-5", "epochs=2").search
        assert found == [("lr", ("2e-5", "3e-5")), ("epochs", ("2",))]

    @pytest.mark.parametrize(
        "text", ["lr", "lr=", "lr=1,,2", "lr=1,1", "output_dir=a,b", "seed=1,2", "lr=../x", "=1"]
    )
    def test_what_is_no_search(self, text):
        with pytest.raises(InputError, match="--search"):
            parsed("--search", text)


class TestMembers:
    def test_none(self):
        assert members_of(None, None, 3) == []

    def test_seeds_begin_with_the_one_given(self):
        found = members_of(3, None, 40)
        assert found == [Member(f"seed_{seed}", seed, {}) for seed in (40, 41, 42)]
        assert found[1].words == ["--seed", "41"]
        assert [each.seed for each in members_of((7, 1), None, None)] == [7, 1]

    def test_every_combination_and_of_each_all_seeds(self):
        found = members_of(2, [("lr", ("2e-5", "3e-5")), ("epochs", ("2", "3"))], None)
        names = ["lr_2e-5-epochs_2-seed_0", "lr_2e-5-epochs_2-seed_1", "lr_2e-5-epochs_3-seed_0"]
        assert [each.name for each in found[:3]] == names
        assert len({each.name for each in found}) == 8
        assert found[-1].words == ["--lr", "3e-5", "--epochs", "3", "--seed", "1"]

    def test_a_search_without_seeds_has_the_runs_own(self):
        found = members_of(None, [("lr", ("1", "2"))], 9)
        assert found == [Member(f"lr_{lr}", 9, {"lr": lr}) for lr in ("1", "2")]

    def test_what_contradicts_itself(self):
        with pytest.raises(InputError, match="--seed 3 beside --seeds 1,2"):
            members_of((1, 2), None, 3)
        with pytest.raises(InputError, match="lr twice"):
            members_of(None, [("lr", ("1",)), ("lr", ("2",))], None)
        with pytest.raises(InputError, match="are the most"):
            members_of(MOST + 1, None, None)


PLAN = Plan(members_of(3, None, None), {"lr": 3e-5, "files": ("a", "b")})


class TestPlan:
    def test_what_is_written_is_read(self, tmp_path):
        write_plan(str(tmp_path), PLAN)
        found = read_plan(str(tmp_path))
        assert list(found.members) == PLAN.members and found.options == {"lr": 3e-5, "files": ["a", "b"]}
        check_plan(str(tmp_path), PLAN, resume=True)
        with pytest.raises(InputError, match="fixed beforehand"):
            check_plan(str(tmp_path), Plan(members_of(4, None, None), PLAN.options), resume=True)

    def test_an_empty_folder_and_none(self, tmp_path):
        check_plan(str(tmp_path), PLAN, resume=False)
        check_plan(str(tmp_path / "new"), PLAN, resume=True)
        assert not has_plan(str(tmp_path))

    @pytest.mark.parametrize(
        "content",
        [
            "{", "[]", '{"format": 2}',
            '{"format": 1, "options": {}, "members": [{"name": "../x", "seed": 0, "setting": {}}]}',
            '{"format": 1, "options": {}, "members": [{"name": "", "seed": 0, "setting": {}}]}',
            '{"format": 1, "options": {}, "members": [{"name": "x"}]}',
            '{"format": 1, "options": {}, "members": []}',
            '{"format": 1, "options": {}, "members": [{"name": "a", "seed": 1e999, "setting": {}}]}',
            '{"format": 1, "options": {}, "members": [{"name": "a", "seed": 0, "setting": {"lr": []}}]}',
            '{"format": 1, "options": {}, "members": [{"name": "a", "seed": 0, "setting": {}},'
            ' {"name": "b", "seed": 0, "setting": {"lr": "1"}}]}',
        ],
    )  # fmt: skip
    def test_a_damaged_file_is_named(self, tmp_path, content):
        (tmp_path / MEMBERS_FILE).write_text(content)
        with pytest.raises(InputError, match=MEMBERS_FILE):
            read_plan(str(tmp_path))


class Runs:
    """In place of training: each member leaves the status that it is given, or what it raises."""

    def __init__(self, *outcomes: Any):
        self.outcomes = list(outcomes)
        self.names: list[str] = []

    def __call__(self, member: Member, folder: str, stop: Any) -> int:
        self.names.append(member.name)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            written(Path(folder), TUNED, status=NOT_FINITE)
            raise outcome
        if isinstance(outcome, signal.Signals):
            signal.raise_signal(outcome)
            outcome = 0
        written(Path(folder), TUNED, status=UNFINISHED if outcome else FINISHED)
        return int(outcome)


class Forgetful(LocalCommunicator):
    """Counts how often all arrays are let go."""

    forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1


def driven(folder: Path, *outcomes: Any) -> tuple[int, Sequence[str], list[str], Forgetful]:
    runs, notes, communicator = Runs(*outcomes), [], Forgetful()
    code = run_members(PLAN, str(folder), runs, communicator, notes.append)
    return code, runs.names, notes, communicator


class TestDriver:
    def test_one_after_the_other(self, tmp_path):
        code, names, notes, communicator = driven(tmp_path / "new", 0, 0, 0)
        assert (code, names) == (0, ["seed_0", "seed_1", "seed_2"])
        assert notes[0] == "run 1 of 3: seed_0" and communicator.forgotten == 2
        assert has_plan(str(tmp_path / "new"))

    def test_a_run_that_is_not_finite_is_followed_by_the_next(self, tmp_path):
        code, names, notes, _ = driven(tmp_path, 0, NotFiniteError("step 9"), 0)
        assert (code, names[-1]) == (0, "seed_2")
        assert "warning: seed_1: step 9" in notes
        assert "3 of 3 runs have ended before (seed_1: not finite)" in driven(tmp_path)[2]

    @pytest.mark.parametrize(("status", "again"), [(FAILED, True), (UNFINISHED, True), (NO_MEMORY, False)])
    def test_which_ends_are_final(self, tmp_path, status, again):
        for member in PLAN.members:
            written(tmp_path / member.name, TUNED, status=status)
        assert driven(tmp_path, 0, 0, 0)[1] == ([each.name for each in PLAN.members] if again else [])

    def test_a_run_that_a_signal_has_stopped_ends_the_whole_and_is_resumed(self, tmp_path):
        assert driven(tmp_path, 0, 143)[:2] == (143, ["seed_0", "seed_1"])
        assert driven(tmp_path, 0, 0)[:2] == (0, ["seed_1", "seed_2"])

    def test_another_error_ends_the_whole(self, tmp_path):
        with pytest.raises(MemoryError):
            driven(tmp_path, 0, MemoryError())

    def test_a_signal_between_two_runs_is_heard(self, tmp_path):
        code, names, notes, _ = driven(tmp_path, signal.SIGTERM)
        assert (code, names) == (143, ["seed_0"])
        assert notes[-1] == "stopped by a signal before seed_1; --resume continues"
        assert json.loads((tmp_path / "seed_0" / "results.json").read_text())["status"] == FINISHED
