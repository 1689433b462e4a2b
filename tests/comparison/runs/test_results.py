"""Figures of a setting, or its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comparison.runs import agreement
from comparison.runs.results import FAILED, NOT_RUN, OK, OUT_OF_MEMORY, finish, gather, traffic
from comparison.settings import Setting
from tests.comparison.synthetic import FACTS, PADDED, SEQUENCES, TOKENS, failed, profiled, record

ONE, TWO = Setting("hvd_mpi", 1, "float32", 512), Setting("hvd_mpi", 2, "float32", 512)
OTHER = Setting("byteps", 2, "float32", 512)
REPEATS = 5


def launches(setting, step_s=0.07, repeats=REPEATS, **changes):
    return [record(setting, repeat, step_s, **changes) for repeat in range(repeats)]


def only(records, setting=TWO, facts=FACTS):
    return gather(facts, records, [setting]).results[0]


def test_a_launch_counts_by_the_median_of_its_intervals_after_the_warm_up():
    times = [9.0, 9.0, 0.05, 0.06, 0.08, 5.0]  # two of warm-up, one slow interval
    found = only([record(TWO, repeat, times) for repeat in range(3)]).figures
    assert found.samples == {0: 0.07, 1: 0.07, 2: 0.07}


def test_figures_are_medians_over_launches_with_their_spread():
    records = [record(TWO, repeat, step_s) for repeat, step_s in enumerate([0.04, 0.05, 0.1])]
    found = only(records).figures
    assert found.step_s == pytest.approx((0.05, 0.045, 0.075, 0.04, 0.1))
    assert found.tokens_per_s.median == pytest.approx(2 * TOKENS / 0.05)
    assert found.padded_tokens_per_s.median == pytest.approx(2 * PADDED / 0.05)
    assert found.sequences_per_s.most == pytest.approx(2 * SEQUENCES / 0.04)
    assert found.padded_length == pytest.approx(PADDED / SEQUENCES)
    assert found.start_up_s == pytest.approx((3.1, 3.05, 3.15, 3.0, 3.2))


def test_peak_memory_is_the_greatest_of_each_role():
    records = [
        record(OTHER, 0, peak_bytes={"worker": 5, "server": 9}),
        record(OTHER, 1, peak_bytes={"worker": 7, "scheduler": 1}),
    ]
    assert only(records, OTHER).figures.peak_bytes == {"worker": 7, "server": 9, "scheduler": 1}


def test_communication_comes_from_the_profiled_launch_and_times_do_not():
    slow = profiled(TWO, exposed=20.0, hidden=5.0)
    found = only([*launches(TWO), replace(slow, intervals=record(TWO, 0, 7.0).intervals)]).figures
    assert set(found.breakdown.exposed_ms) == {20.0} and set(found.breakdown.under_way_ms) == {25.0}
    assert found.breakdown.exposed_share.median == pytest.approx(20.0 / 70.5)
    assert found.breakdown.launches == 1 and found.step_s.most == 0.07


def test_without_a_breakdown_the_times_stand_and_a_note_says_why():
    broken = profiled(TWO, breakdown=None, failure="no trace\nwas written")
    found = only([*launches(TWO), broken])
    assert found.kind == OK and found.figures.breakdown is None
    assert found.notes == ("the profiled launch gave no breakdown: no trace was written",)
    found = only([*launches(TWO), broken, profiled(TWO, repeat=1), profiled(TWO, repeat=2)])
    assert found.figures.breakdown.launches == 2
    assert found.notes == ("1 of 3 profiled launches gave no breakdown: no trace was written",)
    assert only(launches(TWO)).notes == ()


@pytest.mark.parametrize(
    "bad, kind, reason",
    [
        (failed(TWO, 2, "mpirun: rank 1 was killed"), FAILED, "failed: mpirun: rank 1 was killed"),
        (failed(TWO, 2, "bad_alloc", True), OUT_OF_MEMORY, "out of memory: bad_alloc"),
        (failed(TWO, 2, "MXNetError: out of memory", True), OUT_OF_MEMORY, "MXNetError: out of memory"),
    ],
)
def test_one_bad_launch_leaves_a_reason_and_no_figure(bad, kind, reason):
    records = [each for each in launches(TWO) if each.repeat != 2] + [bad]
    found = only(records)
    assert found.figures is None
    assert (found.kind, found.reason) == (kind, f"{reason} (in 1 of 5 launches)")


def test_out_of_memory_says_more_than_another_failure():
    found = only([failed(TWO, 0, "time limit"), failed(TWO, 1, "bad_alloc", True)])
    assert found.kind == OUT_OF_MEMORY and "bad_alloc" in found.reason


def test_a_setting_that_did_not_run_says_so():
    found = only([])
    assert (found.kind, found.reason, found.figures, found.launches) == (NOT_RUN, "not run yet", None, 0)
    profile = only([profiled(TWO, breakdown=None, failure="no such\nfile")])
    assert profile.reason == "not run yet; its profiled launch failed: no such file"


def test_a_failed_backend_does_not_take_part_in_the_vote():
    gloo = TWO._replace(backend="hvd_gloo")
    records = [*launches(TWO), failed(gloo, 0, "crash"), *launches(OTHER, scale=1.05)]
    found = gather(FACTS, records, [TWO, gloo, OTHER])
    assert [each.kind for each in found.results] == [agreement.UNDECIDED, FAILED, agreement.UNDECIDED]
    assert found.pairs == [] and list(found.curves) == [TWO, OTHER], "losses are shown all the same"


def test_groups_are_judged_apart():
    """Losses of another batch size or dtype are others, and rightly so."""
    small, large = OTHER, OTHER._replace(batch_size=1024)
    records = [*launches(TWO), *launches(small)]
    for setting in (large, large._replace(backend="hvd_mpi")):
        records += launches(setting, scale=1.5)
    planned = [TWO, small, large._replace(backend="hvd_mpi"), large]
    assert {each.kind for each in gather(FACTS, records, planned).results} == {OK}


def test_scaling_is_taken_within_a_repeat():
    """Every repeat has its own pace; the ratio to one worker has not."""
    pace = [1.0, 2.0, 0.5, 1.5, 4.0]
    records = [record(ONE, repeat, 0.05 * each) for repeat, each in enumerate(pace)]
    records += [record(TWO, repeat, 0.08 * each) for repeat, each in enumerate(pace)]
    found = gather(FACTS, records, [ONE, TWO])
    scaling = found.results[1].figures.scaling
    assert scaling.speed_up == pytest.approx([1.25] * 5)
    assert scaling.expansion == pytest.approx([0.625] * 5), "speed-up by nodes, not time by time"
    assert scaling.efficiency == pytest.approx(0.625)
    assert found.results[0].figures.scaling.efficiency == pytest.approx(1.0)


@pytest.mark.parametrize("alone", [[], [failed(ONE, 0, "crash")], [record(ONE, 7)]])
def test_no_figure_for_one_worker_no_scaling(alone):
    found = gather(FACTS, [*launches(TWO), *alone], [ONE, TWO])
    assert found.results[1].kind == OK and found.results[1].figures.scaling is None


@pytest.mark.parametrize(
    "backend, workers, worker, servers",
    [
        ("hvd_mpi", 1, 0, None),
        ("hvd_mpi", 2, 100, None),
        ("hvd_gloo", 4, 150, None),
        ("byteps", 1, 0, 0),
        ("byteps", 2, 100, 200),
        ("byteps", 4, 100, 400),
        ("byteps_local", 2, None, None),
        ("another", 2, None, None),
    ],
)
def test_bytes_by_algorithm(backend, workers, worker, servers):
    assert traffic(backend, workers, 100) == (100, worker, servers)


def test_ranks_of_one_line_of_the_host_file_are_one_byteps_worker():
    """Two workers of eight ranks: nobody sends what 16 workers and their servers would."""
    setting = OTHER._replace(workers=16)
    for slots, expected in ((8, (None, None)), (1, (1000, 16_000))):
        facts = {**FACTS, "hosts": [["a", slots], ["b", slots]] * (8 // slots)}
        found = only([*launches(setting), profiled(setting, exchanged_bytes=1000)], setting, facts)
        assert found.figures.traffic == (1000, *expected)


class TestFinish:
    """Plans of hparams.py, rates chosen so that the arithmetic is seen."""

    FACTS = {**FACTS, "model": "bert_24_1024_16", "vocab_size": 30522, "max_seq_length": 128}
    SETTING = Setting("hvd_mpi", 8, "float16", 8192)

    def test_at_the_measured_length_tokens_divided_by_the_rate(self):
        found = finish(self.SETTING, 1e6, 128, self.FACTS)
        first, second = found.stages
        # 512 x 900,000 sequences of 128 tokens; 8 x 8192 / 128 = 512 sequences a step
        assert (first.num_steps, first.estimated) == (900_000, False)
        assert first.seconds == pytest.approx(512 * 900_000 * 128 / 1e6)
        assert (second.max_seq_length, second.num_steps, second.estimated) == (512, 400_000, True)
        assert found.seconds == first.seconds + second.seconds

    def test_another_length_is_converted_by_the_operations_of_a_token(self):
        second = finish(self.SETTING, 1e6, 128, self.FACTS).stages[1]
        layers, units, vocab = 24, 1024, 30522

        def operations(length, masked):
            encoder = layers * (24 * units**2 + 4 * length * units)
            heads = (masked * (2 * units**2 + 2 * units * vocab) + 2 * units**2 + 4 * units) / length
            return encoder + heads

        factor = operations(128, 20) / operations(512, 80)
        assert 0.9 < factor < 0.98
        assert second.tokens_per_s == pytest.approx(1e6 * factor)
        assert second.seconds == pytest.approx(512 * 100_000 * 512 / (1e6 * factor))

    def test_accumulation_makes_fewer_steps_and_no_difference_in_time(self):
        once = finish(self.SETTING, 1e6, 128, self.FACTS)
        twice = finish(self.SETTING, 1e6, 128, {**self.FACTS, "accumulate": 2})
        assert twice.stages[0].num_steps == once.stages[0].num_steps / 2
        assert twice.seconds == pytest.approx(once.seconds)

    def test_sequences_are_tokens_of_full_length(self):
        facts = {**self.FACTS, "use_avg_len": False}
        assert finish(self.SETTING._replace(batch_size=64), 1e6, 128, facts) == finish(
            self.SETTING, 1e6, 128, self.FACTS
        )

    @pytest.mark.parametrize("per_instance, instances", [(8, 1), (4, 2), (5, 2), (16, 1), (None, 8)])
    def test_whole_instances_are_paid_for(self, per_instance, instances):
        facts = {**self.FACTS, "price_per_hour": 30.0, "gpus_per_instance": per_instance}
        found = finish(self.SETTING, 1e6, 128, facts)
        assert found.instances == instances
        assert found.cost == pytest.approx(found.seconds / 3600 * 30.0 * instances)
        assert finish(self.SETTING, 1e6, 128, self.FACTS).cost is None

    def test_a_worker_that_cannot_hold_a_long_sequence_has_no_plan(self):
        found = finish(self.SETTING._replace(batch_size=511), 1e6, 128, {**self.FACTS, "price_per_hour": 3.0})
        assert (found.stages, found.cost) == ((), None)
        assert found.reason == "511 tokens a worker cannot hold one sequence of 512, which stage 2 has"
