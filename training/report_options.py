"""Options about what a run says, which pretraining and fine-tuning share. Standard library only."""

from __future__ import annotations

from typing import Any, Callable

from base.command_line import path_name, positive, positive_int


def add_report_options(add: Callable[..., Any], log_interval: int) -> None:
    """Adds --log_interval, with its default, and the options beside it."""
    add(
        "--log_interval",
        type=positive_int,
        default=log_interval,
        help=f"steps between lines of metrics (default: {log_interval})",
    )
    add(
        "--progress",
        choices=["auto", "bar", "lines", "none"],
        default="auto",
        help="auto: a bar on a terminal, lines elsewhere (default: auto)",
    )
    add(
        "--peak_tflops",
        type=positive,
        metavar="TFLOPS",
        help="10^12 operations a second that a process's device reaches at most, which mfu is the share of; "
        "312 for an A100 in float16 (default: measured in matrix products, at the start and now and then)",
    )
    add("--verbose", action="store_true", help="print all options, and a line for every step")
    add(
        "--estimate",
        action="store_true",
        help="print the memory that the run needs, by its use, beside what is there, and leave; exit code 2 "
        "where it does not fit. Rule of thumb: 16 bytes a parameter, 12 more in rank 0 for its copy while it "
        "saves, and what a batch's activations take",
    )
    add(
        "--profile",
        type=path_name,
        metavar="FILE",
        help="write a trace of steps 10 to 14 for python -m training.profile and Chrome's viewers (rank 1 "
        "writes FILE.1, ...)",
    )
