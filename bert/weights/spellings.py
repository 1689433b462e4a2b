"""The names that files really have: prefixes, older spellings, what optimizers leave.

A name in a file is a weight of a BERT (`Weight`), something else that may be left out, such as an
optimizer's moment (`IGNORED`), or part of a network that is no plain BERT (`FOREIGN`): leaving that out would
change what the network computes.
"""

from __future__ import annotations

import re
from typing import Callable, Iterable, NamedTuple, Union

from bert.weights.names import DECODER, TABLE, WORDS

IGNORED, FOREIGN = "ignored", "foreign"


class Weight(NamedTuple):
    """A weight: its structural name in GluonNLP, and whether the file has it transposed.

    `folded`: the attention heads have an axis of their own.
    """

    name: str
    kernel: bool = False
    folded: bool = False


Meaning = Union[Weight, str]
Spelling = Callable[[str], Meaning]


def gluonnlp(name: str) -> Meaning:
    """Block.save_parameters' structural names, those of a BERTClassifier around a BERT, and the global names
    of `collect_params().save` and `export`, such as bertencoder0_transformer3_proj_weight."""
    name = name[len("arg:") :] if name.startswith("arg:") else name
    if name.startswith("bert."):
        name = name[len("bert.") :]
    if "." not in name:
        name = next((rest for rest in _from_global(name)), name)
    if name == DECODER:
        return Weight(DECODER)
    found = _by_template(_GLUONNLP, re.compile(r"(encoder\.transformer_cells\.)(\d+)(\..*)"), name)
    if found:
        return Weight(found.name)
    return FOREIGN if name.startswith(("encoder.", "word_embed.", "token_type_embed.")) else IGNORED


def _from_global(name: str) -> Iterable[str]:
    for pattern, replacement in _GLOBAL:
        changed, matched = pattern.subn(replacement, name)
        if matched:
            yield changed


def _by_template(table: dict[str, Weight], pattern: re.Pattern[str], name: str) -> Weight | None:
    """Looks a name up whose layer number, the second group of `pattern`, is "{layer}" in the table."""
    match = pattern.fullmatch(name)
    if not match:
        return table.get(name)
    found = table.get(match[1] + "{layer}" + match[3])
    return found._replace(name=found.name.replace("{layer}", match[2])) if found else None


_GLUONNLP = {row.gluonnlp: Weight(row.gluonnlp) for row in TABLE}
_CELL = r"bertencoder\d+_transformer(\d+)_"
_GLOBAL = [
    (re.compile(pattern + r"\Z"), replacement)
    for pattern, replacement in (
        (r"bertencoder\d+_position_weight", "encoder.position_weight"),
        (r"bertencoder\d+_layernorm\d+_(gamma|beta)", r"encoder.layer_norm.\1"),
        (
            _CELL + r"dotproductselfattentioncell\d+_(query|key|value)_(weight|bias)",
            r"encoder.transformer_cells.\1.attention_cell.proj_\2.\3",
        ),
        (_CELL + r"proj_(weight|bias)", r"encoder.transformer_cells.\1.proj.\2"),
        (_CELL + r"layernorm\d+_(gamma|beta)", r"encoder.transformer_cells.\1.layer_norm.\2"),
        (
            _CELL + r"positionwiseffn\d+_ffn_([12])_(weight|bias)",
            r"encoder.transformer_cells.\1.ffn.ffn_\2.\3",
        ),
        (
            _CELL + r"positionwiseffn\d+_layernorm\d+_(gamma|beta)",
            r"encoder.transformer_cells.\1.ffn.layer_norm.\2",
        ),
        (r"bertmodel\d+_word_embed_embedding\d+_weight", WORDS),
        (r"bertmodel\d+_word_embed_embedding\d+_bias", "decoder.3.bias"),
        (r"bertmodel\d+_token_type_embed_embedding\d+_weight", "token_type_embed.0.weight"),
        (r"bertmodel\d+_pooler_(weight|bias)", r"pooler.\1"),
        (r"bertmodel\d+_cls_(weight|bias)", r"classifier.\1"),
        (r"bertmodel\d+_dense\d+_(weight|bias)", r"decoder.0.\1"),
        (r"bertmodel\d+_layernorm\d+_(gamma|beta)", r"decoder.2.\1"),
    )
]
