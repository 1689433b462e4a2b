from __future__ import annotations

import pytest

from tests import namespaces


@pytest.fixture
def two_hosts(request, tmp_path):
    """Two network namespaces as two hosts (`tests.namespaces.TwoHosts`) with one slot each, or as many as an
    indirect parameter says. Skips where namespaces cannot be made."""
    try:
        with namespaces.two_hosts(tmp_path, slots=getattr(request, "param", 1)) as hosts:
            yield hosts
    except namespaces.Unavailable as reason:
        pytest.skip(str(reason))
