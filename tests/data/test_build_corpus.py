from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from base.errors import InputError
from data.build_corpus import PACKAGES, build, main, regrouped
from data.debian import Package, Source, anarchism_documents, fetch_package
from data.embedded import held_out
from data.text.corpus import documents
from data.text.prose import has_clause, plain_punctuation, whole_sentence
from tests.data.debian_packages import CONTENTS, repository, sentences
from tests.data.token_stores import content
from tests.processes import run_command

# The command, with a small standard library: tests/data/test_embedded.py reads the whole one.
COMMAND = """
import sys, sysconfig
from data.build_corpus import main
library = sys.argv.pop(1)
sysconfig.get_paths = lambda: {"stdlib": library}
sys.exit(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def built(environment, tmp_path_factory):
    """The corpus of all packages, by the command."""
    output = tmp_path_factory.mktemp("corpus") / "corpus"
    return output, build_in_a_process(output, environment)


def build_in_a_process(output, environment):
    library = Path(environment["APT_CONFIG"]).parent / "library"
    command = [sys.executable, "-c", COMMAND, library, "--output", output, "--vocab_size", "500"]
    return run_command(command, env=environment).check().stdout


def text_of(output, pattern):
    return list(documents(sorted(map(str, (output / "corpus").glob(pattern)))))


def test_every_source_is_there_without_its_mark_up(built):
    output, _ = built
    lines = {line for document in text_of(output, "*.txt") for line in document}
    assert "He has abjured errors." in lines and "Magic I here abjure." in lines
    assert {"The children walk to the playground.", "They look up it."} <= lines
    for name in ["dictionary", "Emma", "Persuasion", "page", "state", "ship", "module"]:
        assert set(sentences(name, 800)) <= lines, name
    for name in ["noun", "verb", "adj", "adv"]:
        assert set(sentences(name, 400)) <= lines, name
    assert sentences("Bible", 1)[0][:-1] + "; and it was so." in lines
    whole = "\n".join(lines)
    for gone in ("1913", "Shak", "{", "Syn:", "<", "[Obs.]", "Ge1", "function::", "heading", "the licence"):
        assert gone not in whole, gone


def test_held_out_are_documents_of_each_source_in_proportion(built):
    output, _ = built
    report = json.loads((output / "corpus.json").read_text(encoding="utf-8"))
    train, aside = text_of(output, "train-*.txt"), text_of(output, "eval.txt")
    assert (len(train), len(aside)) == (report["documents"], report["eval_documents"])
    assert {line for each in train for line in each}.isdisjoint(line for each in aside for line in each)
    for source in report["sources"]:
        assert 1 <= source["eval_documents"] <= 1 + 0.02 * source["documents"], source
    assert sum(each["sentences"] for each in report["sources"]) == sum(map(len, [*train, *aside]))
    assert min(map(len, [*train, *aside])) >= 8


def test_the_report_names_packages_versions_licences_and_what_is_left_out(built):
    output, printed = built
    report = json.loads((output / "corpus.json").read_text(encoding="utf-8"))
    names = [each["name"] for each in report["sources"]]
    assert names[:-1] == [name.replace("3-doc*", "3.77-doc") for name in PACKAGES] and names[-1] == "cpython"
    for source in report["sources"]:
        name, version = source["name"], source["version"]
        assert f"{name} {version} ({source['licence']}): {source['words']:,} words" in printed
        if name != "cpython":
            assert version == "1:2.0-1"
            assert (output / "licences" / f"{name}.txt").read_text() == f"{name} is free.\n"
    of = {each["name"]: each for each in report["sources"]}
    assert of["endless-sky-data"]["not_whole"] == 1600, "It has <name> in it, after each sentence."
    assert of["python3.77-doc"]["sentences"] == 1600, "a link to a page is no other page"


def test_the_same_packages_give_the_same_bytes_and_a_second_call_does_nothing(built, environment, tmp_path):
    output, _ = built
    build_in_a_process(tmp_path / "again", environment)
    one = content(output)
    assert len(one) == 17 + 3 and one == content(tmp_path / "again")
    stamps = {name: (output / name).stat().st_mtime_ns for name in one}
    assert "licences" not in build_in_a_process(output, {**environment, "PATH": ""})  # no apt-get is needed
    assert {name: (output / name).stat().st_mtime_ns for name in one} == stamps


def test_a_package_that_cannot_be_had_is_one_line(environment, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("APT_CONFIG", environment["APT_CONFIG"])
    with pytest.raises(InputError, match="no-such-package.*apt-get update.*--packages.*TEXT="):
        fetch_package("no-such-package", str(tmp_path / "a"))
    with pytest.raises(InputError, match="names nothing that it depends on"):
        fetch_package("anarchism*", str(tmp_path / "b"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--output", str(tmp_path / "corpus")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Debian package dict-gcide: this system has no apt-get;")
    assert main(["--output", str(tmp_path / "corpus"), "--packages", "dict-gcide,wordnet"]) == 2
    assert "'wordnet' is none of dict-gcide" in capsys.readouterr().err


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_package_that_a_release_lacks_is_left_out_where_that_is_expected(
    everywhere, environment, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("APT_CONFIG", environment["APT_CONFIG"])
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    game = Source("no-such-game", anarchism_documents, "GPL-3+", "a game", everywhere)
    of_all = Source("anarchism", anarchism_documents, "GPL-2", "a book", everywhere=False)
    monkeypatch.setattr("data.build_corpus.SOURCES", (game, of_all))
    if everywhere:
        with pytest.raises(InputError, match="no-such-game: Unable to locate"):
            build(str(tmp_path / "corpus"), ("no-such-game", "anarchism"), vocab_size=300)
    else:
        report = build(str(tmp_path / "corpus"), ("no-such-game", "anarchism"), vocab_size=300)
        assert [each["name"] for each in report["sources"]] == ["anarchism", "cpython"]
        assert "no-such-game: left out" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["anarchism", "dict-gcide", "r-cran-janeaustenr"])
def test_a_package_of_another_form_is_one_line(name, tmp_path, monkeypatch, capsys):
    """Nothing where its text is, the file missing, and a novel that is packed otherwise."""
    if name == "r-cran-janeaustenr":
        CONTENTS[name](tmp_path)
        (packed,) = tmp_path.rglob("*.rdb")
        packed.write_bytes(b"PK" * 4 + packed.read_bytes()[8:])
    monkeypatch.setattr("data.build_corpus.fetch_package", lambda *_: Package(name, "1.0", str(tmp_path)))
    assert main(["--output", str(tmp_path / "corpus"), "--packages", name]) == 2
    line = f"error: Debian package {name} 1.0 has no text in its usual place and form; leave {name} out"
    assert capsys.readouterr().err.startswith(line)


def test_text_of_your_own(tmp_path, capsys):
    text = tmp_path / "own.txt"
    lines = [*sentences("garden", 900), *sentences("garden", 30)]
    text.write_text("\n\n".join("\n".join(lines[start : start + 10]) for start in range(0, 930, 10)), "utf-8")
    arguments = ["--output", str(tmp_path / "corpus"), "--text", str(text), "--vocab_size", "200"]
    assert main(arguments) == 0
    assert "your own): " in capsys.readouterr().out
    report = json.loads((tmp_path / "corpus/corpus.json").read_text(encoding="utf-8"))
    (source,) = report["sources"]
    assert (source["sentences"], source["duplicates"], report["vocab_size"]) == (900, 30, 200)
    os.utime(text, (1, 1))  # another file, for all that can be seen
    before = (tmp_path / "corpus/corpus.json").stat().st_mtime_ns
    assert main(arguments) == 0 and (tmp_path / "corpus/corpus.json").stat().st_mtime_ns > before
    with pytest.raises(
        InputError, match="--text: .*/corpus/train-0.txt would be replaced; name another --out"
    ):
        build(str(tmp_path / "corpus"), text=str(tmp_path / "corpus/corpus/train-*.txt"), vocab_size=300)
    for few in (7, 12, 90):  # no document, one, and two, of which one is held out
        text.write_text("\n".join(sentences("garden", few)), "utf-8")
        with pytest.raises(InputError, match="--text: too little text"):
            build(str(tmp_path / "little"), text=str(text), vocab_size=300)


@pytest.mark.parametrize(
    "given, kept",
    [
        ("The cat is here.", "The cat is here."),
        ('"The cat is here."', "The cat is here."),
        ('"The cat is here.', "The cat is here."),
        ('The cat is here."', "The cat is here."),
        ('"Yes," she said, "it is."', '"Yes," she said, "it is."'),
        ("Ann\u2019s  son \u2014 the old \u2014 hasn\u2019t come!", "Ann's son - the old - hasn't come!"),
        ("The act of abolishing something.", "The act of abolishing something."),
        ("the cat is here.", None),
        ("The cat is here", None),
        ("It is.", None),
        ("It is 3 * 4 + 5 / 6 = 14.", None),
        ("It is <name> who came.", None),
        ("It is " + "very " * 80 + "long.", None),
    ],
)
def test_whole_sentences(given, kept):
    assert whole_sentence(plain_punctuation(given)) == kept


def test_whole_sentences_of_real_text(real_lines):
    kept = [line for line in map(whole_sentence, map(plain_punctuation, real_lines)) if line]
    assert 200 < len(kept) < len(real_lines) and not any("<" in line or "{" in line for line in kept)


def test_a_clause_has_an_auxiliary_or_a_pronoun():
    for sentence in ("Dogs can bark.", "They bark.", "Isn't it?", "He's here.", "The one who barks."):
        assert has_clause(sentence), sentence
    for phrase in ("The act of barking.", "A loud bark; a cry.", "Of the Isles.", "Punitive justice."):
        assert not has_clause(phrase), phrase


def test_short_documents_are_joined_and_long_ones_cut():
    lines = [str(number) for number in range(300)]
    found = list(regrouped([lines[:3], lines[3:7], lines[7:12], lines[12:200], lines[200:205]]))
    assert [line for document in found for line in document] == lines[:200]
    assert found[0] == lines[:12] and max(map(len, found)) <= 80 and min(map(len, found)) >= 8


def test_held_out_documents_do_not_depend_on_the_order():
    texts = [[f"document {number}", *map(str, range(number % 7))] for number in range(500)]
    kept, aside = held_out(texts, 0.1)
    assert sorted(kept + aside) == sorted(texts)
    backwards = held_out(texts[::-1], 0.1)
    assert sorted(backwards[1]) == sorted(aside)
    size = sum(len(line) for text in texts for line in text)
    assert 0.09 < sum(len(line) for text in aside for line in text) / size < 0.12
