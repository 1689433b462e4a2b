from __future__ import annotations

import pytest

from bert.operators import load_operators


@pytest.fixture(scope="session")
def fused_operators() -> None:
    """Loads the fused operators, which stand beside MXNet's own from then on."""
    assert load_operators(), "make setup builds the fused operators"
