"""The parts of a step's time: intervals, kinds, parts that add up, the trace's file, and the command."""

from __future__ import annotations

import json
import math
import os
import sys

import mxnet as mx
import pytest

from base.errors import InputError
from base.tables import terminal
from bert.operators import load_operators
from tests.processes import run_command
from training.profile import main
from training.profiling.breakdown import EXPOSED, IDLE, PARTS, PYTHON, break_down, step_flops, table
from training.profiling.intervals import clip, intersect, shared, subtract, total, union
from training.profiling.profiler import TraceOfSteps, separate_operators
from training.profiling.stages import FIGURES, stage_figures, staged
from training.profiling.trace import (
    ACTIVATION,
    ATTENTION,
    BEGINS,
    COMMUNICATION,
    COPYING,
    DATA_WAIT,
    EMBEDDING,
    ENDS,
    HEADS,
    NORMALISATION,
    OPTIMIZER,
    OTHER,
    PRODUCTS,
    STAGE_WAIT,
    WAITING,
    Operator,
    Step,
    Trace,
    classify,
    from_mxnet,
    is_bulk,
    read_trace,
    write_trace,
)

HEAD = b'{"otherData": {"format": "training.profile 1", "clock": 0, "facts": {}}'
FACTS = {"rank": 0, "model": "bert_2_32_4", "vocab_size": 50}


class TestIntervals:
    def test_union_joins_what_overlaps_or_touches_and_drops_what_is_empty(self):
        assert union([(5, 6), (0, 2), (2, 3), (1, 2), (8, 8), (10, 9)]) == [(0, 3), (5, 6)]
        assert total([(0, 2), (1, 4), (6, 7)]) == 5

    def test_subtract_cuts_holes(self):
        left = subtract([(0, 10), (20, 30)], [(-1, 1), (3, 4), (9, 22), (30, 31)])
        assert left == [(1, 3), (4, 9), (22, 30)]
        assert subtract([(0, 10)], []) == [(0, 10)]
        assert subtract([(0, 10)], [(0, 10)]) == []
        # One hole may reach into several intervals.
        assert subtract([(0, 2), (3, 5), (6, 8)], [(1, 7)]) == [(0, 1), (7, 8)]

    def test_intersect_and_clip(self):
        assert intersect([(0, 5), (7, 9)], [(4, 8)]) == [(4, 5), (7, 8)]
        assert clip([(0, 5), (7, 9), (9, 12)], (4, 8)) == [(4, 5), (7, 8)]

    def test_time_is_shared_by_what_overlaps(self):
        found = shared([("a", 0, 10), ("b", 4, 6), ("b", 5, 6), ("c", 20, 20)])
        assert found == pytest.approx({"a": 4 + 0.5 + 1 / 3 + 4, "b": 0.5 + 2 / 3})
        assert sum(found.values()) == pytest.approx(10)


