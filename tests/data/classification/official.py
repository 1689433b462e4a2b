"""Tiny files in the official forms of GLUE and XNLI: their headers, columns and quirks, our texts."""

from __future__ import annotations

from pathlib import Path

BOM = "\ufeff"
PARSES = ["( a b )", "( c )", "(ROOT a)", "(ROOT c)"]


def write(path: Path, lines: list[list[str]], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join("\t".join(cells) + end for cells in lines).encode("utf-8"))


def write_task(name: str, folder: Path) -> None:
    """The files of one task below `folder`/`name`."""
    _WRITERS[name](folder / name)


def cola(folder: Path) -> None:
    # Source, label, the author's mark, sentence; no header. A quotation mark is open.
    rows = [
        ["gj04", "1", "", 'The door says "push.'],
        ["gj04", "0", "*", "Door the says."],
        ["ks08", "1", "", "caf\u00e9 opens"],
    ]
    write(folder / "train.tsv", rows)
    write(folder / "dev.tsv", rows[:2])
    write(folder / "test.tsv", [["index", "sentence"], ["0", "A test."], ["1", ""]])


def sst(folder: Path) -> None:
    write(folder / "train.tsv", [["sentence", "label"], ["a warm film ", "1"], ["so long ", "0"]], "\r\n")
    write(folder / "dev.tsv", [["sentence", "label"], ["fine", "1"]])
    write(folder / "test.tsv", [["index", "sentence"], ["0", "dull ."], ["1", "bright ."]])


def mrpc(folder: Path) -> None:
    header = [BOM + "Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    rows = [
        ["1", "11", "12", 'He said "go', "Go , he said"],
        ["0", "13", "14", "One thing .", "Another ."],
        ["1", "15", "16", "Rain fell", "It rained"],
    ]
    write(folder / "train.tsv", [header, *rows[:2]])
    write(folder / "dev.tsv", [header, rows[2]])
    write(folder / "test.tsv", [["index", *header[1:]], ["0", *rows[1][1:]], ["1", *rows[0][1:]]])


def msr(folder: Path) -> None:
    """MRPC as its authors distribute it, with GLUE's list of development pairs."""
    mrpc(folder)
    header, *rows = (line.split("\t") for line in (folder / "train.tsv").read_text("utf-8").splitlines())
    dev = (folder / "dev.tsv").read_text("utf-8").splitlines()[1].split("\t")
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").unlink()
    write(folder / "msr_paraphrase_train.txt", [header, rows[0], dev, rows[1]])
    write(folder / "msr_paraphrase_test.txt", [header, rows[1]])
    write(folder / "dev_ids.tsv", [["15", "16"]])


def stsb(folder: Path) -> None:
    header = ["index", "genre", "filename", "year", "old_index", "source1", "source2"]
    start = ["main-captions", "MSRvid", "2012test", "0001", "none", "none"]
    rows = [["A man sings.", "A man is singing.", "4.750"], ["A dog.", "A cat.", "0.5"]]
    lines = [[str(number), *start, *row] for number, row in enumerate(rows)]
    write(folder / "train.tsv", [[*header, "sentence1", "sentence2", "score"], *lines])
    write(folder / "dev.tsv", [[*header, "sentence1", "sentence2", "score"], lines[1]])
    write(folder / "test.tsv", [[*header, "sentence1", "sentence2"], *(line[:-1] for line in lines)])


def qqp(folder: Path) -> None:
    header = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    good = [
        [str(n), str(2 * n), str(2 * n + 1), f'Is "{n} even?', f"Is {n} odd?", str(n % 2)] for n in range(300)
    ]
    # One question with a line break in it: two lines that are none.
    good[200:201] = [["200", "400", "401", "What is"], ["this?", "Why?", "0"]]
    write(folder / "train.tsv", [header, *good])
    write(folder / "dev.tsv", [header, *good[:3]])
    write(folder / "test.tsv", [["id", "question1", "question2"], ["0", "Who?", "Who is?"]])


def mnli(folder: Path) -> None:
    start = ["index", "promptID", "pairID", "genre"]
    parses = [f"sentence{n}_{kind}" for kind in ("binary_parse", "parse") for n in (1, 2)]
    texts = ["sentence1", "sentence2"]
    labels = ("neutral", "entailment", "contradiction")
    rows = [[str(n), f"{n}1", f"{n}1n", "fiction", *PARSES, f"Premise {n}.", f"Claim {n}."] for n in range(3)]
    train = [[*row, label, label] for row, label in zip(rows, labels)]
    five = [f"label{n}" for n in range(1, 6)]
    dev = [[*row, *[label] * 5, label] for row, label in zip(rows, labels)]
    write(folder / "train.tsv", [[*start, *parses, *texts, "label1", "gold_label"], *train])
    write(folder / "dev_matched.tsv", [[*start, *parses, *texts, *five, "gold_label"], *dev])
    write(folder / "dev_mismatched.tsv", [[*start, *parses, *texts, *five, "gold_label"], *dev[:2]])
    write(folder / "test_matched.tsv", [[*start, *parses, *texts], *rows])
    write(folder / "test_mismatched.tsv", [[*start, *parses, *texts], *rows[1:]])
    write(folder.parent / "diagnostic" / "diagnostic.tsv", [["index", *texts], ["0", "a", "b"]])


def _inference(folder: Path, texts: list[str], labels: tuple[str, str]) -> None:
    rows = [[str(n), f"First {n}", f"Second {n}", labels[n % 2]] for n in range(4)]
    write(folder / "train.tsv", [["index", *texts, "label"], *rows])
    write(folder / "dev.tsv", [["index", *texts, "label"], *rows[:2]])
    write(folder / "test.tsv", [["index", *texts], *(row[:3] for row in rows)])


def xnli(folder: Path) -> None:
    train = [["premise", "hypo", "label"], ["Es regnet .", "Es ist nass .", "entailment"]]
    train.append(["Er schl\u00e4ft .", "Er l\u00e4uft .", "contradictory"])
    write(folder / "multinli" / "multinli.train.de.tsv", train)
    parses = [f"sentence{n}_{kind}" for kind in ("binary_parse", "parse") for n in (1, 2)]
    header = ["language", "gold_label", *parses, "sentence1", "sentence2", "promptID", "pairID", "genre"]
    header += [*(f"label{n}" for n in range(1, 6)), "sentence1_tokenized", "sentence2_tokenized", "match"]

    def row(language: str, label: str, first: str) -> list[str]:
        start = [language, label, *[""] * 4, first, "Ja.", "1", "2", "face"]
        return [*start, *[label] * 5, first, "Ja .", "True"]

    rows = [row("de", "neutral", "Nein."), row("en", "neutral", "No."), row("de", "contradiction", "Nie.")]
    write(folder / "xnli.dev.tsv", [header, *rows])
    write(folder / "xnli.test.tsv", [header, rows[1], rows[0]])


_WRITERS = {
    "CoLA": cola,
    "SST-2": sst,
    "MRPC": mrpc,
    "STS-B": stsb,
    "QQP": qqp,
    "MNLI": mnli,
    "QNLI": lambda folder: _inference(folder, ["question", "sentence"], ("entailment", "not_entailment")),
    "RTE": lambda folder: _inference(folder, ["sentence1", "sentence2"], ("not_entailment", "entailment")),
    "WNLI": lambda folder: _inference(folder, ["sentence1", "sentence2"], ("0", "1")),
    "XNLI": xnli,
}
