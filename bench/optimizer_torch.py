"""Worker of bench/optimizer.py: fused AdamW of PyTorch, in an environment of its own.

    python -m bench.optimizer_torch < shapes.json

Reads the tensors' shapes as one line of JSON, then makes one update for every further line and answers with
its seconds.
"""

from __future__ import annotations

import json
import sys
import time

import torch


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for shape in json.loads(sys.stdin.readline()):
        parameter = torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02)
        parameter.grad = torch.randn(shape, generator=generator) * 1e-3
        parameters.append(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        optimizer.step()
        print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