class TestKinds:
    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            (
                PRODUCTS,
                "FullyConnected _backward_FullyConnected bert_dense _backward_bert_self_attention batch_dot",
            ),
            (ATTENTION, "_contrib_interleaved_matmul_selfatt_qk _backward_interleaved_matmul_selfatt_valatt"),
            (ATTENTION, "softmax _backward_softmax bert_attention _backward_bert_attention stack"),
            (NORMALISATION, "LayerNorm _backward_LayerNorm bert_add_norm _backward_bert_layer_norm"),
            (ACTIVATION, "LeakyReLU _backward_LeakyReLU bert_bias_gelu _backward_bert_bias_gelu"),
            (EMBEDDING, "Embedding _backward_Embedding bert_embed _backward_bert_embed"),
            (HEADS, "log_softmax pick bert_gather _backward_bert_decode_loss _backward_bert_words gather_nd"),
            (OPTIMIZER, "dot lamb_update_phase1 lamb_update_phase2 bert_lamb bert_global_norm bert_pack"),
            (COMMUNICATION, "horovod_allreduce horovod_grouped_allreduce BytePSPushPull hold"),
            (OTHER, "Reshape SequenceMask DeleteVariable unheard_of _backward_unheard_of ImperativeBulk"),
        ],
    )
    def test_each_operator_by_itself(self, kind, names):
        for name in names.split():
            assert classify([name]) == [kind], name

    def test_dropout_belongs_to_its_neighbour(self):
        forward = ["softmax", "Dropout", "FullyConnected", "Dropout", "LayerNorm"]
        backward = ["_backward_Dropout", "_backward_softmax", "_backward_Dropout", "add_n"]
        assert classify(forward)[1::2] == classify(backward)[::2] == [ATTENTION, NORMALISATION]

    def test_sums_belong_to_the_phase_they_run_in(self):
        names = ["FullyConnected", "elemwise_add", "sum", "_backward_FullyConnected", "add_n", "elemwise_add"]
        names += ["dot", "add_n", "sqrt", "lamb_update_phase1", "Cast", "_zeros", "Embedding", "elemwise_add"]
        assert classify(names) == (
            [PRODUCTS, NORMALISATION, HEADS, PRODUCTS, NORMALISATION, OPTIMIZER]  # the last adds a gradient
            + [OPTIMIZER] * 6
            + [EMBEDDING, NORMALISATION]
        )

    def test_buckets_for_byteps_belong_to_communication(self):
        names = ["bert_dense", "slice_axis", "Concat", "_backward_slice_axis", "_backward_bert_embed"]
        names += ["Concat", "BytePSPushPull", "_div_scalar", "slice_axis"]
        names += ["bert_global_norm", "_div_scalar", "bert_embed"]
        kinds = classify(names)
        assert [kind == COMMUNICATION for kind in kinds] == [False] * 5 + [True] * 4 + [False] * 3

    def test_bulks_are_known_by_their_names(self):
        assert is_bulk("Cast,log_softmax") and is_bulk("ImperativeBulk") and not is_bulk("FullyConnected")
        assert classify(["FullyConnected,LeakyReLU"]) == [OTHER]
        names = ("_backward_LayerNorm", "_backward_a,add_n,_backward_b", "add_n,_backward_sum", "dot")
        assert [Operator(name, OTHER, 0, 1, 0).backward for name in names] == [True, True, False, False]


def hand_made():
    """Two steps of 1 ms. Times in microseconds:

    data 0..100, copying 100..150, product 200..400, its gradient 400..700, communication 500..900, optimizer
    900..950; data 1000..1300 but product 1000..1200, idle and waiting 1300..1400; the rest is Python's.
    """
    operators = [
        Operator("bert_dense", PRODUCTS, 200, 400, 0),
        Operator("_backward_bert_dense", PRODUCTS, 400, 700, 0),
        Operator("horovod_allreduce", COMMUNICATION, 500, 900, 1),
        Operator("bert_lamb", OPTIMIZER, 900, 950, 0),
        Operator("bert_dense", PRODUCTS, 1000, 1200, 0),
    ]
    python = {DATA_WAIT: [(0.0, 100.0), (1000.0, 1300.0)], COPYING: [(100.0, 150.0)]}
    python[WAITING] = [(1250.0, 1400.0)]
    steps = [Step("step 3", 0, 1000), Step("step 4", 1000, 2000)]
    facts = {**FACTS, "batches": [[(2, 8, 2)], [(2, 8, 2)]]}
    return Trace(facts, 5e9, steps, operators, python)


