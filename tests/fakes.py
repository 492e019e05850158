"""Stand-ins for tests: an executor whose logits depend on the whole history, a byte tokenizer."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kt.engine.batch import F32, Batch, Sampled, SampleParams
from tests.sampling_oracle import draw, log_softmax

END, BOS, USER, ASSISTANT = 256, 257, 258, 259
VOCAB = 260
MASK = (1 << 64) - 1
SPECIAL = {"<|end|>": END, "<|bos|>": BOS, "<|user|>": USER, "<|assistant|>": ASSISTANT}


def _mix(value: int) -> int:
    """splitmix64's finaliser: a well-mixed 64-bit hash of a 64-bit number."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class FakeExecutor:
    """Logits are a hash of the tokens that the sequence's pages hold, read through its page table.

    Every position stores its token and a value that depends on the token, its position and all
    values before it, so a wrong page, position or token changes everything that follows.

    latency: seconds per forward, token_latency: per row of it. fail: called with each batch before
    it runs; it may raise. reply: from the history (read through the pages) to the next token, which
    then gets all the weight.
    """

    def __init__(
        self,
        *,
        vocab: int = VOCAB,
        context: int = 1024,
        max_batch_tokens: int = 576,
        page_tokens: int = 8,
        n_pages: int = 512,
        max_logits: int = 64,
        latency: float = 0.0,
        token_latency: float = 0.0,
        fail: Callable[[Batch], None] | None = None,
        reply: Callable[[list[int]], int] | None = None,
    ) -> None:
        self.vocab = vocab
        self.context = context
        self.max_batch_tokens = max_batch_tokens
        self.page_tokens = page_tokens
        self.n_pages = n_pages
        self.max_logits = max_logits
        self.latency = latency
        self.token_latency = token_latency
        self.fail = fail
        self.reply = reply
        self.rows_run = 0
        self.batches: list[int] = []  # rows of each forward
        self.closed = False
        self._tokens = np.full((n_pages, page_tokens), -1, np.int64)
        self._values = np.zeros((n_pages, page_tokens), np.uint64)
        columns = np.arange(vocab, dtype=np.uint64)
        self._columns = columns * np.uint64(0x9E3779B97F4A7C15)

    def forward(self, batch: Batch) -> F32:
        self._check(batch)
        if self.latency or self.token_latency:
            time.sleep(self.latency + self.token_latency * len(batch.tokens))
        if self.fail is not None:
            self.fail(batch)
        wanted = set(batch.logit_rows.tolist())
        rows: list[F32] = []
        for s in range(len(batch.first_position)):
            rows += self._run_sequence(batch, s, wanted)
        self.rows_run += len(batch.tokens)
        self.batches.append(len(batch.tokens))
        return np.stack(rows) if rows else np.zeros((0, self.vocab), np.float32)

    def embed(self, batch: Batch) -> F32:
        """Sixteen numbers that depend on the row's token and all before it."""
        assert len(batch.logit_rows) == 0
        rows = np.arange(len(batch.tokens), dtype=np.int32)
        limit, self.max_logits = self.max_logits, len(rows)
        try:
            return self.forward(replace(batch, logit_rows=rows))[:, :16].copy()
        finally:
            self.max_logits = limit

    def sample(self, logits: F32, params: list[SampleParams]) -> list[Sampled]:
        assert logits.shape == (len(params), self.vocab)
        return [_sample_row(row, p) for row, p in zip(logits, params, strict=True)]

    def close(self) -> None:
        self.closed = True

    def _run_sequence(self, batch: Batch, s: int, wanted: set[int]) -> list[F32]:
        first = int(batch.first_position[s])
        pages = batch.page_table[s]
        known = self._values[pages].reshape(-1)[:first]
        total = int(known.sum(dtype=np.uint64))
        out = []
        for row in range(int(batch.seq_start[s]), int(batch.seq_start[s + 1])):
            position = first + row - int(batch.seq_start[s])
            page, slot = int(pages[position // self.page_tokens]), position % self.page_tokens
            token = int(batch.tokens[row])
            value = _mix(_mix(total ^ position) + token)
            self._tokens[page, slot] = token
            self._values[page, slot] = value
            total = (total + value) & MASK
            if row in wanted:
                out.append(self._logits(total, pages, position))
        return out

    def _logits(self, total: int, pages: np.ndarray, position: int) -> F32:
        mixed = (self._columns ^ np.uint64(total)) * np.uint64(0xBF58476D1CE4E5B9)
        logits = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(8 / (1 << 24)) - 4
        if self.vocab > 126:
            logits[32:127] += 2.0  # mostly readable text
        if self.reply is not None:
            history = self._tokens[pages].reshape(-1)[: position + 1]
            logits[self.reply(history.tolist())] += 100.0
        return logits

    def _check(self, batch: Batch) -> None:
        """What the real executor may rely on."""
        n_seqs = len(batch.first_position)
        for array in (batch.tokens, batch.seq_start, batch.first_position, batch.page_table):
            assert array.dtype == np.int32 and array.flags.c_contiguous
        assert batch.seq_start.shape == (n_seqs + 1,) and batch.seq_start[0] == 0
        assert batch.seq_start[-1] == len(batch.tokens) <= self.max_batch_tokens
        assert batch.page_table.shape[0] == n_seqs and (np.diff(batch.seq_start) > 0).all()
        assert (np.diff(batch.logit_rows) > 0).all()
        assert len(batch.logit_rows) <= self.max_logits
        readers: dict[int, set[int]] = {}
        writers: dict[int, int] = {}
        for s in range(n_seqs):
            first = int(batch.first_position[s])
            end = first + int(batch.seq_start[s + 1] - batch.seq_start[s])
            assert end <= self.context
            used = batch.page_table[s, : -(-end // self.page_tokens)].tolist()
            assert len(set(used)) == len(used) and all(0 <= page < self.n_pages for page in used)
            for page in used:
                readers.setdefault(page, set()).add(s)
            for page in used[first // self.page_tokens :]:
                writers[page] = s
        for page, s in writers.items():
            assert readers[page] == {s}, (
                f"page {page} is written by {s} and used by {readers[page]}"
            )


def _sample_row(row: F32, p: SampleParams) -> Sampled:
    token = draw(row, p)
    if p.n_logprobs < 0:
        return Sampled(token)
    logprobs = log_softmax(row)
    best = np.lexsort((np.arange(len(row)), -logprobs))[: p.n_logprobs]
    return Sampled(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


class FakeDetokenizer:
    """Bytes to text; a character comes out when its last byte is in."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id])) if token_id < 256 else ""

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakeTokenizer:
    """Ids are UTF-8 bytes, then four special tokens. The interface of kt.tokenizer.Tokenizer."""

    eos_ids = frozenset({END})
    bos_id = BOS
    vocab_size = VOCAB
    has_chat_template = True

    special_ids = SPECIAL

    def token_bytes(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [text.encode() for text in SPECIAL]

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            name = next((n for n in SPECIAL if special and text.startswith(n)), None)
            ids += [SPECIAL[name]] if name else list(text[0].encode())
            text = text[len(name) if name else 1 :]
        return ids

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def detokenizer(
        self, skip_special: bool = True, shown: tuple[str, ...] = ()
    ) -> FakeDetokenizer:
        return FakeDetokenizer()

    def render(
        self,
        messages: list[dict[str, object]],
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        **extra: object,
    ) -> str:
        turns = "".join(
            f"<|{'assistant' if m['role'] == 'assistant' else 'user'}|>{m['content']}<|end|>"
            for m in messages
        )
        return "<|bos|>" + turns + ("<|assistant|>" if add_generation_prompt else "")

    def encode_chat(self, messages: list[dict[str, object]], **kwargs: object) -> list[int]:
        ids = [BOS]
        for m in messages:
            ids.append(ASSISTANT if m["role"] == "assistant" else USER)
            ids += [*self.encode(str(m["content"])), END]
        return [*ids, ASSISTANT] if kwargs.get("add_generation_prompt", True) else ids


def replying(text: str) -> Callable[[list[int]], int]:
    """A `reply` for FakeExecutor: `text` byte by byte after the last <|assistant|>, then <|end|>.

    Without an <|assistant|> in the history the text starts at once and is followed by itself.
    """
    answer = [*text.encode(), END]

    def next_token(history: list[int]) -> int:
        if ASSISTANT not in history:
            return answer[len(history) % len(answer)]
        said = history[::-1].index(ASSISTANT)
        return answer[min(said, len(answer) - 1)]

    return next_token
