"""Embeddings of the real weights are the states that the logits are made from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.executors import RUNNABLE, SMOLLM2, executor, one_sequence

IDS = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47]

pytestmark = pytest.mark.model


def test_each_row_is_the_normed_state_that_makes_its_logits():
    made = executor(SMOLLM2, RUNNABLE[0])
    states = made.embed(one_sequence(IDS, logits=[]))
    assert states.shape[0] == len(IDS)
    for row in range(len(IDS)):
        made.forward(one_sequence(IDS, logits=[row]))
        native = made.slot("selected_normed", 1)[0]
        np.testing.assert_allclose(states[row], native, rtol=1e-4, atol=1e-5)
    made.close()
