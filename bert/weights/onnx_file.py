"""BERT as an ONNX graph: model.onnx, whose numbers lie beside it in model.onnx.data, of any size.

Inputs and outputs have the names that Hugging Face's exports give them: input_ids, attention_mask and
token_type_ids, int64 (batch, length); last_hidden_state (batch, length, units), pooler_output (batch, units),
logits (batch, length, tokens) of the masked-LM head and seq_relationship_logits (batch, 2), as far as the
weights have what they need. The network is that of Devlin et al. (arXiv:1810.04805), in float32.
"""

from __future__ import annotations

import math
import os
from typing import Any, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import replacing
from bert.configuration import RELU, BertConfig
from bert.weights.names import (
    DECODER,
    DECODER_BIAS,
    EMBEDDING,
    MASKED_LM,
    NEXT_SENTENCE,
    POOLER,
    names_of,
    part_of,
)
from bert.weights.tensors import Tensor, Weights, bytes_of, transposed

OPSET, IR_VERSION = 17, 8  # the first with LayerNormalization, and its file format: ONNX 1.12 of 2022
GRAPH, NUMBERS = "model.onnx", "model.onnx.data"
_NEXT = "seq_relationship_logits"
_ALIGNMENT = 64  # bytes, so that numbers can be mapped into memory
_UNSEEN = float(np.finfo(np.float32).min)  # added to scores of padding, as transformers does


