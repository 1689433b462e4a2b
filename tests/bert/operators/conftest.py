from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def loaded(fused_operators: None) -> None:
    """All tests of this folder call the fused operators."""
