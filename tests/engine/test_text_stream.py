"""Stop texts: never emitted, whatever the tokens are; everything else is, and soon."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kt.engine.batch import Sampled
from kt.engine.request import Delta, Request, Sampling
from kt.engine.text_stream import TextStream
from tests.engine.driving import SMALL, answers, make_engine
from tests.fakes import ASSISTANT, FakeExecutor, FakeTokenizer, replying


class Pieces:
    """Token i is the i-th piece."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return ""


def stream(
    pieces: list[str], stops: list[str], min_tokens: int = 0
) -> tuple[list[Delta], str | None]:
    text = TextStream(Pieces(pieces), stops, min_tokens)
    deltas = []
    for i in range(len(pieces)):
        delta = text.push(Sampled(i))
        if delta is not None:
            deltas.append(delta)
        if text.stopped is not None:
            return deltas, text.stopped
    rest = text.finish()
    return [*deltas, rest] if rest else deltas, None


def joined(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


pieces_of = st.lists(st.text("abc", max_size=4), max_size=12)
stops_of = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=400, deadline=None)
@given(pieces_of, stops_of)
def test_text_ends_where_the_first_stop_text_begins(pieces: list[str], stops: list[str]) -> None:
    deltas, stopped = stream(pieces, stops)
    expected = "".join(pieces)
    for n in range(1, len(pieces) + 1):  # the first token that completes a stop text decides
        text = "".join(pieces[:n])
        if any(stop in text for stop in stops):
            expected = text[: min(text.index(stop) for stop in stops if stop in text)]
            break
    assert joined(deltas) == expected
    assert (stopped is not None) == (
        expected != "".join(pieces) or any(s in expected for s in stops)
    )
    for delta in deltas:
        assert delta.text == "".join(token.text for token in delta.tokens)
    shown = [token.id for delta in deltas for token in delta.tokens]
    assert shown == list(range(len(shown)))
    if stopped is None:
        assert len(shown) == len(pieces)


@settings(max_examples=200, deadline=None)
@given(pieces_of, stops_of)
def test_only_what_could_become_a_stop_text_is_held_back(
    pieces: list[str], stops: list[str]
) -> None:
    text = TextStream(Pieces(pieces), stops)
    so_far = shown = ""
    for i, piece in enumerate(pieces):
        so_far += piece
        delta = text.push(Sampled(i))
        if text.stopped is not None:
            return
        shown += delta.text if delta else ""
        held = so_far[len(shown) :]
        if held:
            starts = [so_far[k:] for k in range(len(so_far))]
            longest = max(len(s) for s in starts if any(stop.startswith(s) for stop in stops))
            # Whole tokens are held: at most one token more than the possible start.
            assert len(held) - longest < max(map(len, pieces))


def test_stop_text_split_over_tokens() -> None:
    assert joined(stream(["Hel", "lo E", "N", "D more"], ["END"])[0]) == "Hello "
    assert joined(stream(["E", "N", "E", "ND"], ["END"])[0]) == "EN"
    assert joined(stream(["E", "N"], ["END"])[0]) == "EN"
    assert stream(["abc"], ["c", "bc"]) == ([stream(["a"], ["x"])[0][0]], "bc")


def test_a_token_cut_by_a_stop_text_loses_its_end() -> None:
    [delta], _ = stream(["one|two"], ["|"])
    assert [(token.id, token.text) for token in delta.tokens] == [(0, "one")]


def test_min_tokens_also_covers_stop_texts() -> None:
    deltas, stopped = stream(["x", "x", "a", "x", "b"], ["x"], min_tokens=2)
    assert (joined(deltas), stopped) == ("xxa", "x")


def run(reply: str, **sampling: object) -> tuple[str, str, str | None, int]:
    executor = FakeExecutor(reply=replying(reply), **SMALL)
    request = Request([65, ASSISTANT], Sampling(temperature=0.0, **sampling))  # type: ignore[arg-type]
    [result] = answers(make_engine(executor), [request])
    end = result.finished
    return result.text, end.reason, end.stop, end.completion_tokens


def test_stop_texts_through_the_engine() -> None:
    assert run("one, two, three") == ("one, two, three", "stop", None, 16)
    assert run("one, two, three", stop=("two",)) == ("one, ", "stop", "two", 8)
    assert run("one, two, three", stop=("twx", "e, t")) == ("on", "stop", "e, t", 6)
    assert run("one, two, three", stop=("three!",)) == ("one, two, three", "stop", None, 16)
    assert run("one, two", max_tokens=6, stop=("two!",)) == ("one, t", "length", None, 6)
    assert run("日本語", stop=("語",)) == ("日本", "stop", "語", 9)


def test_half_a_character_is_never_shown() -> None:
    tokenizer = FakeTokenizer()
    executor = FakeExecutor(reply=replying("a😀b"), **SMALL)
    engine = make_engine(executor)
    handle = engine.submit(Request([65, ASSISTANT], Sampling(temperature=0.0)))
    with engine:
        texts = [event.text for event in handle if isinstance(event, Delta)]
    assert texts == ["a", "😀", "b"]
    assert tokenizer.decode(list("a😀b".encode())) == "a😀b"


def test_end_tokens() -> None:
    """min_tokens bans the end token, ignore_eos passes over it; neither shows it."""
    assert run("hi")[1:] == ("stop", None, 3)
    text, _, _, count = run("hi", min_tokens=5)
    assert (text[:2], count >= 5, len(text) >= 5) == ("hi", True, True)
    assert run("hi", ignore_eos=True, max_tokens=6) == ("hi", "length", None, 6)
