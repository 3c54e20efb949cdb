"""A byte tokenizer and episodes made with it, small enough to check by eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokendelta
from tokendelta.sample import SpanKind
from turnwise.episode import Boundary, BoundaryError, Ending, Episode

SPECIALS = ("<|im_start|>", "<|im_end|>")


class ByteTokenizer:
    """One token a byte; the specials follow at 256."""

    def encode(self, text: str) -> list[int]:
        for number, special in enumerate(SPECIALS):
            if special in text:
                left, right = text.split(special, 1)
                return [*self.encode(left), 256 + number, *self.encode(right)]
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str:
        assert not skip_special_tokens and not clean_up_tokenization_spaces
        parts = (SPECIALS[i - 256].encode() if i >= 256 else bytes([i]) for i in ids)
        return b"".join(parts).decode("utf-8", "replace")


TOKENIZER = ByteTokenizer()


def segment(
    turns: Sequence[str], *, prompt: str, environment: Sequence[str] = (), logprob: float = -0.25
) -> tokendelta.Sample:
    """A ChatML segment: the prompt, then sampled turns with the environment's text in between."""
    start = "<|im_start|>assistant\n"
    ids = TOKENIZER.encode(prompt) + TOKENIZER.encode(start)
    spans = [
        tokendelta.Span("prompt", 0, 0, len(TOKENIZER.encode(prompt)), False),
        tokendelta.Span("header", 0, len(TOKENIZER.encode(prompt)), len(ids), False),
    ]
    prompt_length, mask = len(ids), list[int]()

    def add(kind: SpanKind, turn: int, text: str, trained: bool) -> None:
        new = TOKENIZER.encode(text)
        spans.append(tokendelta.Span(kind, turn, len(ids), len(ids) + len(new), trained))
        ids.extend(new)
        mask.extend([int(trained)] * len(new))

    for turn, text in enumerate(turns):
        add("content", turn, text, True)
        add("stop", turn, "<|im_end|>", True)
        if turn < len(environment):
            add("separator", turn + 1, "\n", False)
            add("environment", turn + 1, environment[turn], False)
            add("header", turn + 1, start, False)
    logprobs = np.where(np.array(mask, dtype=bool), np.float32(logprob), np.float32("nan"))
    return tokendelta.Sample(
        ids=np.array(ids, dtype=np.int32),
        prompt_length=prompt_length,
        loss_mask=np.array(mask, dtype=np.uint8),
        logprobs=logprobs.astype(np.float32),
        spans=tuple(spans),
        weight=1.0,
    )


def message(role: str, text: str, end: str = "\n") -> str:
    """A rendered ChatML message."""
    return f"<|im_start|>{role}\n{text}<|im_end|>{end}"


def episode(
    rollout_id: str = "1/0/0",
    *,
    score: float | None = 1.0,
    ending: Ending | None = None,
    answer: str = "Let me look.",
    user: str = "Where is it?",
    tool: str = "It was sent.",
    **changes: Any,
) -> Episode:
    """Two turns: the policy answers, a tool speaks, the policy answers again."""
    if score is None and ending is None:
        ending = Ending.lost(BoundaryError(Boundary.USER, "no answer"))
    transcript = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": user},
        {"role": "assistant", "content": answer},
        {"role": "tool", "content": tool},
        {"role": "assistant", "content": "Sent."},
    ]
    fields: dict[str, Any] = {
        "rollout_id": rollout_id,
        "group_id": rollout_id.rpartition("/")[0],
        "task_id": "retail/train/7",
        "segments": (
            segment(
                [answer, "Sent."],
                prompt=message("system", "Be kind.") + message("user", user),
                environment=[message("user", f"<tool_response>\n{tool}\n</tool_response>")],
            ),
        ),
        "ending": ending or Ending.finished(),
        "score": score,
        "transcript": transcript,
        "metrics": {"turns": 2.0, "tool_calls": 1.0},
        "info": {"user": "offline"},
        "wall_s": 0.5,
    }
    return Episode(**{**fields, **changes})
