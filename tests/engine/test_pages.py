"""Pages: counted right under any order of operations, and reused in the promised order."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kt.engine.pages import PagePool
from kt.engine.prefix_cache import ROOT, PrefixCache

SIZE = 4


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def fill(cache: PrefixCache, pool: PagePool, history: np.ndarray) -> list[int]:
    """A sequence's way through the cache: found pages, new ones, all full ones stored."""
    found, key = cache.match(history)
    pages = found + pool.take(-(-len(history) // SIZE) - len(found))
    for i in range(len(found), len(history) // SIZE):
        key = cache.store(key, history[i * SIZE : (i + 1) * SIZE], pages[i])
    return pages


@pytest.mark.parametrize("seed", range(5))
def test_references_match_a_model(seed: int) -> None:
    rng = random.Random(seed)
    pool = PagePool(20)
    held: list[list[int]] = []
    for _ in range(500):
        action = rng.choice(["take", "share", "release"])
        if action == "take" and pool.free >= 3:
            pages = pool.take(3)
            assert not set(pages) & {page for group in held for page in group}
            held.append(pages)
        elif action == "share" and held:
            group = list(rng.choice(held))
            for page in group:
                pool.share(page)
            held.append(group)
        elif action == "release" and held:
            pool.release(held.pop(rng.randrange(len(held))))
        counts = [sum(group.count(page) for group in held) for page in range(20)]
        assert [pool.references(page) for page in range(20)] == counts
        assert pool.free == counts.count(0)


def test_misuse_is_refused() -> None:
    pool = PagePool(2)
    with pytest.raises(ValueError, match="3 pages wanted, 2 free"):
        pool.take(3)
    pages = pool.take(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="more often"):
        pool.release(pages)


def test_a_hit_covers_whole_pages_and_never_the_last_token() -> None:
    pool = PagePool(10)
    cache = PrefixCache(pool, SIZE)
    history = tokens(*range(12))
    pages = fill(cache, pool, history)
    for length, hits in ((1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2)):
        found, _ = cache.match(history[:length])
        assert found == pages[:hits]
        pool.release(found, cache.holds)
    found, _ = cache.match(tokens(*range(12), 99))
    assert found == pages
    assert pool.references(pages[0]) == 2


def test_a_page_is_only_found_behind_its_own_prefix() -> None:
    pool = PagePool(10)
    cache = PrefixCache(pool, SIZE)
    fill(cache, pool, tokens(1, 1, 1, 1, 2, 2, 2, 2))
    assert cache.match(tokens(2, 2, 2, 2, 5))[0] == []
    assert len(cache.match(tokens(1, 1, 1, 1, 3, 2, 2, 2, 5))[0]) == 1
    assert len(cache.match(tokens(1, 1, 1, 1, 2, 2, 2, 2, 5))[0]) == 2


def test_a_hash_collision_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kt.engine.prefix_cache._chain", lambda parent, contents: b"same")
    pool = PagePool(10)
    cache = PrefixCache(pool, SIZE)
    pages = fill(cache, pool, tokens(1, 2, 3, 4))
    assert cache.match(tokens(1, 2, 3, 4, 5))[0] == pages
    assert cache.match(tokens(1, 2, 3, 5, 5))[0] == []
    # The same tokens behind another page are another page, too.
    assert cache.match(tokens(1, 2, 3, 4, 1, 2, 3, 4, 5))[0] == pages


def test_the_first_page_with_some_contents_stays_the_one_found() -> None:
    pool = PagePool(10)
    cache = PrefixCache(pool, SIZE)
    first, second = pool.take(2)
    assert cache.store(ROOT, tokens(1, 2, 3, 4), first) == cache.store(
        ROOT, tokens(1, 2, 3, 4), second
    )
    assert cache.match(tokens(1, 2, 3, 4, 5))[0] == [first]
    assert (cache.holds(first), cache.holds(second), len(cache)) == (True, False, 1)


def test_free_pages_are_reused_blank_first_then_least_recently_used() -> None:
    pool = PagePool(6)
    cache = PrefixCache(pool, SIZE)
    old = fill(cache, pool, tokens(1, 1, 1, 1, 1, 1, 1, 1))
    new = fill(cache, pool, tokens(2, 2, 2, 2, 2))
    pool.release(old, cache.holds)
    pool.release(new, cache.holds)
    assert (pool.free, len(cache)) == (6, 3)
    pool.take(3)  # two that never held anything, and the partly filled one
    assert len(cache) == 3
    pool.take(1)  # the end of the older sequence before its start
    assert cache.match(tokens(1, 1, 1, 1, 1, 1, 1, 1, 1))[0] == old[:1]
    pool.release(old[:1], cache.holds)  # used just now, so the other goes first
    pool.take(1)
    assert cache.match(tokens(2, 2, 2, 2, 2))[0] == []
    assert cache.match(tokens(1, 1, 1, 1, 1))[0] == old[:1]
