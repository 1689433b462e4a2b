"""The figures of data.inspect are those of a training, counted again from the batches themselves."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.export import as_arrays
from data.formats.files import write_instances
from data.inspect import main
from data.inspection.figures import mask_facts, repeated_sequences, store_occurrences
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.sources import TextSource
from data.sharing import Share
from data.store.tokens import TokenStore
from data.tokenizing.tokenizer import TokenizerSettings, bert_normalizer
from tests.data.token_stores import build_store
from tests.processes import run_command

SETTINGS = ["--max_seq_length", "64", "--batch_size", "1024", "--use_avg_len", "--num_buckets", "5"]
MARKER = re.compile(r"\[(?:=|[^\s→]+?→)([^\[\]\s]+)\]")  # hidden: ordinary tokens, but brackets themselves


@pytest.fixture(scope="module")
def directory(store):
    return Path(store.directory)


@pytest.fixture(scope="module")
def source(store, vocab):
    return TextSource(store, vocab, MaskingConfig(64, 0.1, 0.15, 10))


@pytest.fixture(scope="module")
def facts(directory):
    """The output of --json."""
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as out:
        assert main([str(directory), *SETTINGS, "--json", "--num", "40"]) == 0
    return json.loads(out.buffer.getvalue())


@pytest.fixture(scope="module")
def blocks(source):
    """Every batch of the epoch."""
    batches = PretrainingBatches(source, BatchingConfig(1024, True, 5), seed=0, share=Share.of(0, 1))
    return [make() for _, make in itertools.islice(batches.tasks(), batches.blocks_in_epoch(0))]


@pytest.fixture(scope="module")
def npz(source, tmp_path_factory):
    """A file with the masks of the first 300 instances."""
    path = tmp_path_factory.mktemp("files") / "pretrain.npz"
    write_instances(str(path), "npz", as_arrays(source.collate(0, 0, np.arange(300), 64)))
    return path


def shown(capsys, *arguments):
    """Standard output of the command, run here."""
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_report_of_a_store(directory, facts, tmp_path):
    """By the command as users give it, which does not hide the standard library's inspect."""
    command = [sys.executable, "-m", "data.inspect", directory, *SETTINGS, "--num", "2"]
    result = run_command(command, cwd=tmp_path, env={"PYTHONIOENCODING": "utf-8"}).check()
    lines = result.stdout.splitlines()
    assert result.stderr == ""
    assert lines[0] == f"{directory}: token store"
    for name in ("sentences", "documents", "tokens"):
        assert f"{facts['counts'][name]:,} {name}" in lines[1]
    headings = re.findall(r"^instance \d+ \(seed 0, epoch 0\): \d+ tokens, ", result.stdout, re.MULTILINE)
    assert len(headings) == 2
    heads = [index for index, line in enumerate(lines) if line.startswith("length of")]
    for head, total in zip(heads, (facts["batches"]["sequences"], facts["counts"]["sentences"])):
        assert f" {total:,} " in lines[head]
        rows = lines[head + 1 : lines.index("", head)]
        assert sum(int(row.split()[-2].replace(",", "")) for row in rows) == total
    assert f"{facts['batches']['padding_share']:.2%} of the positions are padding" in result.stdout
    assert "its checksums have been verified" in result.stdout
    assert max(map(len, lines)) <= 140
    # The picture stands where the command was given, not beside the data.
    assert lines[-1] == "picture of the lengths: store.lengths.png"
    assert os.listdir(tmp_path) == ["store.lengths.png"]
    check_picture(tmp_path / "store.lengths.png")


def check_picture(path):
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width >= 1000 and image.height >= 400
        colours = image.convert("RGB").getcolors(1 << 24)
    blue = sum(count for count, (red, _, blue) in colours if blue > red + 60)
    assert blue > 0.02 * image.width * image.height  # bars, not empty axes


