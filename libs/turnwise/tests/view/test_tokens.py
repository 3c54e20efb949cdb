import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run.episodes import TOKENIZER, episode
from turnwise.run.jsonl import dump
from turnwise.run.traces import parse_trace, trace_row
from turnwise.view import tokens
from turnwise.view.tokens import OpenEpisode, common_tokens, open_episode

ROW = trace_row(
    episode(answer="Ich prüfe 🚚 das.", tool="日本語" * 4),
    TOKENIZER,
    step=1,
    kind="train",
    why="best",
)
TRACE = parse_trace(msgspec.json.decode(dump(ROW)))


def opened(**how: str) -> OpenEpisode:
    row = trace_row(episode(**how), TOKENIZER, step=1, kind="train", why="best")
    return open_episode(dump(row).encode())


@settings(deadline=None)
@given(st.integers(-3, 260), st.integers(-3, 260))
def test_every_window_holds_its_tokens_verbatim(start: int, stop: int) -> None:
    segment = open_episode(dump(ROW).encode()).segments[0]
    expected = TRACE.segments[0]
    chunks = segment.window(start, stop)
    low, high = max(0, start), min(stop, len(expected.ids))
    ids = [one for chunk in chunks for one in chunk["ids"]]
    texts = [one for chunk in chunks for one in chunk["texts"]]
    assert ids == (expected.ids[low:high] if low < high else [])
    assert texts == (expected.texts[low:high] if low < high else [])
    at = low
    for chunk in chunks:
        for place in range(len(chunk["ids"])):
            after = at - expected.prompt_length
            assert chunk["trained"] == (after >= 0 and expected.loss_mask[after] == 1)
            if chunk["trained"]:
                assert chunk["logprobs"][place] == pytest.approx(expected.logprobs[after])
            assert any(a <= at < b for name, a, b in expected.authors if name == chunk["author"])
            at += 1


def test_one_window_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_WINDOW", 10)
    chunks = open_episode(dump(ROW).encode()).segments[0].window(5, 10_000)
    assert sum(len(chunk["ids"]) for chunk in chunks) == 10


def test_parts_of_different_lengths_are_refused_with_their_numbers() -> None:
    row = msgspec.json.decode(dump(ROW))
    row["segments"][0]["texts"].pop()
    with pytest.raises(ValueError, match=r"segments\[0\]: \d+ ids"):
        open_episode(dump(row).encode())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("authors", [["user", 0, 10_000]]),
        ("authors", [["user", -4, 2]]),
        ("spans", [["a", 0, 9, 2]]),
    ],
)
def test_places_outside_of_the_tokens_are_refused(part: str, value: list[object]) -> None:
    row = msgspec.json.decode(dump(ROW))
    row["segments"][0][part] = value
    with pytest.raises(ValueError, match=r"segments\[0\]: .* from token"):
        open_episode(dump(row).encode())


def test_rollouts_share_tokens_up_to_the_first_that_differs() -> None:
    one, other = opened(answer="Let me look."), opened(answer="Let it be.")
    same = common_tokens([one, other])
    ids = [list(episode.segments[0].ids) for episode in (one, other)]
    assert ids[0][:same] == ids[1][:same] and ids[0][same] != ids[1][same]
    assert common_tokens([one, one]) == len(ids[0])
    assert common_tokens([]) == 0
