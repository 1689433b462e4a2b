"""BytePS as it is loaded: what it asks of the machine."""

from __future__ import annotations

import pytest

from base.errors import InputError
from comm.byteps.library import check_gpu


def test_byteps_for_gpus_needs_one_for_each_local_rank():
    check_gpu(cuda=False, gpus=0, local_rank=3)
    check_gpu(cuda=True, gpus=4, local_rank=3)
    for gpus, local_rank in ((0, 0), (2, 2)):
        with pytest.raises(InputError) as raised:
            check_gpu(True, gpus, local_rank)
        assert f"local rank {local_rank} (GPUs of this host: {gpus})" in str(raised.value)
        assert "make setup CUDA=cpu" in str(raised.value)
