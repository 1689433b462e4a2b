"""results.py --html: pages of runs that nobody made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import results
from base.errors import InputError
from tests.pages import checked, look_at, samples_behind
from tests.processes import run_command
from tests.training.results.made import PRETRAINED, seeds, written
from training.results.page import read_curves

HOSTILE = "_$\\x <script>alert(1)<_script> [a](https:x) \x01"


def metrics(folder: str, steps: range, restarts: tuple[int, ...] = (), stage_2: int = 10**6) -> None:
    """Lines of a run; `restarts`: the steps after which a launch went on with it."""
    lines = []
    for step in steps:
        stage = {"stage": 1 + (step > stage_2)} if stage_2 < 10**6 else {}
        line = {"step": step, **stage, "time": step, "mlm_loss": 9 - step / 10, "mlm_loss_se": 0.1}
        line |= {"resumed_at": step - 1} if step - 1 in restarts else {}
        lines.append({**line, "lr": 1e-3 / step, "tokens_per_s": 1e4 + step, "rank_wait_s": {}})
        evaluated = {"step": step, **stage, "eval_mlm_loss": 9.1 - step / 10, "eval_f1": 0.5, "eval_s": 1}
        lines += [evaluated] if step % 10 == 0 else []
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (Path(folder) / "metrics.jsonl").write_text(text + '{"step": "x", "mlm_loss": 1}\n[1]\n{"cut off')


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Two runs, one of them with a hostile name, and a folder without results."""
    folder = tmp_path_factory.mktemp("runs")
    for name, restarts in ((HOSTILE, (17,)), ("other", ())):
        run = written(folder / name, PRETRAINED)
        metrics(run, range(1, 41), restarts)
    (folder / "empty").mkdir()
    words = [str(folder / HOSTILE), str(folder / "other"), str(folder / "empty")]
    assert results.main([*words, "--partial", "--html", str(folder / "page.html")]) == 0
    return folder / "page.html"


def test_a_page_of_two_runs(page):
    text = page.read_text("utf-8")
    found = checked(text)
    assert found.scripts == 1 and str(page.parent / HOSTILE) in found.text
    assert all(link.startswith("#") for link in found.links), "no name has become a link"
    for title in ("mlm loss, nats", "f1", "learning rate", "tokens/s", "evaluation", "restart"):
        assert f">{title}</text>" in text
    assert "mlm loss se" not in text and "eval s" not in text


def test_it_in_a_browser(page, tmp_path):
    seen = look_at(page, tmp_path)
    assert seen.console == []
    for frame in seen.frames:
        # In four panels: three figures of two runs and two with points, a restart everywhere.
        assert frame["overflow"] == 0 and frame["marks"][0] >= 3 * 2 + 2 * 2 + 4


def test_restarts(tmp_path):
    run = written(tmp_path / "staged", PRETRAINED)
    metrics(run, range(1, 41), (7, 29), stage_2=20)
    curves = read_curves(run)
    assert curves.restarts == [7, 29] and curves.stage_2 == 20
    assert curves.points("mlm_loss")[39] == (40, 5.0) and len(curves.points("mlm_loss")) == 40


def test_verdicts_on_seeds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = {seed: 88 + seed / 10 for seed in range(5)}
    other = {seed: 90 + seed / 9 for seed in range(5)}
    seeds(Path("one"), one), seeds(Path("other"), other)
    assert results.main(["--compare", "one", "other", "--html", "page.html", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    text = Path("page.html").read_text("utf-8")
    checked(text)
    ((verdict, rows),) = samples_behind(text)
    assert verdict == "different" and len(rows) == 5
    for seed, *scores in rows:
        assert list(map(float, scores)) == pytest.approx([one[int(seed)], other[int(seed)]], rel=1e-5)
    assert text.count("<svg") == 1 and ">f1</text>" in text


def test_a_page_that_cannot_be_written(tmp_path):
    run = written(tmp_path / "run", PRETRAINED)
    with pytest.raises(InputError, match=r"^--html .*none/page.html: cannot be written: No such file"):
        results.main([run, "--html", str(tmp_path / "none" / "page.html")])


def test_it_needs_no_mxnet(tmp_path):
    run = written(tmp_path / "run", PRETRAINED)
    code = "import sys, results; results.main(sys.argv[1:]); sys.exit('mxnet' in sys.modules)"
    run_command([sys.executable, "-c", code, run, "--html", tmp_path / "page.html"]).check()
    assert "<svg" not in (tmp_path / "page.html").read_text("utf-8"), "there are no metrics"
