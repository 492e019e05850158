"""Texts that tokenizers get wrong, and text in pieces."""

from kt.tokenizer import Tokenizer

CORPUS = (
    "",
    "Hello, world",
    "  leading and   inner   spaces ",
    "tabs\tand\nnewlines\n\n\n  x\r\n",
    "I'm you'RE we've it'LL don't",
    "1234567890 3.14159 \u0661\u0662\u0663",
    "naïve café Ångström e\u0301",
    "日本語のテキスト、中文字符。한국어",
    "😀👩‍👩‍👧‍👦🇫🇷👍🏽",
    "def f(x):\n    return x**2  # ok\n",
    "\u200b\ufeff\u00a0x\u3000y",
    "a" * 100 + " " * 50 + "b",
    "العربية עברית हिन्दी ไทย",
    "!?.,;:'\"()[]{}<>@#$%^&*+=_~`|\\/",
    "<|im_end|> and <|im_start|>user<|endoftext|>",
    "<|im_ end|> <|im_end",
    "x\x00y\ufffdz",
)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each id adds to the text, then what the end adds."""
    detokenizer = tokenizer.detokenizer()
    return [*map(detokenizer.push, ids), detokenizer.flush()]