def check_onnx() -> None:
    """Raises InputError where the package onnx, which an export needs, is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise InputError(f"--to onnx needs the package onnx ({error}): pip install onnx") from error


def write_onnx(weights: Weights, folder: str) -> None:
    """Writes both files, one tensor in memory at a time; the tensors have to be float32.

    Raises:
        InputError: the package onnx is not installed, or from reading the weights.
        OSError: from writing.
    """
    check_onnx()
    from onnx import TensorProto, helper

    graph = _Graph(weights.tensors, weights.config)
    outputs = _network(graph, weights)
    batch_length = ["batch", "length"]
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    numbers = _write_numbers(os.path.join(folder, NUMBERS), graph.used)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            weights.config.name,
            [helper.make_tensor_value_info(name, TensorProto.INT64, batch_length) for name in inputs],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in outputs.items()
            ],
            [*graph.constants, *numbers],
        ),
        producer_name="bert-pretraining-mxnet",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    with replacing(os.path.join(folder, GRAPH)) as file:
        file.write(model.SerializeToString(deterministic=True))


def _write_numbers(path: str, tensors: Mapping[str, Tensor]) -> list[Any]:
    """Writes tensors end to end; returns what a graph has of each, with its place in the file."""
    from onnx import StringStringEntryProto, TensorProto

    found = []
    with replacing(path) as file:
        for name, tensor in tensors.items():
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            content = bytes_of(tensor, name)
            place = {"location": NUMBERS, "offset": str(file.tell()), "length": str(len(content))}
            described = TensorProto(
                name=name,
                dims=tensor.shape,
                data_type=TensorProto.FLOAT,
                data_location=TensorProto.EXTERNAL,
                external_data=[StringStringEntryProto(key=key, value=each) for key, each in place.items()],
            )
            found.append(described)
            file.write(content.data)
    return found


class _Graph:
    """Nodes as they are added, in an order in which they can be computed.

    Attributes:
        nodes, constants: the graph's so far. used: tensors by the names that the graph has for them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], config: BertConfig):
        self._tensors = tensors
        self._config = config
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.used: dict[str, Tensor] = {}

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output, `name` or the node's number; returns the output's name."""
        from onnx import helper

        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values: Any, dtype: type) -> str:
        """A small array within the graph."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def weight(self, structural: str) -> str:
        """A tensor, under its name in Hugging Face's files; dense weights as (inputs, outputs)."""
        row = names_of(structural)
        tensor = self._tensors[structural]
        self.used[row.huggingface] = transposed(tensor) if row.kernel else tensor
        return row.huggingface

    def dense(self, x: str, name: str) -> str:
        return self.add(
            "Add", self.add("MatMul", x, self.weight(f"{name}.weight")), self.weight(f"{name}.bias")
        )

    def norm(self, x: str, name: str, output: str = "") -> str:
        parameters = self.weight(f"{name}.gamma"), self.weight(f"{name}.beta")
        return self.add(
            "LayerNormalization", x, *parameters, name=output, axis=-1, epsilon=self._config.epsilon
        )

    def scaled(self, x: str, factor: float) -> str:
        return self.add("Mul", x, self.constant(factor, np.float32))

    def activated(self, x: str) -> str:
        """ReLU, or GELU by erf or tanh (Hendrycks and Gimpel, arXiv:1606.08415, section 2)."""
        form = self._config.activation
        if form == RELU:
            return self.add("Relu", x)
        if form == "erf":
            bent = self.add("Erf", self.scaled(x, 1 / math.sqrt(2)))
        else:
            cube = self.add("Mul", self.add("Mul", x, x), x)
            inner = self.add("Add", x, self.scaled(cube, 0.044715))
            bent = self.add("Tanh", self.scaled(inner, math.sqrt(2 / math.pi)))
        return self.scaled(self.add("Mul", x, self.add("Add", bent, self.constant(1, np.float32))), 0.5)

    def attention(self, x: str, name: str, unseen: str) -> str:
        """Multi-head self-attention (Vaswani et al., arXiv:1706.03762, section 3.2), without its residual."""
        heads, width = self._config.heads, self._config.units // self._config.heads
        apart = self.constant([0, 0, heads, width], np.int64)
        query, key, value = (
            self.add(
                "Transpose",
                self.add("Reshape", self.dense(x, f"{name}attention_cell.proj_{part}"), apart),
                perm=axes,
            )
            for part, axes in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        products = self.scaled(self.add("MatMul", query, key), 1 / math.sqrt(width))
        shares = self.add("Softmax", self.add("Add", products, unseen), axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        together = self.add("Reshape", mixed, self.constant([0, 0, self._config.units], np.int64))
        return self.dense(together, f"{name}proj")


def _network(graph: _Graph, weights: Weights) -> dict[str, Sequence[Any]]:
    """Adds all of BERT; returns its outputs' shapes by name."""
    config, heads = weights.config, {part_of(name) for name in weights.tensors}
    add = graph.add
    visible = add("Unsqueeze", "attention_mask", graph.constant([1, 2], np.int64))
    hidden = add("Sub", graph.constant(1, np.float32), add("Cast", visible, to=1))
    unseen = graph.scaled(hidden, _UNSEEN)

    length = add("Gather", add("Shape", "input_ids"), graph.constant([1], np.int64))
    zero = graph.constant([0], np.int64)
    positions = add("Slice", graph.weight("encoder.position_weight"), zero, length, zero)
    words = add("Gather", graph.weight(EMBEDDING), "input_ids")
    kinds = add("Gather", graph.weight("token_type_embed.0.weight"), "token_type_ids")
    x = graph.norm(add("Add", add("Add", words, kinds), positions), "encoder.layer_norm")
    last = "last_hidden_state"
    for layer in range(config.layers):
        cell = f"encoder.transformer_cells.{layer}."
        x = graph.norm(add("Add", x, graph.attention(x, cell, unseen)), f"{cell}layer_norm")
        inner = graph.dense(graph.activated(graph.dense(x, f"{cell}ffn.ffn_1")), f"{cell}ffn.ffn_2")
        output = last if layer == config.layers - 1 else ""
        x = graph.norm(add("Add", x, inner), f"{cell}ffn.layer_norm", output)

    outputs: dict[str, Sequence[Any]] = {last: ("batch", "length", config.units)}
    if POOLER in heads:
        first = add("Gather", last, graph.constant(0, np.int64), axis=1)
        add("Tanh", graph.dense(first, "pooler"), name="pooler_output")
        outputs["pooler_output"] = ("batch", config.units)
    if MASKED_LM in heads:
        transformed = graph.norm(graph.activated(graph.dense(last, "decoder.0")), "decoder.2")
        decoder = graph.weight(DECODER if DECODER in weights.tensors else EMBEDDING)
        scores = add("MatMul", transformed, add("Transpose", decoder, perm=[1, 0]))
        add("Add", scores, graph.weight(DECODER_BIAS), name="logits")
        outputs["logits"] = ("batch", "length", weights.vocab_size)
    if NEXT_SENTENCE in heads and POOLER in heads:
        # No kernel in TensorFlow's files, so not transposed by its name.
        by_class = add("Transpose", graph.weight("classifier.weight"), perm=[1, 0])
        add("Add", add("MatMul", "pooler_output", by_class), graph.weight("classifier.bias"), name=_NEXT)
        outputs[_NEXT] = ("batch", 2)
    return outputs