class TestBreakdown:
    def test_each_part_and_the_whole(self):
        found = break_down(hand_made())
        ms = {part: row["ms"] for part, row in found["parts"].items() if row["ms"]}
        assert ms == pytest.approx(
            {
                PRODUCTS: (200 + 300 + 200) / 2e3,
                OPTIMIZER: 50 / 2e3,
                EXPOSED: (900 - 700) / 2e3,
                DATA_WAIT: (100 + 100) / 2e3,  # the rest of the second wait went on beside a product
                COPYING: 50 / 2e3,
                IDLE: 100 / 2e3,
                PYTHON: (50 + 50 + 600) / 2e3,
            }
        )
        assert found["step_ms"] == 1
        assert sum(row["share"] for row in found["parts"].values()) == pytest.approx(1)
        assert found["hidden_ms"] == pytest.approx({EXPOSED: 200 / 2e3, DATA_WAIT: 200 / 2e3})
        row = found["parts"][PRODUCTS]
        assert (row["forward_ms"], row["backward_ms"], row["calls"]) == pytest.approx((0.2, 0.15, 1.5))

    def test_rates_come_from_the_work_and_the_peak(self):
        trace = hand_made()
        flops = step_flops(trace)
        row = break_down(trace, peak=2.0)["parts"][PRODUCTS]
        expected = 3 * (flops.encoder + flops.heads + flops.decoder) / 700e-6 / 1e9
        assert row["gflops"] == pytest.approx(expected) and row["of_peak"] == pytest.approx(expected / 2)
        trace.operators.append(Operator("bert_decode_loss", HEADS, 1200, 1210, 0))
        rows = break_down(trace)["parts"]
        assert rows[HEADS]["gflops"] == pytest.approx(3 * flops.decoder / 10e-6 / 1e9)
        assert rows[PRODUCTS]["gflops"] < expected
        assert "gflop" in rows[ATTENTION]
        before = rows[PRODUCTS]["gflop"]
        trace.operators.append(Operator("bert_self_attention", PRODUCTS, 1200, 1210, 0))
        rows = break_down(trace)["parts"]  # its products and attention's cannot be told apart
        assert rows[PRODUCTS]["gflop"] == pytest.approx(before + 3 * flops.attention / 2 / 1e9)
        assert "gflop" not in rows[ATTENTION]
        trace.operators.append(Operator("bert_gather", HEADS, 1210, 1220, 0))
        assert step_flops(trace).encoder < flops.encoder
        del trace.facts["batches"]
        assert step_flops(trace) is None and "gflops" not in break_down(trace)["parts"][PRODUCTS]

    def test_the_table_shows_every_part_that_took_time_and_names_the_others(self):
        trace = hand_made()
        trace.operators.append(Operator("unheard_of", OTHER, 1900, 1950, 0))
        text = terminal(table(break_down(trace, 100.0)))
        for part in (PRODUCTS, OPTIMIZER, EXPOSED, DATA_WAIT, COPYING, PYTHON, IDLE, "unheard_of 0.03 ms"):
            assert part in text, part
        assert ATTENTION not in text
        assert "communication: 0.20 ms a step under way, 0.10 ms of it (50%) while operators computed" in text
        assert "100.0%" in text and "MXNET_EXEC_BULK" not in text
        trace.operators.append(Operator("ImperativeBulk", OTHER, 1950, 1960, 0))
        assert "MXNET_EXEC_BULK" in terminal(table(break_down(trace)))


def mxnet_events():
    """One step as MXNet's profiler writes it, as far as it is read."""

    def pair(name, category, first, last, start, end, thread):
        event = {"name": name, "cat": category, "tid": thread, "pid": 0}
        return [{**event, "ph": first, "ts": start}, {**event, "ph": last, "ts": end}]

    marker = {"cat": "bert,instant_marker", "ph": "n", "s": "p", "pid": 7, "tid": 1}
    return [
        {"ph": "M", "args": {"name": "cpu/0"}, "pid": 0, "name": "process_name"},
        *pair("FullyConnected", "operator", "B", "E", 1050, 1060, 9),
        *pair("FullyConnected", "operator", "b", "e", 1050, 1060, 9),  # the same once more
        *pair("horovod_allreduce", "operator", "B", "E", 1055, 1080, 8),
        *pair("MXRandomSeed", "MXNET_C_API", "b", "e", 1040, 1041, 1),
        *pair("MXNDArraySyncCopyFromCPU", "MXNET_C_API", "b", "e", 1042, 1045, 1),
        *pair("MXNDArraySyncCopyToCPU", "MXNET_C_API", "b", "e", 1070, 1085, 1),
        *pair("MXNDArraySyncCopyToCPU", "MXNET_C_API", "b", "e", 1000, 1085, 2),  # of another thread
        {**marker, "name": "step 10", "ts": 1000},
        {**marker, "name": "end of steps", "ts": 1100},
    ]


class TestTrace:
    def test_mxnets_events(self):
        trace = from_mxnet(mxnet_events(), {"rank": 0})
        assert trace.clock == 1000 and trace.steps == [Step("step 10", 0, 100)]
        assert trace.operators == [
            Operator("FullyConnected", PRODUCTS, 50, 60, 0),
            Operator("horovod_allreduce", COMMUNICATION, 55, 80, 1),
        ]
        waits = {DATA_WAIT: [(0, 40)], COPYING: [(42, 45)], WAITING: [(70, 85)], STAGE_WAIT: []}
        assert trace.python == waits

    def test_events_without_marks_are_refused(self):
        with pytest.raises(InputError, match="no marks of steps"):
            from_mxnet(mxnet_events()[:-2], {})

    def test_what_is_written_is_read_again_and_is_a_chrome_trace(self, tmp_path):
        path = str(tmp_path / "trace.json")
        trace = hand_made()
        trace.operators.append(Operator("horovod_allreduce", COMMUNICATION, 600, 950, 1))
        trace.operators.sort(key=lambda each: each.start)
        write_trace(path, trace)
        again = read_trace(path)
        assert break_down(again) == json.loads(json.dumps(break_down(trace)))
        assert again.clock == trace.clock and again.operators == trace.operators
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert {event["ph"] for event in events} == {"M", "X"}
        rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        both = [rows[each["tid"]] for each in events if each["name"] == "horovod_allreduce"]
        assert both == ["communication 0", "communication 1"]  # they overlap
        assert os.listdir(tmp_path) == ["trace.json"]


