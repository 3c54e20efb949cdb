"""Random conversation trees played through a session and through an oracle.

The oracle knows no profile. It renders every conversation in full with a placeholder for each
sampled turn, cuts the text at the placeholders, encodes the pieces, and puts the sampled ids in
between; a piece's first token is left out if it is the stop token that the turn ended with, and
takes the place of one that is the header of another message.

Run as a script for the long run: `python conversation_trees.py 200000 [FIRST SEED]`.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import miniatures
import numpy as np
from tokendelta import Overflow, Profile, Session, pack, unpack

APPEND_ONLY = (
    "append-only",
    "no separator",
    "grouped tools",
    "json tools",
    "counts tools",
    "deferred stop",
    "header stops",
    "always prompts",
)
DROPS = ("over max_len", "header replaced")
WORDS = (
    "order", "the", " ", "\n", "\n\n", "  ", "7", '{"a": 1}', "<|im_end|>", "<think>", "</think>",
    "zażółć", "🙂", "<", "|>", "'s", "\t", "<|user|>", "[INST]", "é",
)  # fmt: skip


@dataclass
class Turn:
    ids: list[int]
    scores: list[float]


@dataclass
class Branch:
    """Messages of one line of conversation, sampled turns by identity."""

    entries: list[Any] = field(default_factory=list)


@cache
def equipment(name: str) -> tuple[Any, Profile]:
    tokenizer = miniatures.load(name)
    return tokenizer, Profile.from_tokenizer(tokenizer)


def text_of(rnd: Random, limit: int = 8) -> str:
    return "".join(rnd.choice(WORDS) for _ in range(rnd.randint(0, limit)))


def answer_of(rnd: Random) -> list[dict[str, Any]]:
    if rnd.random() < 0.5:
        return [{"role": "user", "content": text_of(rnd)}]
    group = [{"role": "tool", "content": text_of(rnd)} for _ in range(rnd.randint(1, 3))]
    return group + [{"role": "user", "content": text_of(rnd)}] * rnd.randint(0, 1)


def expected_prompt(tokenizer: Any, branch: Branch, kind: type = Turn) -> list[int]:
    """The ids of the branch with its generation prompt, by full renders and sampled ids. Entries of
    the `kind` are turns."""
    messages, turns = [], []
    for entry in branch.entries:
        if isinstance(entry, kind):
            place = f"Pq{len(turns)}place{len(turns)}Pq"
            messages.append({"role": "assistant", "content": place})
            turns.append((place, entry))
        else:
            messages.append(entry)
    rest = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids: list[int] = []
    for place, turn in turns:
        piece, rest = rest.split(place)
        ids = joined(tokenizer, ids, piece) + turn.ids
    return joined(tokenizer, ids, rest)


def joined(tokenizer: Any, ids: list[int], piece: str) -> list[int]:
    more = tokenizer.encode(piece)
    if ids and ids[-1] != more[0] and {ids[-1], more[0]} <= headers(tokenizer):
        return ids[:-1] + more
    return ids + (more[1:] if ids and more[0] == ids[-1] else more)


def headers(tokenizer: Any) -> set[int]:
    """The stop tokens that are headers of messages, where the template has them."""
    if "[gMASK]" not in tokenizer.chat_template:
        return set()
    return {tokenizer.encode(text)[0] for text in ("<|user|>", "<|observation|>")}


def stop_for(tokenizer: Any, name: str, answer: list[dict[str, Any]]) -> int:
    if name == "header stops":
        header = "<|observation|>" if answer[0]["role"] == "tool" else "<|user|>"
        return int(tokenizer.encode(header)[0])
    return int(tokenizer.eos_token_id)


def play(rnd: Random) -> int:
    """One tree. Returns the number of prompts that were compared."""
    name = rnd.choice(APPEND_ONLY)
    tokenizer, profile = equipment(name)
    limit = rnd.choice([None, None, None, rnd.randint(20, 200)])
    session = Session(profile, max_tokens=limit, verify=rnd.choice(["never", "never", "sampled"]))
    branch = Branch([{"role": "user", "content": text_of(rnd)}])
    if rnd.random() < 0.5:
        branch.entries.insert(0, {"role": "system", "content": text_of(rnd)})
    branches, turns, compared = [branch], list[Turn](), 1
    prompt = session.start([dict(entry) for entry in branch.entries])  # type: ignore[call-overload]
    while agrees(tokenizer, branch, prompt, limit):
        answer = answer_of(rnd)
        ids = tokenizer.encode(text_of(rnd, 12).replace("<|im_end|>", ""))
        ids = [i for i in ids if i not in profile.stop_ids]
        finish = rnd.choice(["stop", "stop", "stop", "length"])
        if finish == "stop" and rnd.random() < 0.9:
            ids.append(stop_for(tokenizer, name, answer))
        scores = [-rnd.random() for _ in ids]
        if session.append_sampled(ids, scores, finish) is not None:
            assert limit is not None and len(prompt) + len(ids) > limit
            break
        turn = Turn(ids, scores)
        branch.entries.append(turn)
        turns.append(turn)
        if rnd.random() < 0.15 or (not ids and finish == "length"):
            break
        if rnd.random() < 0.2:
            branch = rolled_back(rnd, rnd.choice(branches), answer)
            branches.append(branch)
            prompt = session.sync(told(profile, branch))
        else:
            prompt = session.append_env(answer)
            if not isinstance(prompt, Overflow):
                branch.entries += answer
            else:
                branch.entries += answer
                assert not agrees(tokenizer, branch, prompt, limit)
                del branch.entries[-len(answer) :]
                break
        compared += 1
    assert not session.drifts or any(turn.ids for turn in turns)
    check_samples(rnd, session, turns, limit)
    return compared


def agrees(tokenizer: Any, branch: Branch, prompt: Any, limit: int | None) -> bool:
    """Compare a prompt with the oracle's; False if it does not fit the limit."""
    expected = expected_prompt(tokenizer, branch)
    if isinstance(prompt, Overflow):
        assert limit is not None and len(expected) > limit, "refused what fits"
        return False
    assert prompt.tolist() == expected
    assert limit is None or len(expected) <= limit
    return True


