"""Log probabilities of a prompt's own tokens, gathered chunk by chunk."""

from __future__ import annotations

import numpy as np

from kt.engine.batch import Sampled, SampleParams
from kt.engine.request import Delta, TokenInfo
from kt.engine.text_stream import Detokenizer

_NO_HISTORY = np.zeros(0, np.int32)


class PromptScores:
    """Scores of `prompt`, each with its n_best best rivals. The first token has none."""

    def __init__(self, prompt: list[int], n_best: int, detokenizer: Detokenizer) -> None:
        self._prompt = prompt
        self._n_best = n_best
        self._detokenizer = detokenizer
        self._found: list[Sampled] = []
        self.sent = False

    @property
    def missing(self) -> int:
        """Rows that still have to be computed; the next is that of position len(prompt) - 1 -
        missing.
        """
        return len(self._prompt) - 1 - len(self._found)

    def restart(self) -> None:
        """The prompt is computed from its start again."""
        self._found.clear()

    def params(self, count: int) -> list[SampleParams]:
        """How the next `count` rows are read."""
        first = len(self._found) + 1
        return [self._given(token) for token in self._prompt[first : first + count]]

    def add(self, samples: list[Sampled]) -> None:
        self._found += samples

    def delta(self) -> Delta:
        """The event that carries them all."""
        self.sent = True
        samples = [Sampled(self._prompt[0]), *self._found]
        return Delta(
            "",
            [],
            [
                TokenInfo(s.token, self._detokenizer.push(s.token), s.logprob, s.best)
                for s in samples
            ],
        )

    def _given(self, token: int) -> SampleParams:
        return SampleParams(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            n_logprobs=self._n_best,
            seed=0,
            position=0,
            n_prompt=0,
            history=_NO_HISTORY,
            given=token,
        )