def test_numbers_of_batches(facts, blocks):
    found = facts["batches"]
    tokens = sum(int(batch.valid_lengths.sum()) for batch in blocks)
    positions = sum(batch.input_ids.size for batch in blocks)
    assert (found["tokens"], found["positions"]) == (tokens, positions)
    assert found["padding_share"] == pytest.approx(1 - tokens / positions)
    assert found["batches_per_epoch"] == len(blocks)
    shapes = Counter(batch.input_ids.shape[1] for batch in blocks)
    rows = Counter()
    for batch in blocks:
        rows[batch.input_ids.shape[1]] += len(batch.input_ids)
    for bucket in found["buckets"]:
        length = bucket["padded_to"]
        assert (bucket["batches"], bucket["sequences"]) == (shapes[length], rows[length])
        assert bucket["sequences_per_batch"] == 1024 // length
    lengths = Counter(np.concatenate([batch.valid_lengths for batch in blocks]).tolist())
    assert dict(map(tuple, facts["lengths"]["counts"])) == lengths
    every = sorted(lengths.elements())
    assert facts["lengths"]["mean"] == pytest.approx(np.mean(every))
    assert facts["lengths"]["median"] == every[(len(every) - 1) // 2]
    assert (facts["lengths"]["smallest"], facts["lengths"]["largest"]) == (every[0], every[-1])


def test_numbers_of_masks(facts, blocks, vocab):
    found = facts["masks"]
    sequences = sum(len(batch.input_ids) for batch in blocks)
    random_next = sum(int(batch.next_sentence_labels.sum()) for batch in blocks)
    real = [batch.masked_weights > 0 for batch in blocks]
    there = [np.take_along_axis(batch.input_ids, batch.masked_positions, 1) for batch in blocks]
    there = np.concatenate([each[used] for each, used in zip(there, real)])
    original = np.concatenate([batch.masked_ids[used] for batch, used in zip(blocks, real)])
    predictions = len(original)
    masked, kept = (there == vocab.mask_id).sum(), (there == original).sum()
    assert found["sequences"] == found["of"] == sequences
    assert found["predictions"] == predictions
    assert found["predicted_share"] == pytest.approx(predictions / facts["batches"]["tokens"])
    assert found["masked_share"] == pytest.approx(masked / predictions)
    assert found["kept_share"] == pytest.approx(kept / predictions)
    assert found["replaced_share"] == pytest.approx(1 - (masked + kept) / predictions)
    assert found["random_next_share"] == pytest.approx(random_next / sequences)
    assert found["predictions_per_sequence"]["mean"] == pytest.approx(predictions / sequences)


def test_numbers_of_the_text(facts, store, vocab):
    counts = Counter(store.ids.tolist())
    found = facts["tokens"]
    assert found["tokens"] == len(store.ids)
    assert found["unknown_share"] == pytest.approx(counts[vocab.unk_id] / len(store.ids))
    assert found["different"] == len(counts)
    for (name, share), (_, number) in zip(found["most_frequent"], counts.most_common()):
        assert counts[vocab.tokens.index(name)] == number and share == pytest.approx(number / len(store.ids))
    lengths = Counter(np.diff(store.sentences).tolist())
    assert dict(map(tuple, facts["text"]["sentence_lengths"]["counts"])) == lengths
    assert facts["text"]["sentence_lengths"]["mean"] == pytest.approx(np.diff(store.sentences).mean())
    assert facts["text"]["document_lengths"]["mean"] == pytest.approx(np.diff(store.documents).mean())
    assert facts["text"]["repeated"] == []
    ids = store.ids.tolist()
    each = [tuple(ids[start:end]) for start, end in zip(store.sentences, store.sentences[1:])]
    assert facts["text"]["duplicate_sentences"] == len(each) - len(set(each))


def test_instances_are_those_of_the_training(facts, source, vocab):
    assert len(facts["instances"]) == len({each["index"] for each in facts["instances"]}) == 40
    kinds = Counter()
    for each in facts["instances"]:
        batch = source.collate(0, 0, np.array([each["index"]]), 64)
        length = int(batch.valid_lengths[0])
        used = batch.masked_weights[0] > 0
        ids = batch.input_ids[0, :length].copy()
        ids[batch.masked_positions[0, used]] = batch.masked_ids[0, used]
        assert each["tokens"] == [vocab.tokens[token] for token in ids]
        assert each["next_sentence"] == ("random" if batch.next_sentence_labels[0] else "follows")
        assert each["length_b"] == batch.segment_ids[0].sum()
        places = batch.masked_positions[0, used].tolist()
        assert [prediction["position"] for prediction in each["predictions"]] == places
        for prediction in each["predictions"]:
            token = vocab.tokens[batch.input_ids[0, prediction["position"]]]
            kinds[prediction["kind"]] += 1
            assert prediction["shown"] == token
            assert (prediction["kind"] == "masked") == (token == "[MASK]")
            assert (prediction["kind"] == "kept") == (token == prediction["token"])
    assert set(kinds) == {"masked", "kept", "replaced"}


def test_text_of_instances_is_the_corpus(facts, embedded):
    """With each marker replaced by what it hides, B stands in the corpus; a marker for each prediction."""
    corpus = (embedded / "corpus" / "train-0.txt").read_text("utf-8")
    corpus = "".join(bert_normalizer(False).normalize_str(corpus).split())
    seen = 0
    for each in facts["instances"]:
        ordinary = [token for token in each["tokens"] if token not in ("[CLS]", "[SEP]")]
        if any("[" in token or "]" in token for token in ordinary):  # [UNK], and brackets as such
            continue
        seen += 1
        for name in ("text_a", "text_b"):
            words = MARKER.sub(lambda match: match[1], each[name])
            words = words.replace("[CLS]", "").replace("[SEP]", "").split()
            # The first word may have lost its beginning, and then shows the mark of a continuation.
            words[0] = words[0][2:] if words[0].startswith("##") else words[0]
            assert "".join(words) in corpus
        markers = MARKER.findall(each["text_a"] + " " + each["text_b"])
        assert len(markers) == len(each["predictions"])
    assert seen >= 20


def test_options_reach_the_training_s_source(directory, store, vocab, capsys):
    options = ["--max_seq_length", "128", "--short_seq_prob", "0.5", "--masked_lm_prob", "0.3"]
    options += ["--max_predictions_per_seq", "30", "--whole_word_mask", "--seed", "7", "--epoch", "3"]
    found = json.loads(shown(capsys, directory, *options, "--json", "--start", "5", "--num", "2"))
    other = TextSource(store, vocab, MaskingConfig(128, 0.5, 0.3, 30, True))
    assert [each["index"] for each in found["instances"]] == [5, 6]
    for each in found["instances"]:
        batch = other.collate(7, 3, np.array([each["index"]]), 128)
        places = batch.masked_positions[0][batch.masked_weights[0] > 0].tolist()
        assert [prediction["position"] for prediction in each["predictions"]] == places
        assert each["length"] == batch.valid_lengths[0]
    # Other instances for another seed; the same ones for the same: test_raw_text.
    runs = [json.loads(shown(capsys, directory, "--json", "--seed", seed)) for seed in (1, 2)]
    one, two = ([each["index"] for each in run["instances"]] for run in runs)
    assert one != two
    # And the defaults are the training's.
    found = json.loads(shown(capsys, directory, "--json", "--num", "1"))
    default = TextSource(store, vocab, MaskingConfig(512, 0.1, 0.15, 80))
    batch = default.collate(0, 0, np.array([found["instances"][0]["index"]]), 512)
    assert len(found["instances"][0]["predictions"]) == int(batch.masked_weights.sum())
    assert found["batches"]["batch_size"] == 8 and not found["batches"]["use_avg_len"]


def test_files_with_masks(npz, vocab, embedded, source, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    second = tmp_path / "more"
    shutil.copy(npz, second)
    arguments = [npz, second, "--vocab", embedded / "vocab.txt", "--json", "--start", "299", "--num", "2"]
    found = json.loads(shown(capsys, *arguments))
    assert found["kind"] == "files with masks" and found["counts"]["instances"] == 600
    last, first = found["instances"]
    assert {last["file"], first["file"]} == {"more", "pretrain.npz"}
    batch = source.collate(0, 0, np.array([299]), 64)
    assert last["length"] == batch.valid_lengths[0]
    assert len(last["predictions"]) == int(batch.masked_weights[0].sum())
    assert "text" not in found and 0.13 < found["masks"]["predicted_share"] < 0.18
    assert 0.7 < found["masks"]["masked_share"] < 0.9
    # What was converted on the way is gone.
    assert sorted(os.listdir(tmp_path)) == ["more"]


def test_files_without_a_vocabulary_show_ids(npz, source, capsys):
    out = shown(capsys, npz, "--num", "1", "--start", "0", "--no_plot")
    batch = source.collate(0, 0, np.array([0]), 64)
    position = int(np.flatnonzero(batch.input_ids[0, batch.masked_positions[0]] != batch.masked_ids[0])[0])
    place = batch.masked_positions[0, position]
    assert f"[{batch.input_ids[0, place]}→{batch.masked_ids[0, position]}]" in " ".join(out.split())
    assert "every record has been read and checked" in out


def test_limits_that_files_and_instance_stores_keep_change_nothing(npz, tmp_path, capsys):
    shown_of = ["--num", "1", "--json", "--cache_dir"]
    plain = json.loads(shown(capsys, npz, *shown_of, tmp_path))
    limits = ["--max_seq_length", "128", "--max_predictions_per_seq", "10"]
    assert json.loads(shown(capsys, npz, *limits, *shown_of, tmp_path)) == plain
    (store,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    direct = json.loads(shown(capsys, store, *limits, "--json", "--num", "1"))
    assert direct["kind"] == "instance store" and direct["instances"] == plain["instances"]
    assert (direct["lengths"], direct["masks"]) == (plain["lengths"], plain["masks"])
    assert main([str(store), "--max_seq_length", "63"]) == 2
    assert "--max_seq_length 63: " in capsys.readouterr().err


def test_raw_text(embedded, facts, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    text = embedded / "corpus" / "train-0.txt"
    arguments = [text, "--raw", "--vocab", embedded / "vocab.txt", *SETTINGS, "--json", "--num", "40"]
    found = json.loads(shown(capsys, *arguments))
    assert found["kind"] == "text"
    same = ("counts", "text", "lengths", "batches", "masks", "tokens", "instances")
    assert {name: found[name] for name in same} == {name: facts[name] for name in same}
    assert os.listdir(tmp_path) == []


def test_pieces_are_shown_as_they_are(directory, facts, capsys):
    index = facts["instances"][0]["index"]
    out = shown(capsys, directory, *SETTINGS, "--num", 1, "--start", index, "--pieces", "--no_plot")
    body = re.search(r"^  A (.*?)^  \[MASK", out, re.MULTILINE | re.DOTALL)[1]
    body = re.sub(r"^  B ", " ", body, flags=re.MULTILINE)
    tokens = [MARKER.sub(lambda match: match[1], word) for word in body.split()]
    assert tokens == facts["instances"][0]["tokens"]


def test_picture_where_it_is_asked_for(directory, npz, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown(capsys, directory, "--json", "--num", 0)
    shown(capsys, directory, "--no_plot", "--num", 0)
    assert os.listdir(tmp_path) == []
    shown(capsys, npz, "--plot", "seen.png", "--json", "--num", 0)
    assert os.listdir(tmp_path) == ["seen.png"]
    check_picture(tmp_path / "seen.png")
    shown(capsys, shutil.copy(npz, "$_a_b$.npz"), "--num", 0)  # as a formula it would be a wrong one
    check_picture(tmp_path / "$_a_b$.npz.lengths.png")


def test_a_directory_that_takes_no_picture_is_no_error(directory, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("store.lengths.png")  # root may write anywhere, but not over a directory
    assert main([str(directory), "--num", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("no picture: cannot write store.lengths.png")
    assert "padding" in captured.out and os.listdir(tmp_path) == ["store.lengths.png"]


def test_errors_of_the_system_are_one_line(directory, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert main([str(directory)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: [Errno 2] No such file or directory: '{tmp_path}/missing/inspect-")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["{missing}"], ["no file matches"]),
        (["{store}", "--start", "100000"], ["--start 100000", "instances"]),
        (["{store}", "--cased"], ["--cased", "nothing"]),
        (["{store}", "--vocab", "{other}"], ["another vocabulary"]),
        (["{store}", "--plot", "{missing}/a.png"], ["--plot", "No such file"]),
        (["{text}"], ["--raw", "text"]),
        (["{text}", "--raw"], ["--vocab"]),
        (["{text}", "--raw", "--plot", "{missing}/a.png"], ["--plot", "No such file"]),
        (["{npz}", "--short_seq_prob", "0.2"], ["--short_seq_prob", "nothing"]),
        (["{npz}", "--max_seq_length", "63"], ["--max_seq_length 63", "pretrain.npz", "64 tokens"]),
        (["{npz}", "--max_seq_length", "513"], ["--max_seq_length 513", "512 positions"]),
        (["{npz}", "--vocab", "{other}"], ["pretrain.npz", "instance"]),
        (["{npz}", "--raw", "--vocab", "{vocab}"], ["pretrain.npz"]),
        (["{cut}"], ["cut.npz"]),
        (["{broken}"], ["broken", "damaged"]),
        (["{store}", "{npz}"], ["store", "alone"]),
    ],
)
def test_bad_input_is_one_line(
    arguments, words, directory, embedded, npz, vocab, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    places = {name: str(tmp_path / name) for name in ("missing", "other", "broken", "cut.npz")}
    places["cut"] = places["cut.npz"]
    Path(places["cut"]).write_bytes(npz.read_bytes()[:5000])
    Path(places["other"]).write_text("".join(f"{token}\n" for token in vocab.tokens[:1000]), "utf-8")
    shutil.copytree(directory, places["broken"])
    os.unlink(os.path.join(places["broken"], "verified.json"))
    with open(os.path.join(places["broken"], "ids-00000.bin"), "r+b") as handle:
        handle.seek(1000)
        handle.write(b"\xff\x00")
    places.update(store=str(directory), npz=str(npz), vocab=str(embedded / "vocab.txt"))
    places["text"] = str(embedded / "corpus" / "train-0.txt")
    before = sorted(os.listdir(tmp_path))
    assert main([argument.format(**places) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    for word in words:
        assert word.format(**places) in captured.err
    assert sorted(os.listdir(tmp_path)) == before


def test_bad_records_are_counted(npz, vocab, embedded, tmp_path, capsys):
    with np.load(npz) as arrays:
        columns = dict(arrays)
    columns["input_ids"][17, 3] = len(vocab)
    bad = tmp_path / "bad.npz"
    np.savez(bad, **columns)
    arguments = [bad, "--vocab", embedded / "vocab.txt", "--no_plot", "--num", "0"]
    assert main([*map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert "bad.npz" in error and "17" in error
    out = shown(capsys, *arguments, "--skip_bad_records")
    assert "299 instances" in out and "1 bad record was left out" in out and "instance 17" in out


def test_a_closed_pipe_is_quiet(directory):
    command = f"{sys.executable} -m data.inspect {directory} --num 50 --no_plot | head -1"
    result = run_command(["bash", "-c", command])
    assert result.stdout == f"{directory}: token store\n" and result.stderr == ""


@pytest.mark.parametrize("terminal, no_color", [(True, ""), (True, "1"), (False, "")])
def test_colour_is_for_terminals(directory, terminal, no_color, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    out = shown(capsys, directory, "--num", "2", "--no_plot")
    coloured = terminal and not no_color
    assert ("\x1b[1;33m[MASK" in out) is coloured and ("\x1b" in out) is coloured
    assert "nothing looks wrong" in out or "warning" in out


def test_samples_are_spread_evenly(source, vocab):
    whole, _ = mask_facts(source, 0, 0, vocab)
    part, occurrences = mask_facts(source, 0, 0, vocab, limit=400)
    assert part["sequences"] == 400 < part["of"] == whole["sequences"]
    assert part["predicted_share"] == pytest.approx(whole["predicted_share"], rel=0.02)
    assert part["random_next_share"] == pytest.approx(whole["random_next_share"], abs=0.1)
    assert len(occurrences) == len(vocab)
    assert not occurrences[[vocab.cls_id, vocab.sep_id, vocab.pad_id]].any()
    assert occurrences.sum() == part["tokens"] - 3 * 400


def test_a_large_store_is_sampled(vocab):
    """With ids that say which block they are in: the blocks counted are spread from end to end."""
    blocks = 40
    ids = np.repeat(np.arange(blocks, dtype=np.uint16), 1 << 16)
    store = TokenStore(ids, np.array([0, len(ids)]), np.array([0, 1]), vocab.sha256)
    counts = store_occurrences(store, vocab, limit=10 << 16)
    assert np.flatnonzero(counts).tolist() == list(range(0, blocks, 4))
    assert counts.sum() == 10 << 16


# What each rule of thumb looks for, in a text that has it; the text without has none of these warnings.
GOOD = "\n\n".join(
    "\n".join(f"this is a good sentence about the number {i} of {d} ." for i in range(20)) for d in range(60)
)
TEXTS = {
    "'@ - @': mark-up": re.sub("number [3-7] ", "long @-@ <b> ", GOOD),
    "no language repeats itself": GOOD,
    "stand in the text before": "\n\n".join((GOOD, *GOOD.split("\n\n")[:10])),
    "single sentence": "\n\n".join(line for line in GOOD.splitlines() if line),
    "fewer than 5 tokens": "\n\n".join("\n".join("i am ." for _ in range(20)) for _ in range(60)),
    "paragraphs": "\n\n".join(f"{part}\n{part}" for part in GOOD.replace("\n", " ").split("  ")),
    None: "",  # the embedded corpus
}


def warnings_of(text, embedded, tmp_path, capsys):
    """The warnings, and all that is found."""
    (tmp_path / "text.txt").write_text(text, "utf-8")
    # Not every interpreter's text has the characters of mark-up.
    tokens = (embedded / "vocab.txt").read_text("utf-8").split()
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*tokens, *(each for each in "@-<>" if each not in tokens)]) + "\n", "utf-8")
    arguments = ["--raw", tmp_path / "text.txt", "--vocab", vocab, "--max_seq_length", "64"]
    found = json.loads(shown(capsys, *arguments, "--json", "--num", 0))
    return found["warnings"], found


@pytest.mark.parametrize("words", TEXTS)
def test_warnings(words, embedded, tmp_path, capsys):
    text = TEXTS[words] or (embedded / "corpus" / "train-0.txt").read_text("utf-8")
    found, _ = warnings_of(text, embedded, tmp_path, capsys)
    if words is None:
        unexpected = ["[UNK]", "a literal <unk>", *filter(None, TEXTS)]
        assert not [warning for warning in found if any(word in warning for word in unexpected)]
    else:
        assert [warning for warning in found if words in warning]


def wikitext(text):
    """The text in WikiText's form, a title before each document."""
    documents = text.replace("\n", " ").split("  ")
    return "".join(f" \n = Title {n} = \n \n {document} \n" for n, document in enumerate(documents))


def unknown_in(warnings):
    return [warning for warning in warnings if "[UNK]" in warning or "unk" in warning]


def test_unk_marks_of_wikitext_are_not_blamed_on_the_vocabulary(embedded, tmp_path, capsys):
    marked = wikitext(GOOD.replace("good", "<unk>"))
    warnings, found = warnings_of(marked, embedded, tmp_path, capsys)
    (warning,) = unknown_in(warnings)
    share = 1200 / found["counts"]["tokens"]
    assert found["tokens"]["unknown_share"] == pytest.approx(share) and share > 0.05
    assert warning == (
        f"{share:.1%} of the tokens are [UNK] because the text itself has <unk> in place of words, "
        "1,200 times, as WikiText does; that is no fault of the vocabulary"
    )
    both = unknown_in(warnings_of(marked.replace("number", "\u0f00"), embedded, tmp_path, capsys)[0])
    assert len(both) == 2 and "no fault" in both[0] and "the vocabulary does not fit the text" in both[1]
    foreign = wikitext(GOOD.replace("number", "\u0f00"))
    (warning,) = unknown_in(warnings_of(foreign, embedded, tmp_path, capsys)[0])
    assert "the vocabulary does not fit the text" in warning and "<unk>" not in warning


def test_a_literal_unk_is_found_whatever_the_vocabulary_makes_of_it(embedded, tmp_path, capsys):
    """The marks of WikiText, read as plain lines."""
    warnings, found = warnings_of(GOOD.replace("good", "<unk>"), embedded, tmp_path, capsys)
    (warning,) = unknown_in(warnings)
    assert found["tokens"]["unknown_share"] == 0
    (mark,) = [each for each in found["text"]["repeated"] if each["marker"]]
    tokens = len(mark["text"].split())
    assert mark["joined"] == "<unk>" and mark["share"] == 1200 * tokens / found["counts"]["tokens"]
    said = f"{mark['share']:.1%} of the tokens are {mark['text']!r}: the text has a literal"
    assert warning.startswith(said)


def test_a_store_of_an_earlier_version_does_not_tell_where_unknown_tokens_come_from(vocab, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(wikitext(GOOD.replace("good", "<unk>")), "utf-8")
    build_store([str(tmp_path / "text.txt")], TokenizerSettings(vocab), str(tmp_path / "store"))
    manifest = tmp_path / "store" / "manifest.json"
    content = json.loads(manifest.read_text("utf-8"))
    assert content["counts"].pop("unknown_marks") == 1200
    del content["sha256"]
    manifest.write_text(json.dumps(content), "utf-8")
    found = json.loads(shown(capsys, tmp_path / "store", "--json", "--num", 0))["warnings"]
    (warning,) = [warning for warning in found if "[UNK]" in warning]
    assert "does not fit the text" in warning and "or the text itself has <unk>" in warning


def test_repeated_sequences_of_generated_ids(vocab):
    """A template of three tokens after every 30 others, then one token as every fourth."""
    generator = np.random.default_rng(0)
    ids = generator.integers(200, len(vocab), 60_000).astype(np.uint16)

    def found(ids):
        return repeated_sequences(TokenStore(ids, np.array([0]), np.array([0]), vocab.sha256), vocab)

    assert found(ids) == []
    for offset, token in enumerate((100, 120, 140)):
        ids[offset::30] = token
    (template,) = found(ids)
    assert template["text"] == " ".join(vocab.tokens[token] for token in (100, 120, 140))
    assert template["share"] == pytest.approx(0.1, abs=0.001) and not template["marker"]
    ids[::4] = 150
    assert [each["text"] for each in found(ids)] == [vocab.tokens[150]]
    ids[::4] = vocab.unk_id
    assert found(ids) == []


def test_padding_is_warned_of(directory, capsys):
    one = json.loads(shown(capsys, directory, "--num_buckets", 1, "--json", "--num", 0))
    assert one["batches"]["padding_share"] > 0.05
    assert [warning for warning in one["warnings"] if "--num_buckets" in warning]
    more = json.loads(shown(capsys, directory, "--num_buckets", 16, "--batch_size", 2, "--json", "--num", 0))
    assert more["batches"]["padding_share"] < 0.05
    assert not [warning for warning in more["warnings"] if "--num_buckets" in warning]
