"""Twenty fixed questions to tiny, and its greedy answers to them on any variant.

python -m tests.tiny_model.questions writes answers.json anew, after a new training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import kt
from kt.engine.engine import Engine
from kt.engine.request import Request, Sampling
from kt.tokenizer import Tokenizer
from kt.weights.checkpoint import open_checkpoint
from tests.executors import NATIVE, executor

TINY = Path(kt.__file__).parent / "tiny"
ANSWERS = Path(__file__).parent / "answers.json"

# question -> what it may be answered
EXACT = {
    "Hello!": {"Hello! How can I help you?", "Hello! What would you like to know?"},
    "Thank you!": {"You are welcome!"},
    "What is the capital of France?": {"The capital of France is Paris."},
    "What is the capital of Japan?": {"The capital of Japan is Tokyo."},
    "What is 17 + 25?": {
        "Units: 7 + 5 = 12, write 2, carry 1. Tens: 1 + 2 + 1 = 4. So 17 + 25 = 42."
    },
    "What is 68 - 29?": {"Units: 18 - 9 = 9, borrow 1. Tens: 6 - 2 - 1 = 3. So 68 - 29 = 39."},
    "What is 7 times 8?": {"7 times 8 is 56."},
    "How many centimetres are 3 metres?": {
        "1 metre is 100 centimetres, so 3 metres are 300 centimetres."
    },
    "Convert 5 kilograms to grams.": {"1 kilogram is 1000 grams, so 5 kilograms are 5000 grams."},
    "How many days are in a week?": {"A week has seven days."},
    "Who won the election in 1987?": {
        "I do not know that. I am a very small model and know little about the world."
    },
}
# question -> the topic of tools/tiny/text/machines.toml
DEFINITIONS = {
    "What is a mixture of experts?": "a mixture of experts",
    "What is NUMA?": "NUMA",
    "What is AVX-512?": "AVX-512",
    "What is quantization?": "quantization",
    "What is kt?": "kt",
}
# question -> (call, result)
FUNCTIONS = {
    "Write a Python function that returns the sum of a list.": ("total([1, 2, 3])", 6),
    "Write a function that checks whether a number is prime.": (
        "[n for n in range(10) if is_prime(n)]",
        [2, 3, 5, 7],
    ),
}
# question -> words that are in the story
STORIES: dict[str, tuple[str, ...]] = {
    "Tell me a story.": (),
    "Tell me a story about a fox and a red kite.": ("fox", "kite"),
}
QUESTIONS = (*EXACT, *DEFINITIONS, *FUNCTIONS, *STORIES)
# The software tiles of amx_model are slow.
SHORT = ("Hello!", "Thank you!", "What is the capital of France?", "What is 17 + 25?")


def answers(questions: Iterable[str], variant: str) -> dict[str, list[int]]:
    """Question -> ids of the greedy answer; each has to end by itself."""
    tokenizer = Tokenizer.load(open_checkpoint(TINY))
    made = executor(TINY, variant, pages=256)
    sampling = Sampling(temperature=0.0, max_tokens=500)
    with Engine(made, tokenizer, model_name="tiny", max_batch=8) as engine:
        handles = {}
        for question in questions:
            ids = tokenizer.encode_chat([{"role": "user", "content": question}])
            handles[question] = engine.submit(Request(ids, sampling))
        results = {question: handle.result() for question, handle in handles.items()}
    made.close()
    assert {result.finished.reason for result in results.values()} == {"stop"}
    return {question: [token.id for token in done.tokens] for question, done in results.items()}


def main() -> None:
    found = {variant: answers(QUESTIONS, variant) for variant in NATIVE}
    found["amx_model"] = answers(SHORT, "amx_model")
    ANSWERS.write_text(json.dumps(found, separators=(",", ":")).replace("},", "},\n") + "\n")


if __name__ == "__main__":
    main()
