"""A trace tells of every token who wrote it, whether it is trained, and how likely it was."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.episode import Boundary, BoundaryError, Ending, Limit
from turnwise.run import traces
from turnwise.run.jsonl import plain
from turnwise.run.traces import (
    TraceChoice,
    choose_eval_traces,
    choose_traces,
    parse_trace,
    token_texts,
    trace_row,
)

from .episodes import TOKENIZER, episode, message, segment


def authored(row: Mapping[str, Any], number: int = 0) -> list[tuple[str, str]]:
    part = row["segments"][number]
    return [(author, "".join(part["texts"][start:stop])) for author, start, stop in part["authors"]]


def test_every_token_has_the_author_who_wrote_it() -> None:
    row = trace_row(episode(), TOKENIZER, step=3, kind="train", why="best")
    assert authored(row) == [
        ("template", "<|im_start|>system\n"),
        ("system", "Be kind."),
        ("template", "<|im_end|>\n<|im_start|>user\n"),
        ("user", "Where is it?"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"),
        ("policy", "Let me look.<|im_end|>"),
        ("template", "\n<|im_start|>user\n<tool_response>\n"),
        ("tool", "It was sent."),
        ("template", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        ("policy", "Sent.<|im_end|>"),
    ]


def test_a_message_with_a_place_is_looked_for_there_alone() -> None:
    # The tool repeats the customer's words: by order alone they would be the customer's again.
    words = "Where is it?"
    made = episode(tool=words)
    spans = made.segments[0].spans
    prompt, environment = spans[0], next(span for span in spans if span.kind == "environment")
    transcript = [
        {"role": "user", "content": words, "segment": 0, "span": [prompt.start, prompt.stop]},
        {"role": "user", "content": "never sent", "segment": None, "span": None},
        {
            "role": "tool",
            "content": words,
            "segment": 0,
            "span": [environment.start - 1, environment.stop + 22],
        },
    ]
    row = trace_row(
        episode(tool=words, transcript=transcript), TOKENIZER, step=0, kind="eval", why="best"
    )
    assert [author for author, text in authored(row) if text == words] == ["user", "tool"]


def test_words_said_twice_belong_to_who_said_them_next() -> None:
    words = "Where is it?"
    row = trace_row(episode(tool=words), TOKENIZER, step=0, kind="eval", why="best")
    assert [author for author, text in authored(row) if text == words] == ["user", "tool"]


def test_a_message_of_another_segment_is_not_looked_for() -> None:
    first = episode().segments[0]
    place = [first.spans[0].start, first.spans[0].stop]
    transcript = [
        {"role": role, "content": "Where is it?", "segment": number, "span": place}
        for number, role in enumerate(("user", "system"))
    ]
    made = episode(segments=(first, first), transcript=transcript)
    row = trace_row(made, TOKENIZER, step=0, kind="eval", why="best")
    assert ("user", "Where is it?") in authored(row, 0)
    assert ("system", "Where is it?") in authored(row, 1)


def test_the_policys_own_words_stay_its_own_in_a_later_segment() -> None:
    later = segment(
        ["Sent."],
        prompt=message("system", "Be kind.")
        + message("user", "Where is it?")
        + message("assistant", "Let me look.")
        + message("tool", "It was sent."),
    )
    made = episode(segments=(*episode().segments, later))
    row = trace_row(made, TOKENIZER, step=0, kind="eval", why="best")
    assert ("policy", "Let me look.") in authored(row, 1)
    masked = row["segments"][1]["prompt_length"]
    start = next(a[1] for a in row["segments"][1]["authors"] if a[0] == "policy")
    assert start < masked


def test_words_that_the_template_changed_are_the_templates() -> None:
    made = episode(transcript=[{"role": "user", "content": "WHERE IS IT?"}, {"role": "odd"}])
    row = trace_row(made, TOKENIZER, step=0, kind="eval", why="best")
    assert {author for author, _ in authored(row)} == {"template", "policy"}


def test_a_row_holds_what_the_episode_did() -> None:
    made = episode()
    row = trace_row(made, TOKENIZER, step=3, kind="train", why="best")
    part, sample = row["segments"][0], made.segments[0]
    assert row["schema"] == traces.SCHEMA_VERSION
    assert part["ids"] == sample.ids.tolist()
    assert part["loss_mask"] == sample.loss_mask.tolist()
    assert part["logprobs"] == [-0.25 if kept else None for kept in part["loss_mask"]]
    assert [tuple(span) for span in part["spans"]] == [
        (span.kind, span.turn, span.start, span.stop) for span in sample.spans
    ]
    trace = parse_trace(plain(row))
    assert (trace.score, trace.ending, trace.metrics) == (1.0, "finished", dict(made.metrics))


def test_what_the_trainer_found_lies_along_the_trained_tokens() -> None:
    made = episode()
    sample = made.segments[0]
    count = sample.trained_tokens
    found = traces.TrainerNumbers(
        advantage=0.5,
        logprobs=np.linspace(-0.25, -0.75, count, dtype=np.float32),
        ratios=np.full(count, 1.25, dtype=np.float32),
        clipped=np.arange(count) == 1,
    )
    trained = {(made.rollout_id, 0): found, (made.rollout_id, 7): found}
    row = trace_row(made, TOKENIZER, step=3, kind="train", why="best", trained=trained)
    (part,) = row["segments"]
    behind = part["ids"][part["prompt_length"] :]
    assert len(part["trainer_logprobs"]) == len(part["ratios"]) == len(behind)
    for mask, trainer, ratio in zip(
        part["loss_mask"], part["trainer_logprobs"], part["ratios"], strict=True
    ):
        assert (trainer is not None, ratio) == ((True, 1.25) if mask else (False, None))
    places = part["prompt_length"] + np.flatnonzero(part["loss_mask"])
    assert part["clipped"] == [places[1]]
    assert (part["advantage"], part["gap"]) == (0.5, 0.5)
    parse_trace(plain(row))


def test_the_names_of_a_trace_are_frozen() -> None:
    row = trace_row(episode(), TOKENIZER, step=3, kind="train", why="best")
    assert traces.SCHEMA_VERSION == 1
    assert list(row) == [
        "schema",
        "step",
        "kind",
        "why",
        "rollout_id",
        "group_id",
        "task_id",
        "ending",
        "error",
        "score",
        "wall_s",
        "metrics",
        "info",
        "transcript",
        "segments",
    ]
    assert list(row["segments"][0]) == [
        "ids",
        "texts",
        "prompt_length",
        "loss_mask",
        "logprobs",
        "spans",
        "authors",
        "weight",
        "advantage",
        "trainer_logprobs",
        "ratios",
        "clipped",
        "gap",
    ]


def test_the_weights_of_an_episodes_segments_are_their_shares_of_its_trained_tokens() -> None:
    turns = [segment([words], prompt=message("user", "Plan.")) for words in ("Add.", "Now stop.")]
    played = episode(segments=tuple(turns))
    row = trace_row(played, TOKENIZER, step=1, kind="train", why="best")
    assert [found["weight"] for found in row["segments"]] == [
        turn.trained_tokens / sum(one.trained_tokens for one in turns) for turn in turns
    ]
    assert sum(found["weight"] for found in row["segments"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"schema": 2}, "this version reads 1, found 2"), ({"step": None}, "step")],
)
def test_a_trace_of_another_schema_says_so(changes: dict[str, Any], said: str) -> None:
    row = plain(trace_row(episode(), TOKENIZER, step=3, kind="train", why="best"))
    with pytest.raises(ValueError, match=said):
        parse_trace({**row, **changes})


@given(st.text(max_size=40))
def test_the_texts_of_the_tokens_joined_are_the_text(text: str) -> None:
    ids = list(text.encode("utf-8", "replace"))
    texts = token_texts(ids, TOKENIZER)
    assert len(texts) == len(ids)
    assert "".join(texts) == bytes(ids).decode("utf-8")


@given(st.lists(st.integers(0, 257), max_size=60))
def test_bytes_that_are_no_text_still_have_one_text_each(ids: list[int]) -> None:
    assert len(token_texts(ids, TOKENIZER)) == len(ids)


def test_a_character_in_several_tokens_stands_at_the_last() -> None:
    assert token_texts(list("a😀b".encode()), TOKENIZER) == ["a", "", "", "", "😀", "b"]


def test_an_unfinished_character_at_the_end_is_shown() -> None:
    assert token_texts(list("a😀".encode()[:-1]), TOKENIZER) == ["a", "", "", "\ufffd"]


class Recorder:
    """A tokenizer without a space before the first word, that notes how much it decoded at once."""

    def __init__(self, words: list[bytes]) -> None:
        self.words, self.most = words, 0

    def decode(self, ids: list[int], **how: Any) -> str:
        self.most = max(self.most, len(ids))
        return b"".join(self.words[i] for i in ids).decode("utf-8", "replace").removeprefix(" ")


def test_a_word_keeps_the_space_that_belongs_to_it() -> None:
    assert token_texts([0, 1, 0], Recorder([b" one", b" two"])) == ["one", " two", " one"]


@pytest.mark.parametrize("word", [b" one", b"\x80"])
def test_a_long_episode_is_never_decoded_whole(word: bytes) -> None:
    tokenizer = Recorder([word])
    assert len(token_texts([0] * 500, tokenizer)) == 500
    assert tokenizer.most <= 2 * traces.MAX_PENDING


def lost(rollout_id: str, boundary: Boundary) -> Any:
    return episode(
        rollout_id, score=None, ending=Ending.lost(BoundaryError(boundary, "gone")), segments=()
    )


def test_a_step_keeps_the_notable_and_one_of_each_loss() -> None:
    episodes = [
        episode("a", score=0.5),
        episode("b", score=1.0, answer="Let me look at that for you."),
        episode("c", score=0.0, ending=Ending.stopped(Limit.TURNS)),
        lost("d", Boundary.USER),
        lost("e", Boundary.USER),
        lost("f", Boundary.ENGINE),
    ]
    chosen = [(why, made.rollout_id) for why, made in choose_traces(episodes)]
    assert chosen == [
        ("best+longest", "b"),
        ("worst", "c"),
        ("lost:user", "d"),
        ("lost:engine", "f"),
    ]


def test_a_step_without_scores_keeps_its_losses() -> None:
    assert [why for why, _ in choose_traces([lost("a", Boundary.JUDGE)])] == ["lost:judge"]
    assert choose_traces([]) == []


def test_an_evaluation_keeps_some_of_all_tasks() -> None:
    episodes = [episode(f"task{index}#0", score=index % 2) for index in range(100)]
    chosen = choose_eval_traces(episodes)
    assert len(chosen) == traces.EVAL_TRACES
    assert [why for why, _ in chosen].count("sample") == traces.EVAL_TRACES - 2
    assert not any("+sample" in why for why, _ in chosen)
    places = sorted(int(made.rollout_id[4:-2]) for _, made in chosen)
    assert places[-1] >= 80


def test_long_episodes_do_not_fill_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_TOKENS", 300)
    episodes = [
        episode("a", score=1.0, answer="x" * 500),
        episode("b", score=0.0),
        episode("c", score=0.5),
    ]
    assert [made.rollout_id for _, made in choose_traces(episodes)] == ["a"]
    episodes[0] = episode("a", score=0.7, answer="x" * 500)
    episodes[2] = episode("c", score=1.0)
    assert [made.rollout_id for _, made in choose_traces(episodes)] == ["c", "b"]


def test_what_fits_beside_a_long_episode_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_TOKENS", 400)
    episodes = [
        episode("a", score=1.0),
        episode("b", score=0.0, answer="x" * 500),
        episode("c", score=None),
    ]
    assert [made.rollout_id for _, made in choose_traces(episodes)] == ["a", "c"]


def test_versions_of_the_weights_become_training_steps() -> None:
    made = episode(info={"weight_versions": [1, 2], "user": "offline"})
    row = trace_row(made, TOKENIZER, step=9, kind="train", why="best", version_shift=7)
    assert row["info"] == {"weight_versions": [8, 9], "user": "offline"}
    assert made.info["weight_versions"] == [1, 2]
    plainly = trace_row(made, TOKENIZER, step=9, kind="train", why="best")
    assert plainly["info"]["weight_versions"] == [1, 2]


@given(st.integers(0, 400), st.data())
def test_choosing_as_they_end_holds_few_and_spreads_them(count: int, data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
    choice = TraceChoice(spread=True)
    for number, score in enumerate(scores):
        choice.add(episode(f"{number}#0", score=score))
    chosen = choice.chosen()
    assert len(chosen) == min(count, traces.EVAL_TRACES)
    assert len({made.rollout_id for _, made in chosen}) == len(chosen)
    places = sorted(int(made.rollout_id[:-2]) for why, made in chosen if why == "sample")
    assert len(choice._evenly) <= 2 * traces.EVAL_TRACES
    if count > 100:
        gaps = [after - before for before, after in pairwise(places)]
        assert max(gaps) < count / 3 and places[-1] > count / 2
