"""Small SQuAD files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.processes import ROOT

SHARED = ROOT.parent / "shared/data/squad-v2.0-dev-3articles.json"
REASON = "no SQuAD articles beside the project"


def question(
    identity: str, text: str, *answers: tuple[str, int], impossible: bool | None = None
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": identity,
        "question": text,
        "answers": [{"text": answer, "answer_start": start} for answer, start in answers],
    }
    if impossible is not None:
        entry["is_impossible"] = impossible
    return entry


def squad(*paragraphs: tuple[str, list[dict[str, Any]]], version: str = "1.1") -> dict[str, Any]:
    """Each paragraph, a context and its questions, in an article of its own."""
    return {
        "version": version,
        "data": [
            {"title": f"title {number}", "paragraphs": [{"context": context, "qas": qas}]}
            for number, (context, qas) in enumerate(paragraphs)
        ],
    }


def about(context: str, *answers: str, version_2: bool = False) -> dict[str, Any]:
    """One question for each answer, which is found in the context."""
    flag = False if version_2 else None
    qas = [
        question(f"q{number}", f"What is number {number}?", (each, context.index(each)), impossible=flag)
        for number, each in enumerate(answers)
    ]
    return squad((context, qas))


def written(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)