class TestCommand:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "cannot be read"),
            (b'{"traceEvents": [{"na', "not JSON"),
            (b"\x80\x81", "not JSON"),
            (b'{"traceEvents": []}', "no trace of training steps"),
            (b"[]", "no trace of training steps"),
            (b'{"otherData": {"format": "training.profile 1"}, "traceEvents": []}', "is damaged"),
            (HEAD + b', "traceEvents": [{}]}', "is damaged"),
            (HEAD + b', "traceEvents": [{"ph": "X", "name": "a", "cat": "b", "ts": 0, "dur": 1}]}', "'b'"),
            (HEAD + b', "traceEvents": []}', "no steps"),
        ],
    )
    def test_files_that_are_no_traces(self, tmp_path, content, message):
        path = tmp_path / "trace.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=message) as raised:
            main([str(path)])
        assert str(path) in str(raised.value)

    @pytest.mark.parametrize(
        "facts",
        [{"vocab_size": "x"}, {"batches": 5}, {"batches": [[[2, 16]]]}, {"batches": [[]]}, {"stage": 0}]
        + [{"stage_layers": 3}, {"stage_layers": [1]}, {"rank": [1]}, {"peak_gflops": "a"}, 0.0, math.inf],
    )
    def test_facts_and_ends_of_a_step_that_no_run_has(self, tmp_path, facts):
        trace = hand_made()
        if isinstance(facts, float):
            trace.steps[:] = [Step("step 10", 0.0, facts)]
        else:
            trace.facts.update(facts)
        write_trace(str(tmp_path / "trace.json"), trace)
        with pytest.raises(InputError, match="trace.json is damaged"):
            main([str(tmp_path / "trace.json")])

    def test_a_folder_that_is_not_there_is_found_before_anything_is_read(self, tmp_path):
        for words in (["--model", "no_such_model"], ["no_such_trace.json"]):
            with pytest.raises(InputError, match=f"^--out {tmp_path}/none/x: cannot be written"):
                main([*words, "--out", str(tmp_path / "none" / "x")])

    @pytest.mark.parametrize("path", ["no/trace.json", "."])
    def test_a_place_that_a_trace_cannot_have_is_found_before_the_first_step(self, tmp_path, path):
        with pytest.raises(InputError, match="--profile .*: name a file, in a folder that is there"):
            TraceOfSteps(str(tmp_path / path), 0, {})

    def test_operators_cannot_be_separated_after_the_import(self):
        with pytest.raises(RuntimeError, match="before mxnet"):
            separate_operators()

    @pytest.mark.parametrize("operators", ["mxnet", "fused"])
    def test_a_real_run(self, tmp_path, operators):
        """A few steps of a small model in a process of its own."""
        if operators == "fused" and not (load_operators() and hasattr(mx.nd, "bert_decode_loss")):
            pytest.skip("the fused operators have not been built")
        # One of both with a name, the other with a folder.
        place, stem, more = tmp_path / "new" / "run", "profile", "--ckpt_dir new/run"
        if operators == "fused":
            place, stem, more = tmp_path, "p", "--out p --peak 1000"
        words = "--model bert_2_32_4 --max_seq_length 16 --batch_size 4 --accumulate 2 --steps 2 --warmup 2"
        words = f"-m training.profile {words} --operators {operators} {more}"
        command = [sys.executable, *words.split()]
        done = run_command(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}).check()
        assert "step 3 to 4" in done.stdout and "2 x 4 sequences of 16 tokens, 3 masked" in done.stdout
        names = {f"{stem}.png", f"{stem}_summary.json", f"{stem}_timeline.json"}
        if operators == "fused":
            assert set(os.listdir(tmp_path)) == names
        else:
            assert os.listdir(tmp_path) == ["new"], "the current folder stays as it is"
            of_run = {"metrics.jsonl", "results.json", "run.yaml", "tensorboard"}
            assert set(os.listdir(place)) == names | of_run
        (rank,) = json.loads((place / f"{stem}_summary.json").read_text())["ranks"]
        parts = rank["parts"]
        assert list(parts) == list(PARTS) and not rank["bulked"]
        assert sum(row["share"] for row in parts.values()) == pytest.approx(1)
        assert sum(row["ms"] for row in parts.values()) == pytest.approx(rank["step_ms"])
        for kind in (PRODUCTS, ATTENTION, NORMALISATION, ACTIVATION, EMBEDDING, HEADS, OPTIMIZER):
            assert parts[kind]["ms"] > 0 and parts[kind]["calls"] > 0, kind
        assert parts[PRODUCTS]["backward_ms"] > 0 and 0 < parts[PRODUCTS]["of_peak"] < 1
        named = sum(row["ms"] for row in rank["operators"].values())
        assert named == pytest.approx(sum(parts[kind]["ms"] for kind in (*parts,) if parts[kind]["calls"]))
        assert parts[OTHER]["share"] < 0.7


