"""The base of the tasks' networks on MXNet's operators; on the fused ones it is bert.fused.FusedBert."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluonnlp.model.bert import BERTModel


class PlainBert(mx.gluon.HybridBlock):
    """A BERT on MXNet's operators, which a subclass calls in its `hybrid_forward`, below a `head`, which the
    task sets, or its own heads. `dtype`: of the model."""

    adds_in_backward = True  # whether grad_req "add" is heeded

    def __init__(self, bert: BERTModel, dtype: str = "float32"):
        super().__init__(prefix="")
        self._dtype = dtype
        self.bert = bert

    def pack_weights(self) -> None:
        """Nothing to do: MXNet's operators take the weights as they are."""

    def lengths(self, F: Any, valid_lengths: Any) -> Any:
        """The lengths as BERT takes them: attention masks are made from lengths of the model's own dtype; 512
        is exact in float16."""
        return F.cast(valid_lengths, dtype=self._dtype)
