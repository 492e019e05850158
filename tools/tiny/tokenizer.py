"""The byte-level BPE tokenizer, trained on the corpus; every digit is a token of its own."""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.tiny.text.corpus import documents
from tools.tiny.text.document import END, END_OF_TEXT, START

VOCABULARY: Final = 2048
SPECIAL: Final = (END_OF_TEXT, START, END)
"""Ids 0, 1 and 2."""
TRAINING_DOCUMENTS: Final = 40_000

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train(seed: int) -> Tokenizer:
    """A tokenizer of VOCABULARY tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        text
        for document in islice(documents(f"{seed} tokenizer"), TRAINING_DOCUMENTS)
        for text, _ in document.parts()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where tokenizer.json goes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    save(train(arguments.seed), arguments.folder)


if __name__ == "__main__":
    main()
