"""Score a file of predictions as the official SQuAD scripts do.

    python -m data.questions.score dev-v2.0.json predictions.json [--null_odds null_odds.json]

The scores of evaluate-v2.0.py, or of evaluate-v1.1.py where the file does not say which questions are
unanswerable, as JSON. They are those of the predictions as they are; the official script given null odds
(--na-prob-file) also counts what has odds above 1 as no answer: --odds_threshold 1 does that here.
"""

from __future__ import annotations

import json
import sys
from typing import Sequence

from base.command_line import OptionParser, finite, path_name
from base.errors import InputError
from data.questions.answers import read_null_odds, read_predictions
from data.questions.scores import score_v1, score_v2
from data.questions.squad_files import read_questions


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(
        prog="python -m data.questions.score",
        description="Score a file of predictions as the official SQuAD scripts do.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "questions", type=path_name, help="SQuAD's JSON file with the right answers, 1.1 or 2.0"
    )
    parser.add_argument(
        "predictions", type=path_name, help="JSON file id -> answer, such as predictions.json"
    )
    parser.add_argument(
        "--null_odds", type=path_name, help="JSON file id -> odds of no answer, such as null_odds.json"
    )
    parser.add_argument("--odds_threshold", type=finite, help="count predictions above it as no answer")
    try:
        options = parser.parse_args(arguments)
        if options.odds_threshold is not None and not options.null_odds:
            raise InputError("--odds_threshold is for --null_odds; give both")
        questions = read_questions(options.questions, "questions")
        predictions = read_predictions(options.predictions, "predictions")
        if questions.version_2:
            odds = read_null_odds(options.null_odds, "--null_odds") if options.null_odds else None
            result = score_v2(questions, predictions, odds, options.odds_threshold)
        elif options.null_odds:
            raise InputError(
                f"--null_odds: {options.questions} is SQuAD 1.1, where every question has an answer"
            )
        else:
            result = score_v1(questions, predictions)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
