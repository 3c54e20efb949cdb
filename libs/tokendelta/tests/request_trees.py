"""Programs that send whole histories, played at random through a tree and through an oracle.

The oracle knows no session, no trie and no profile. It keeps what every turn was asked with and
answered, as plain messages. For a request it looks through all of them for turns that the last
assistant message tells of, renders the conversation in full with a placeholder for each, and puts
the sampled ids in between (`conversation_trees`); where no turn is told of, the prompt is the
render of what was sent.

A program writes turns down in its own way, drops reasoning, edits turns and contexts, sends
requests twice, several at a time, and goes away. Answers come in any order, or never.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from conversation_trees import (
    APPEND_ONLY,
    Branch,
    answer_of,
    equipment,
    expected_prompt,
    stop_for,
    text_of,
)
from tokendelta import Overflow, Ticket, Tree

Message = dict[str, Any]
DROPS = {"undelivered", "abandoned", "constrained", "header replaced"}


@dataclass(eq=False)
class Asked:
    """A turn as the oracle knows it: the line of messages and turns before it, what was sampled,
    and the message that was sent for it."""

    line: list[Any]
    told: list[Message]
    params: str
    ticket: Ticket
    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    message: Message | None = None
    constrained: bool = False
    state: str = "open"
    lost: bool = False


def says_the_same(message: Message, sent: Message) -> bool:
    """The rules for an echo as far as these programs go, written without `echo`."""
    if message["role"] != "assistant":
        return False
    (told_why, told_text), (why, text) = parts(message), parts(sent)
    return told_text == text and told_why in ("", why)


def parts(message: Message) -> tuple[str, str]:
    """Reasoning and text, without whitespace around them."""
    why, text = message.get("reasoning_content") or "", (message["content"] or "").strip()
    if not why and text.startswith("<think>") and "</think>" in text:
        why, text = text.removeprefix("<think>").split("</think>", 1)
    return why.strip(), text.strip()


def same_line(line: list[Any], history: list[Message]) -> bool:
    """Whether a history tells of a line of messages and turns."""
    return len(line) == len(history) and all(
        says_the_same(message, entry.message) if isinstance(entry, Asked) else entry == message
        for entry, message in zip(line, history, strict=True)
    )


def written(rnd: Random, message: Message) -> Message:
    """A turn as a program writes it down."""
    told = dict(message)
    why = told.get("reasoning_content")
    style = rnd.random()
    if style < 0.2:
        told["content"] = told["content"].strip()
    elif style < 0.3:
        told["content"] = f"  {told['content']}\n"
    if why and rnd.random() < 0.5:
        del told["reasoning_content"]
        if rnd.random() < 0.5 and not told["content"].strip().startswith("<think>"):
            told["content"] = f"<think>{why}</think>{told['content']}"
    return told


class Play:
    """One rollout. `lines` are histories that the program may go on with."""

    def __init__(self, rnd: Random) -> None:
        self.rnd, self.name = rnd, rnd.choice(APPEND_ONLY)
        self.tokenizer, self.profile = equipment(self.name)
        self.limit = rnd.choice([None, None, None, rnd.randint(30, 200)])
        self.tree = Tree(self.profile, max_tokens=self.limit)
        self.known: dict[str, Message] = {}
        # How much of a history is given as messages that the tree knows.
        self.knows = rnd.choice([0.0, 0.9, 1.0, 1.0])
        self.asked: list[Asked] = []
        self.lines: list[list[Message]] = [[]]
        self.requests: list[tuple[list[Message], str]] = []
        self.compared = 0

    def run(self) -> int:
        for _ in range(self.rnd.randint(3, 20)):
            pending = [asked for asked in self.asked if asked.state in ("open", "sampled")]
            if pending and self.rnd.random() < 0.55:
                self.end(self.rnd.choice(pending))
            elif self.requests and self.rnd.random() < 0.25:
                self.request(*self.rnd.choice(self.requests), retry=self.rnd.random() < 0.5)
            else:
                self.request(self.new_history(), self.rnd.choice("aab"), retry=False)
        self.check_samples()
        return self.compared

    def new_history(self) -> list[Message]:
        history = [dict(message) for message in self.rnd.choice(self.lines)]
        if history and self.rnd.random() < 0.2:
            place = self.rnd.randrange(len(history))
            before = history[place]
            edited = text_of(self.rnd) + self.rnd.choice(["", before["content"]])
            history[place] = {**before, "content": edited or "edited"}
            # White space alone edits nothing of a turn: the history would tell of the same line.
            if says_the_same(history[place], before):
                history[place]["content"] = "edited"
        if self.rnd.random() < 0.1:
            history.append({"role": "assistant", "content": "I never said so."})
        if not history:
            return [{"role": "user", "content": self.rnd.choice("xyz") + text_of(self.rnd)}]
        return history + answer_of(self.rnd)

    def given(self, history: list[Message]) -> list[Message]:
        """The history as the tree gets it."""
        return [
            self.known.setdefault(json.dumps(message), self.tree.known(message))
            if self.rnd.random() < self.knows
            else message
            for message in history
        ]

    def request(self, history: list[Message], params: str, retry: bool) -> None:
        self.requests.append((history, params))
        before = self.tree.segments
        ticket = self.tree.prepare(self.given(history), params=params, retry=retry)
        last = max((i for i, m in enumerate(history) if m["role"] == "assistant"), default=-1)
        bases = self.told_of(history[: last + 1])
        lines = [[*base.line, base, *history[last + 1 :]] for base in bases] or [history]
        if isinstance(ticket, Overflow):
            assert self.limit is not None and all(
                len(self.prompt(line)) > self.limit for line in lines
            )
            return
        same = [a for a in self.asked if a.params == params and same_line(a.line, history)]
        missed = [a for a in same if a.state == "undelivered" or a.lost]
        if retry and not missed:
            missed = [a for a in same if a.state != "abandoned"]
        assert (ticket.decision == "replay") == bool(missed), ticket
        self.prove(history)
        if missed:
            (again,) = [asked for asked in missed if asked.ticket.slot is ticket.slot]
            again.lost = False
            again.state = "sampled" if again.state == "undelivered" else again.state
            self.compared += 1
            return
        prompt = ticket.prompt.tolist()
        (line, *_) = [line for line in lines if self.prompt(line) == prompt]
        self.compared += 1
        assert self.tree.segments - before <= (ticket.decision != "extend")
        if bases:
            assert ticket.decision != "new"
        elif not any(same_line(asked.line, history) for asked in self.asked):
            assert ticket.decision == "new"
        self.asked.append(Asked(line, history, params, ticket))

    def told_of(self, history: list[Message]) -> list[Asked]:
        """The turns that the last message of a history may be an echo of."""
        return [
            asked
            for asked in self.asked
            if asked.message is not None and same_line([*asked.line, asked], history)
        ]

    def prove(self, history: list[Message]) -> None:
        """A turn that a history tells of was delivered. Of several that say the same, which one is
        meant is for the tree to choose."""
        for index, message in enumerate(history):
            told = [
                asked
                for asked in self.asked
                if asked.message is not None
                and same_line([*asked.line, asked], history[: index + 1])
            ]
            for asked in told:
                if asked.ticket.status == "delivered" and asked.state != "delivered":
                    asked.state = "delivered"
            assert message["role"] != "assistant" or len(told) != 1 or told[0].state == "delivered"

    def prompt(self, line: list[Any]) -> list[int]:
        return expected_prompt(self.tokenizer, Branch(line), Asked)

    def end(self, asked: Asked) -> None:
        """Commit, abandon or deliver a turn."""
        if asked.state == "sampled":
            asked.state = self.rnd.choice(["delivered", "delivered", "delivered", "undelivered"])
            if asked.state == "delivered":
                self.tree.delivered(asked.ticket)
            else:
                self.tree.undelivered(asked.ticket, "gone")
                if asked.ticket.status == "delivered":
                    asked.state = "delivered"
            return
        if self.rnd.random() < 0.15:
            self.tree.abandon(asked.ticket, "engine")
            asked.state, asked.lost = "abandoned", False
            return
        if self.rnd.random() < 0.15 and not asked.lost:
            self.tree.undelivered(asked.ticket, "gone early")
            asked.lost = True
            return
        prompt = self.prompt(asked.line)
        assert asked.ticket.prompt.tolist() == prompt, "an open prompt changed"
        text = text_of(self.rnd, 12).replace("<|im_end|>", "")
        ids = [i for i in self.tokenizer.encode(text) if i not in self.profile.stop_ids]
        shown = self.tokenizer.decode(ids, skip_special_tokens=False)
        message: Message = {"role": "assistant", "content": shown}
        if self.rnd.random() < 0.3 and not shown.strip().startswith("<think>"):
            message["reasoning_content"] = f"why {self.rnd.randint(0, 1)}"
        asked.constrained = self.rnd.random() < 0.1
        ids.append(stop_for(self.tokenizer, self.name, answer_of(self.rnd)))
        scores = [-self.rnd.random() for _ in ids]
        over = self.tree.commit(
            asked.ticket, ids, scores, message=message, constrained=asked.constrained
        )
        if over is not None:
            assert self.limit is not None and len(prompt) + len(ids) > self.limit
            self.tree.abandon(asked.ticket, "too long")
            asked.state, asked.lost = "abandoned", False
            return
        asked.ids, asked.scores, asked.message = ids, scores, message
        asked.state, asked.lost = ("undelivered" if asked.lost else "sampled"), False
        assert asked.ticket.ids.tolist() == ids and asked.ticket.message == message
        self.lines.append([*asked.told, written(self.rnd, message)])

    def check_samples(self) -> None:
        """Every sampled token is trained once if its turn was delivered, or listed once."""
        delivered = {a for a in self.asked if a.state == "delivered"}
        result = self.tree.samples(constrained=self.rnd.choice(["mask", "train"]))
        trained: Counter[tuple[int, float]] = Counter()
        turns: set[int] = set()
        for sample in result.samples:
            chosen = sample.loss_mask == 1
            response = sample.ids[sample.prompt_length :]
            trained.update(
                zip(response[chosen].tolist(), sample.logprobs[chosen].tolist(), strict=True)
            )
            turns |= {span.turn for span in sample.spans if span.trained}
        sampled = Counter(
            (i, float(np.float32(s)))
            for a in self.asked
            for i, s in zip(a.ids, a.scores, strict=True)
        )
        assert not trained - sampled
        assert trained.total() + sum(drop.tokens for drop in result.dropped) == sampled.total()
        reasons = {drop.reason for drop in result.dropped}
        assert reasons <= DROPS
        listed = {drop.turn for drop in result.dropped if drop.reason != "header replaced"}
        assert turns.isdisjoint(listed)
        assert turns | {drop.turn for drop in result.dropped} == set(range(len(self.asked)))
        for asked in self.asked:
            if asked.ticket.turn in turns:
                assert asked in delivered
                assert not asked.constrained or "constrained" not in reasons
            elif asked in delivered and asked.ticket.turn in listed:
                assert asked.constrained, "a turn that was delivered is left out"
        if result.samples:
            assert abs(sum(sample.weight for sample in result.samples) - 1) < 1e-9


def play(rnd: Random) -> int:
    """One rollout. Returns the number of requests that were compared."""
    return Play(rnd).run()
