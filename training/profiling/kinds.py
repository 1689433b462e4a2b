"""Kinds of work, by an operator's name and, for a few, by its neighbours in time."""

from __future__ import annotations

from typing import Sequence

PRODUCTS = "matrix products"
ATTENTION = "attention"
NORMALISATION = "normalisation"  # with dropout and residual
ACTIVATION = "activation"
EMBEDDING = "embedding"
HEADS = "heads and loss"
OPTIMIZER = "optimizer"  # norm, update, packing of weights, sums over micro-batches
COMMUNICATION = "communication"
OTHER = "other operators"
KINDS = (PRODUCTS, ATTENTION, NORMALISATION, ACTIVATION, EMBEDDING, HEADS, OPTIMIZER, COMMUNICATION, OTHER)

# Without `_backward_` and leading underscores, in lower case.
_BY_NAME = {
    PRODUCTS: "bert_dense bert_self_attention bert_feed_forward fullyconnected batch_dot linalg_gemm"
    " linalg_gemm2",
    ATTENTION: "bert_attention contrib_interleaved_matmul_selfatt_qk"
    " contrib_interleaved_matmul_selfatt_valatt interleaved_matmul_selfatt_qk"
    " interleaved_matmul_selfatt_valatt softmax masked_softmax stack concat"
    " contrib_arange_like broadcast_lesser broadcast_axis broadcast_div",
    NORMALISATION: "bert_layer_norm bert_add_norm layernorm contrib_div_sqrt_dim",
    ACTIVATION: "bert_gelu bert_bias_gelu leakyrelu",
    EMBEDDING: "bert_embed embedding broadcast_add",
    # Most of bert_words is a product of the decoder's backward pass.
    HEADS: "bert_gather bert_unpack bert_decode_loss bert_words gather_nd log_softmax pick argmax"
    " broadcast_equal activation tanh sum mul_scalar negative slice_axis",
    OPTIMIZER: "bert_lamb bert_global_norm bert_pack lamb_update_phase1 lamb_update_phase2"
    " mp_lamb_update_phase1 mp_lamb_update_phase2 multi_sum_sq multi_lans_update multi_lamb_update all_finite"
    " multi_all_finite dot sqrt norm clip",
}
_KIND = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}
# The same operator serves several ends; in the update it is the optimizer's.
_ALSO_IN_UPDATES = {"sum", "mul_scalar", "negative", "concat", "add_n", "elemwise_add", "cast", "copyto",
                    "copycpu2cpu", "copygpu2gpu", "zeros", "zeros_like", "setvalueop", "square", "plus",
                    "plus_scalar", "broadcast_mul", "broadcast_add", "elemwise_mul", "amp_cast"}  # fmt: skip
_COMMUNICATION = ("horovod", "byteps", "nccl", "kvstore")
_HOLD = "hold"  # comm/byteps/library.py: arrays that wait for an exchange
# comm/byteps/communicator.py, between the backward pass and the update: into buckets, the mean, out of them.
_PACKING = {"concat", "slice_axis", "div_scalar"}
_GRADIENT = "_backward_"


def is_backward(name: str) -> bool:
    """Whether the operator, or most of what is bulked in it, belongs to the backward pass."""
    parts = name.split(",")
    return 2 * sum(part.startswith(_GRADIENT) for part in parts) > len(parts)


def is_bulk(name: str) -> bool:
    """Whether the event stands for several operators, which cannot be told apart."""
    return "," in name or name == "ImperativeBulk"


def kind_of_communication(name: str) -> bool:
    """Whether the operator hands arrays to Horovod, BytePS or a store of MXNet's own."""
    return name == _HOLD or name.lower().startswith(_COMMUNICATION)


def classify(names: Sequence[str]) -> list[str]:
    """The kind of each operator.

    Args:
        names: of one queue's operators in the order in which they ran.
    """
    kinds = []
    phase = "forward"
    for index, name in enumerate(names):
        plain = _plain(name)
        kind = _KIND.get(plain, OTHER)
        backward = name.startswith(_GRADIENT)
        if kind_of_communication(name):
            kind = COMMUNICATION
        elif is_bulk(name):
            kind = OTHER
        elif kind == OPTIMIZER:
            phase = "update"
        elif backward:
            phase = "backward"
        elif kind in (PRODUCTS, ATTENTION, EMBEDDING, NORMALISATION, ACTIVATION) and plain != "concat":
            phase = "forward"
        if plain in _PACKING and not backward and phase == "backward":
            kind = COMMUNICATION
        elif plain in _ALSO_IN_UPDATES and not backward:
            kind = _by_phase(plain, kind, phase)
        elif plain == "dropout":
            neighbour = names[index + 1 : index + 2] if backward else names[max(index - 1, 0) : index]
            kind = ATTENTION if [_plain(each) for each in neighbour] == ["softmax"] else NORMALISATION
        kinds.append(kind)
    return kinds


def _by_phase(plain: str, kind: str, phase: str) -> str:
    """Sums and copies: of the residual in the forward pass, of gradients after it."""
    if phase == "update":
        return OPTIMIZER
    if plain == "add_n":  # where gradients of a residual meet
        return NORMALISATION
    if plain in ("elemwise_add", "plus", "copyto", "copycpu2cpu", "copygpu2gpu"):
        return NORMALISATION if phase == "forward" and plain == "elemwise_add" else OPTIMIZER
    if plain == "broadcast_add":  # positions to tokens
        return EMBEDDING if phase == "forward" else OTHER
    if plain == "elemwise_mul":  # by the weights of the masked positions
        return HEADS
    return kind


def _plain(name: str) -> str:
    if name.startswith(_GRADIENT):
        name = name[len(_GRADIENT) :]
    return name.strip("_").lower()
