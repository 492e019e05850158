"""What a checkpoint says about its tokenizer, whichever files it says it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True)
class Description:
    """tokenizer: the algorithm and vocabulary. eos_ids: ids that end an answer. prefix: ids before
    a text (BOS).

    special_tokens: bos_token and the like, as templates see them. templates: name -> source, empty
    if there are none.
    """

    tokenizer: tokenizers.Tokenizer
    eos_ids: frozenset[int]
    bos_id: int | None = None
    prefix: tuple[int, ...] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
