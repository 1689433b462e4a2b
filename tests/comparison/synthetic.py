"""Records of launches that nobody made: for tests of what is said about them."""

from __future__ import annotations

import math
import random
from typing import Any, Sequence

from comparison.backends import BACKENDS
from comparison.runs.record import PROFILED, TIMED, Interval, Record
from comparison.settings import Setting, all_settings
from training.profiling.breakdown import EXPOSED, PARTS
from training.profiling.trace import ATTENTION, DATA_WAIT, OPTIMIZER, PRODUCTS

STEPS, WARM_UP, LOG = 60, 20, 10
TOKENS, PADDED, SEQUENCES = 950, 1000, 40  # a step and a worker

FACTS: dict[str, Any] = {
    "machine": {"cpu": "Example CPU", "cores": 2, "commit": "abc1234", "isa": ["avx2", "fma"],
                "memory_gib": 8, "system": "Linux", "python": "3.11", "date": "2026-01-01 00:00 UTC"},
    "versions": {"mxnet": "1.9.1", "horovod": "0.28.1"},
    "options": {"backends": ["hvd_mpi", "byteps"]},
    "model": "bert_2_128_2",
    "vocab_size": 4096,
    "max_seq_length": 32,
    "use_avg_len": True,
    "accumulate": 1,
    "num_steps": STEPS,
    "warmup_steps": WARM_UP,
    "log_interval": LOG,
    "confidence": 0.95,
    "price_per_hour": None,
    "gpus_per_instance": None,
    "command": ["python", "compare.py", "--output", "runs/a directory"],
    "titles": {key: backend.title for key, backend in BACKENDS.items()},
}  # fmt: skip


SHA256 = "0123456789abcdef" * 4  # of the parameters that every right launch saves


def loss_at(step: int) -> float:
    return 6.0 + 2.4 * math.exp(-step / 40)


def norm_at(step: int) -> float:
    return 1.5 + step / 100


def record(
    setting: Setting,
    repeat: int = 0,
    step_s: float | Sequence[float] = 0.07,
    scale: float = 1.0,
    from_step: int = 0,
    **changes: Any,
) -> Record:
    """A timed launch that went well, but for `changes`: a line every LOG steps. `step_s`: of all lines or of
    each; `scale`: of the losses after `from_step`."""
    lines = []
    for index, seconds in enumerate([step_s] * (STEPS // LOG) if isinstance(step_s, float) else step_s):
        step = (index + 1) * LOG
        factor = scale if step > from_step else 1.0
        rates = [setting.workers * each / seconds for each in (TOKENS, PADDED, SEQUENCES)]
        figures = (loss_at(step) * factor, 0.69 * factor, norm_at(step), 0.01 * (1 - step / 80))
        lines.append(Interval(step, seconds, *rates, *figures))
    peaks = {"worker": 700 << 20}
    if setting.backend == "byteps" and setting.workers > 1:
        peaks = {"worker": 800 << 20, "server": 90 << 20, "scheduler": 30 << 20}
    values: dict[str, Any] = {
        "warm_up": tuple(lines[: WARM_UP // LOG]),
        "intervals": tuple(lines[WARM_UP // LOG :]),
        "params_sha256": SHA256,
        "start_up_s": 3.0 + 0.1 * repeat,
        "seconds": 9.0,
        "peak_bytes": peaks,
        "command": ("mpirun", "-np", str(setting.workers), "python", "run_pretraining_hvd.py"),
        "begun": "2026-01-01T00:00:00Z",
    }
    return Record(setting, TIMED, repeat, **{**values, **changes})


def failed(setting: Setting, repeat: int, reason: str, out_of_memory: bool = False) -> Record:
    return Record(
        setting, TIMED, repeat, failure=reason, out_of_memory=out_of_memory, seconds=4.0, command=("mpirun",)
    )


def profiled(
    setting: Setting, exposed: float = 20.0, hidden: float = 5.0, repeat: int = 0, **changes: Any
) -> Record:
    """A profiled launch: 50 ms of computing a step, `exposed` and `hidden` ms of communication."""
    times = {PRODUCTS: 30.0, ATTENTION: 8.0, OPTIMIZER: 12.0, EXPOSED: exposed, DATA_WAIT: 0.5}
    whole = math.fsum(times.values())
    parts = {
        part: {"ms": times.get(part, 0.0), "share": times.get(part, 0.0) / whole, "calls": 1.0}
        for part in PARTS
    }
    breakdown = {
        "step_ms": whole,
        "parts": parts,
        "hidden_ms": {EXPOSED: hidden, DATA_WAIT: 0.0},
        "facts": {"rank": 0},
    }
    values = {"breakdown": breakdown, "exchanged_bytes": 4_200_000}
    return Record(setting, PROFILED, repeat, **{**values, **changes})


def default_settings() -> list[Setting]:
    return all_settings(("hvd_mpi", "hvd_gloo", "byteps"), (1, 2), ("float32", "bfloat16"), (512, 1024))


def whole_comparison(repeats: int = 5, seed: int = 0, slow: float = 1.4) -> list[Record]:
    """All default settings; BytePS with two workers takes `slow` times as long, all else is noise of 2%."""
    generator = random.Random(seed)
    found = []
    for repeat in range(repeats):
        minute = generator.lognormvariate(0, 0.1)
        for setting in default_settings():
            base = 0.03 * setting.batch_size / 512 * (1 if setting.dtype == "float32" else 0.8)
            base *= 1.3 if setting.workers == 2 else 1.0
            base *= slow if setting.backend == "byteps" and setting.workers == 2 else 1.0
            times = [base * minute * generator.lognormvariate(0, 0.02) for _ in range(STEPS // LOG)]
            found.append(record(setting, repeat, times))
    for setting in default_settings():
        exposed = 0.0 if setting.workers == 1 else 40.0 if setting.backend == "byteps" else 15.0
        # Of three launches one has stalled.
        for repeat, factor in enumerate((1.0, 8.0, 0.9)):
            found.append(profiled(setting, factor * exposed, factor * exposed / 4, repeat))
    return found