def rolled_back(rnd: Random, branch: Branch, answer: list[dict[str, Any]]) -> Branch:
    """A new branch that leaves another behind one of its turns, or at its start."""
    places = [i + 1 for i, entry in enumerate(branch.entries) if isinstance(entry, Turn)]
    if not places:
        return Branch([*branch.entries, *answer])
    return Branch([*branch.entries[: rnd.choice(places)], *answer])


def told(profile: Profile, branch: Branch) -> list[dict[str, Any]]:
    """The branch as a client would send it: sampled turns as decoded text."""
    messages = []
    for entry in branch.entries:
        if isinstance(entry, Turn):
            bare = [i for i in entry.ids if i not in profile.stop_ids]
            text = profile.tokenizer.decode(bare, skip_special_tokens=False)
            messages.append({"role": "assistant", "content": text})
        else:
            messages.append(dict(entry))
    return messages


def check_samples(rnd: Random, session: Session, turns: list[Turn], limit: int | None) -> None:
    """Every sampled token once in all samples, with its log-prob, or listed as left out."""
    for max_len in (None, rnd.randint(1, 300)):
        result = session.samples(max_len)
        trained: Counter[tuple[int, float]] = Counter()
        for sample in result.samples:
            assert limit is None or len(sample.ids) <= limit
            assert max_len is None or len(sample.ids) <= max_len
            assert sample.loss_mask[0] == 1 and sample.loss_mask[-1] == 1
            chosen = sample.loss_mask == 1
            assert chosen.any() and np.array_equal(np.isfinite(sample.logprobs), chosen)
            response = sample.ids[sample.prompt_length :]
            trained.update(
                zip(response[chosen].tolist(), sample.logprobs[chosen].tolist(), strict=True)
            )
            assert [s.start for s in sample.spans] == [0, *(s.stop for s in sample.spans[:-1])]
        given = Counter(
            (i, float(np.float32(s))) for t in turns for i, s in zip(t.ids, t.scores, strict=True)
        )
        assert not trained - given
        left = sum(drop.tokens for drop in result.dropped)
        assert trained.total() + left == given.total()
        reasons = {drop.reason for drop in result.dropped}
        assert reasons <= ({"header replaced"} if max_len is None else {*DROPS})
        if result.samples:
            assert abs(sum(sample.weight for sample in result.samples) - 1) < 1e-9
            longest = max(len(sample.ids) for sample in result.samples)
            batches = pack(result.samples, longest + rnd.randint(0, 50), ranks=rnd.randint(1, 3))
            for sample, (ids, mask, _) in zip(result.samples, unpack(batches), strict=True):
                assert np.array_equal(ids, sample.ids)
                assert int(mask.sum()) == sample.trained_tokens


def main() -> None:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    compared = 0
    for seed in range(first, count):
        try:
            compared += play(Random(seed))
        except Exception:
            print(f"seed {seed}", file=sys.stderr)
            raise
        if seed % 10_000 == 9_999:
            print(f"{seed + 1} conversation trees", file=sys.stderr, flush=True)
    print(f"{count - first} conversation trees, {compared} prompts compared, 0 disagreements")


if __name__ == "__main__":
    main()
