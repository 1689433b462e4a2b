"""Bases of the tasks' networks: BERT on MXNet's operators, and a head on it or on the fused ones."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluonnlp.model.bert import BERTModel

from bert.configuration import BertConfig, Dropout
from bert.fused import FusedBert


class PlainBert(mx.gluon.HybridBlock):
    """A BERT on MXNet's operators, which a subclass calls in its `hybrid_forward`, below a `head` or its own
    heads. `dtype`: of the model."""

    adds_in_backward = True  # whether grad_req "add" is heeded

    def __init__(self, bert: BERTModel, dtype: str = "float32", head: mx.gluon.HybridBlock | None = None):
        super().__init__(prefix="")
        self._dtype = dtype
        self.bert = bert
        if head is not None:
            self.head = head

    def pack_weights(self) -> None:
        """Nothing to do: MXNet's operators take the weights as they are."""

    def lengths(self, F: Any, valid_lengths: Any) -> Any:
        """The lengths as BERT takes them: attention masks are made from lengths of the model's own dtype; 512
        is exact in float16."""
        return F.cast(valid_lengths, dtype=self._dtype)


class FusedBertBelow(FusedBert):
    """A BERT on the fused operators, which a subclass calls below a `head` of MXNet's."""

    def __init__(
        self,
        bert: BERTModel,
        head: mx.gluon.HybridBlock,
        config: BertConfig,
        dtype: str,
        dropout: float | Dropout,
    ):
        super().__init__(bert, config, dtype, dropout)
        self.head = head
