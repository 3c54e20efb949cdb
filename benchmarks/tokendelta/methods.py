"""The same conversation by different methods, each returning the ids it ends with.

Those of other projects are written by us from how they go about it, with the same tokenizer; they
are not their code. Only `renderers` is the package itself, where it is installed. The first prompt
is made before the clock starts, for all alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from token_delta_contract import contract
from tokendelta import Profile, Session, Tree, get_token_delta

from benchmarks.tokendelta.workload import Workload

Run = Callable[[], list[int]]
Method = Callable[[Workload], Run]


def session_with(encoder: Any) -> Method:
    """Ours: sampled ids verbatim, one delta a turn."""

    def method(load: Workload) -> Run:
        profile = Profile.from_tokenizer(load.tokenizer, tools=load.tools, encoder=encoder)

        def run() -> list[int]:
            session = Session(profile)
            session.start(load.opening)
            run.started = time.thread_time()  # type: ignore[attr-defined]
            for ids, scores, _, answer in load.turns:
                session.append_sampled(ids, scores)
                session.append_env([answer])
            return list(session.prompt.tolist())

        return run

    return method


def tree(load: Workload) -> Run:
    """Ours for programs that send whole histories: each is compared with the record first."""
    profile = Profile.from_tokenizer(load.tokenizer, tools=load.tools)

    def run() -> list[int]:
        record, history = Tree(profile), list(load.opening)
        ticket: Any = record.prepare(history)
        run.started = time.thread_time()  # type: ignore[attr-defined]
        for ids, scores, said, answer in load.turns:
            record.commit(ticket, ids, scores, message=said)
            record.delivered(ticket)
            history += [said, answer]
            ticket = record.prepare(history)
        return list(ticket.prompt.tolist())

    return run


def _by_deltas(delta: Callable[..., tuple[list[int], list[int]]], load: Workload) -> Run:
    def run() -> list[int]:
        tokenizer, messages = load.tokenizer, list(load.opening)
        ids = _prompt(load)
        run.started = time.thread_time()  # type: ignore[attr-defined]
        for number, (_, _, said, answer) in enumerate(load.turns):
            messages.append(said)
            ids += delta(tokenizer, messages, number > 0)[0]
            messages.append(answer)
            ids += delta(tokenizer, messages, False)[0]
        return ids

    return run


def slime(load: Workload) -> Run:
    """slime's get_token_delta by its contract: renders of the whole history for each message."""
    return _by_deltas(contract, load)


def compatible(load: Workload) -> Run:
    """Our get_token_delta in its place: encodes what slime's encodes."""

    def delta(tokenizer: Any, messages: Any, flag: bool) -> tuple[list[int], list[int]]:
        return get_token_delta(tokenizer, messages, include_generation_prompt=flag)

    return _by_deltas(delta, load)


def _prompt(load: Workload) -> list[int]:
    text = load.tokenizer.apply_chat_template(
        load.opening, tools=load.tools, add_generation_prompt=True, tokenize=False
    )
    return list(load.tokenizer.encode(text, add_special_tokens=False))


def full(load: Workload) -> Run:
    """Render and encode everything each turn."""

    def run() -> list[int]:
        messages, ids = list(load.opening), _prompt(load)
        run.started = time.thread_time()  # type: ignore[attr-defined]
        for _, _, said, answer in load.turns:
            messages += [said, answer]
            text = load.tokenizer.apply_chat_template(
                messages, tools=load.tools, add_generation_prompt=True, tokenize=False
            )
            ids = load.tokenizer.encode(text, add_special_tokens=False)
        return list(ids)

    return run


def trl(load: Workload) -> Run:
    """TRL's pattern: a dummy conversation rendered with and without the answer, each turn."""

    def run() -> list[int]:
        tokenizer, ids = load.tokenizer, _prompt(load)
        (end,) = tokenizer.encode("<|im_end|>")
        run.started = time.thread_time()  # type: ignore[attr-defined]
        dummy = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        for sampled, _, _, answer in load.turns:
            before = tokenizer.apply_chat_template(dummy, tokenize=True, return_dict=False)
            after = tokenizer.apply_chat_template(
                [*dummy, answer], add_generation_prompt=True, tokenize=True, return_dict=False
            )
            cut = len(before) - before[::-1].index(end)
            assert after[:cut] == before[:cut]
            ids += sampled + after[cut:]
        return ids

    return run


def verl(load: Workload) -> Run:
    """verl's ContinuousToken pattern: the answer behind a dummy, the generation prompt as the
    difference of two renders of the whole history."""

    def run() -> list[int]:
        tokenizer, ids, messages = load.tokenizer, _prompt(load), list(load.opening)
        (end,) = tokenizer.encode("<|im_end|>")
        run.started = time.thread_time()  # type: ignore[attr-defined]
        dummy = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
        ]

        def encoded(part: list[Any], generation: bool, tools: Any) -> list[int]:
            return list(
                tokenizer.apply_chat_template(
                    part,
                    tools=tools,
                    add_generation_prompt=generation,
                    tokenize=True,
                    return_dict=False,
                )
            )

        for sampled, _, said, answer in load.turns:
            messages += [said, answer]
            before, after = encoded(dummy, False, None), encoded([*dummy, answer], False, None)
            cut = len(before) - before[::-1].index(end)
            history, asked = (encoded(messages, flag, load.tools) for flag in (False, True))
            ids += sampled + after[cut:] + asked[len(history) :]
        return ids

    return run


def renderers(load: Workload) -> Run:
    """The package `renderers`: its renderer for Qwen3, one bridge a turn."""
    from renderers import Qwen3Renderer, Qwen3RendererConfig

    config = Qwen3RendererConfig(thinking_retention="all")
    renderer = Qwen3Renderer(load.tokenizer, config)

    def run() -> list[int]:
        prompt = _prompt(load)
        run.started = time.thread_time()  # type: ignore[attr-defined]
        for sampled, _, _, answer in load.turns:
            bridged = renderer.bridge_to_next_turn(prompt, sampled, [answer], tools=load.tools)
            prompt = list(getattr(bridged, "token_ids", bridged))
        return prompt

    return run


METHODS: dict[str, Method] = {
    "Session, fast encoder": session_with("auto"),
    "Session, HF encoder": session_with("huggingface"),
    "Tree, fast encoder": tree,
    "get_token_delta, ours": compatible,
    "get_token_delta, slime's contract": slime,
    "full render each turn": full,
    "TRL's pattern": trl,
    "verl's pattern": verl,
    "renderers": renderers,
}


def best_ms(run: Run, repeats: int = 5) -> float:
    """Least thread CPU time in milliseconds, from the first prompt on."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(repeats):
            run()
            best = min(best, time.thread_time() - run.started)  # type: ignore[attr-defined]
    finally:
        gc.enable()
    return best * 1000