def stage_traces():
    """A step of two stages, one micro-batch, times in microseconds of one clock:

    stage 0: forward 0..100, waits for its gradient 100..400, backward 400..600, then 50 for the update.
    stage 1: begins at 20, waits 20..120, forward 120..220, backward 220..380, waits for stage 0 to 600.
    """

    def trace(stage, clock, forward, backward, waits, step):
        facts = {**FACTS, "rank": stage, "stage": stage, "stages": 2, "replica": 0, "schedule": "1f1b"}
        facts.update(stage_layers=[stage, stage + 1], batches=[[(2, 8, 2)]])
        shifted = [tuple(time - clock for time in each) for each in (forward, backward, waits, step)]
        operators = [
            Operator("bert_dense", PRODUCTS, *shifted[0], 0),
            Operator("_backward_bert_dense", PRODUCTS, *shifted[1], 0),
        ]
        return Trace(facts, clock, [Step("step 3", *shifted[3])], operators, {STAGE_WAIT: [shifted[2]]})

    first = trace(0, 0, (0, 100), (400, 600), (100, 380), (0, 650))
    return [first, trace(1, 20, (120, 220), (220, 380), (20, 120), (20, 650))]


class TestStages:
    def test_work_and_waits_add_up_on_one_axis(self):
        first, second = (each["ms"] for each in stage_figures(staged(stage_traces()[::-1])))
        assert first == pytest.approx(dict(zip(FIGURES, (0.1, 0.2, 0, 0.28, 0, 0.02, 0.05))))
        assert second == pytest.approx(dict(zip(FIGURES, (0.1, 0.16, 0.12, 0, 0.22, 0, 0.05))))
        assert sum(first.values()) == pytest.approx(0.65) == sum(second.values())

    def test_a_replica_that_is_not_whole_is_left_out(self):
        assert staged(stage_traces()[:1]) == [] and staged([hand_made()]) == []

    def test_each_stage_counts_the_operations_of_its_own_layers(self):
        first, second = (step_flops(each) for each in stage_traces())
        whole = hand_made()
        whole.facts["batches"], whole.steps = [[(2, 8, 2)]], whole.steps[:1]
        assert (first.heads, first.decoder) == (0, 0)
        assert first + second == step_flops(whole)

    def test_the_command_shows_both_ranks_and_the_stages(self, tmp_path, capsys):
        for trace, name in zip(stage_traces(), ("t.json", "t.json.1")):
            write_trace(str(tmp_path / name), trace)
        assert main([str(tmp_path / "t.json"), "--peak", "100"]) == 0
        shown = capsys.readouterr().out
        assert "rank 0, bert_2_32_4" in shown and "rank 1, bert_2_32_4" in shown and "of peak" in shown
        assert "stages, ms a step on one time axis, 1f1b" in shown
        assert "2 even stages with 1 micro-batch have 50%" in shown
        for name in ("t.png", "t_stages.png"):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        summary = json.loads((tmp_path / "t_summary.json").read_text())
        assert [each["facts"]["rank"] for each in summary["ranks"]] == [0, 1]
        assert [each["stage"] for each in summary["stages"]] == [0, 1]
        events = json.loads((tmp_path / "t_timeline.json").read_text())["traceEvents"]
        assert [event["ts"] for event in events if event["name"] == "step 3"] == [0, 20]  # on one time axis

    def test_marks_of_waits_are_read(self):
        events = mxnet_events()
        mark = next(each for each in events if each["name"] == "step 10")
        events += [{**mark, "name": BEGINS, "ts": 1062}, {**mark, "name": ENDS, "ts": 1068}]
        assert from_mxnet(events, {}).python[STAGE_WAIT] == [(62, 68)]
