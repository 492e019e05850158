"""The order of things, step by step, without an engine."""

from __future__ import annotations

from typing import Any

from kt.engine.batch import Sampled
from kt.engine.doorbell import Doorbell
from kt.engine.handle import Handle
from kt.engine.request import Request, Sampling
from kt.engine.scheduler import Scheduler
from kt.engine.sequence import Sequence
from tests.fakes import FakeDetokenizer


def make(**changes: Any) -> Scheduler:
    values: dict[str, Any] = {
        "n_pages": 100,
        "page_tokens": 4,
        "max_tokens": 64,
        "max_logits": 16,
        "max_batch": 4,
        "prefill_chunk": 32,
        "prefix_cache": False,
    }
    return Scheduler(**(values | changes))


def add(scheduler: Scheduler, length: int) -> Sequence:
    sampling = Sampling(max_tokens=100, ignore_eos=True)
    handle = Handle(lambda handle: None, Doorbell())
    sequence = Sequence(
        Request([7] * length, sampling), handle, FakeDetokenizer(), frozenset(), 1000
    )
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
    """One step in which every sequence that can draws token 65."""
    chunks = scheduler.schedule()
    ending = [chunk.sequence for chunk in chunks if chunk.draws]
    for chunk in chunks:
        scheduler.advance(chunk.sequence, chunk.tokens)
    for sequence in ending:
        sequence.accept(Sampled(65))
    return [(chunk.sequence, chunk.tokens) for chunk in chunks]


def test_decodes_go_first_and_prefill_fills_the_rest() -> None:
    scheduler = make()
    a, b = add(scheduler, 3), add(scheduler, 70)
    assert step(scheduler) == [(a, 3), (b, 29)]
    assert step(scheduler) == [(a, 1), (b, 32)]
    assert step(scheduler) == [(a, 1), (b, 9)]
    assert step(scheduler) == [(a, 1), (b, 1)]


def test_the_executors_limit_covers_decodes_too() -> None:
    """Room for 6 rows, 4 sequences: two decode, the long prompt gets what they leave."""
    scheduler = make(max_tokens=6, prefill_chunk=512)
    a, b = add(scheduler, 2), add(scheduler, 3)
    assert step(scheduler) == [(a, 2), (b, 3)]
    c = add(scheduler, 10)
    assert step(scheduler) == [(a, 1), (b, 1), (c, 4)]
    assert step(scheduler) == [(a, 1), (b, 1), (c, 4)]
    assert step(scheduler) == [(a, 1), (b, 1), (c, 2)]


def test_at_most_max_batch_run() -> None:
    scheduler = make(max_batch=2)
    a, b, c = (add(scheduler, 1) for _ in range(3))
    assert step(scheduler) == [(a, 1), (b, 1)]
    assert scheduler.remove(a)
    assert step(scheduler) == [(b, 1), (c, 1)]
    assert not scheduler.remove(a)


def test_more_sequences_than_rows_never_run() -> None:
    assert make(max_tokens=3, max_batch=8).max_batch == 3


def test_the_latest_arrival_is_preempted_and_comes_back_in_its_turn() -> None:
    """Three sequences fill 9 pages of 4 tokens; a fourth waits. The oldest needs a page first."""
    scheduler = make(n_pages=9, max_batch=3)
    a, b, c = add(scheduler, 8), add(scheduler, 7), add(scheduler, 6)
    d = add(scheduler, 1)
    assert step(scheduler) == [(a, 8), (b, 7), (c, 6)]
    assert step(scheduler) == [(a, 1), (b, 1), (c, 1)]  # a takes its third page: 7 in use
    assert step(scheduler) == [(a, 1), (b, 1), (c, 1)]  # b takes its third: 8
    assert step(scheduler) == [(a, 1), (b, 1), (c, 1)]  # c takes its third: 9
    assert step(scheduler) == [(a, 1), (b, 1), (c, 1)]  # a's third page is full now
    # a needs a fourth page and c gives up its three. To come back, c needs three and two to spare.
    assert step(scheduler) == [(a, 1), (b, 1)]
    assert scheduler.preemptions == 1
    assert scheduler.running == [a, b] and list(scheduler.waiting) == [c, d]
    assert len(c.pages) == 0 and scheduler.pool.free == 2
    scheduler.remove(a)
    # c computes its 11 tokens again, its output included, before d gets its turn.
    assert step(scheduler) == [(b, 1), (c, 11)]
    assert c.n_output == 6
    scheduler.remove(b)
    assert step(scheduler) == [(c, 1), (d, 1)]


def test_a_sequence_may_preempt_itself() -> None:
    """5 pages; the younger of two needs one when none is left, and no one is younger."""
    scheduler = make(n_pages=5)
    a, b = add(scheduler, 1), add(scheduler, 8)
    assert step(scheduler) == [(a, 1), (b, 8)]
    for _ in range(4):
        assert step(scheduler) == [(a, 1), (b, 1)]
    assert (len(a.pages), len(b.pages), len(b.history)) == (2, 3, 13)
    assert step(scheduler) == [(a, 1)]
    assert list(scheduler.waiting) == [b]
    scheduler.remove(a)
    assert step(scheduler) == [(b, 13)]


def test_a_waiting_sequence_leaves_room_for_the_running_ones() -> None:
    """8 pages: a prompt of 7 is not admitted beside one that holds the eighth and will grow."""
    scheduler = make(n_pages=8)
    a, b = add(scheduler, 4), add(scheduler, 28)
    assert step(scheduler) == [(a, 4)]
    scheduler.remove(a)
    assert step(scheduler) == [(b, 28)]
