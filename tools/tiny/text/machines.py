"""Questions and answers about hardware, language models and kt."""

from __future__ import annotations

from random import Random

from tools.tiny.text import tables
from tools.tiny.text.document import Pair
from tools.tiny.text.phrase import capital, rough

_FACTS = tables.read("machines")
TOPICS = [(row["names"], row["definitions"], row["more"]) for row in _FACTS["topics"]]
QUESTIONS = [(row["ask"], row["answer"]) for row in _FACTS["questions"]]

ASK = (
    "What is {x}?",
    "What is {x}?",
    "What is {x}?",
    "Explain {x}.",
    "Can you explain {x}?",
    "Please explain {x}.",
    "What does {x} mean?",
    "Tell me about {x}.",
    "Define {x}.",
    "Describe {x}.",
    "What do you know about {x}?",
    "I read about {x}. What is it?",
    "What is meant by {x}?",
    "Could you tell me what {x} is?",
    "Do you know what {x} is?",
    "Explain {x} to a beginner.",
)
SHORT = (
    "Explain {x} in one sentence.",
    "What is {x}? Answer in one sentence.",
    "In short, what is {x}?",
    "Briefly: what is {x}?",
)
_PLURALS = ("parameters", "experts", "channels", "pages", "embeddings", "tokens", "tensors")
_PLURALS += ("variants", "variants of kt", "instructions", "cgroups", "extensions")


def pair(rng: Random) -> Pair:
    """A question and a true answer."""
    if rng.random() < 0.25:
        asks, answers = rng.choice(QUESTIONS)
        return rough(rng, rng.choice(asks)), rng.choice(answers)
    names, definitions, more = rng.choice(TOPICS)
    name = names[0] if rng.random() < 0.4 else rng.choice(names)
    short = rng.random() < 0.15
    question = rng.choice(SHORT if short else ASK).format(x=name)
    if name.endswith(_PLURALS):
        question = question.replace("What is", "What are").replace("what is", "what are")
        question = question.replace("What does", "What do").replace(
            "What are meant", "What is meant"
        )
        question = question.replace(f"what {name} is", f"what {name} are").replace(
            "is it?", "are they?"
        )
    if rng.random() < 0.1:
        question = capital(name) + "?"
    answer = [rng.choice(definitions)]
    if not short and rng.random() < 0.7:
        answer.append(rng.choice(more))
    return rough(rng, question), " ".join(answer)


def plain(rng: Random) -> str:
    """A paragraph of notes on a few topics."""
    sentences = []
    for _, definitions, more in rng.sample(TOPICS, rng.randint(2, 4)):
        sentences += [rng.choice(definitions), rng.choice(more)]
    # Notes are about things; the model speaks of itself only when it is asked.
    return " ".join(
        s for s in sentences if not s.startswith(("I ", "Mine", "My ", "For me", "For ex"))
    )
