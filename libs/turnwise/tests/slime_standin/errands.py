"""A method for the tests of the hooks, and a policy that plays it.

A user asks for the code of a parcel. The policy may ask back, looks the code up with a tool and
says it; the user then leaves. The score is 1 where the right code was said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError
from turnwise.conversation import Conversation, Overflow, ToolCall
from turnwise.engine.http import HttpPool
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit, crossing
from turnwise.method import Method, MethodOptions, Services
from turnwise.policy import AnyPolicy
from turnwise.replay import Replay
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.testing.servers import Call, Turn
from turnwise.testing.tokens import byte_tokenizer, call

QUESTION = "Shall I look it up for you?"
GOODBYE = "I can't help you."
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find_code",
            "description": "The code of a parcel.",
            "parameters": {
                "type": "object",
                "properties": {"parcel": {"type": "integer"}},
                "required": ["parcel"],
            },
        },
    }
]


class ErrandOptions(MethodOptions):
    """Options of `Errands`."""

    tool_format: str | None = "qwen25"
    user_url: str | None = None
    """An OpenAI-compatible endpoint that plays the user, up to `/v1`; rules where not given."""
    user_deadline_s: float = 60.0
    engine_deadline_s: float = 60.0
    max_turns: int = 8
    max_format_errors: int = 3


class Errands(Method[ErrandOptions, int]):
    """See the module.

    Attributes:
        opened, closed: How often.
    """

    Options = ErrandOptions

    def __init__(self, options: ErrandOptions) -> None:
        super().__init__(options)
        self.opened = self.closed = 0
        self._pool: HttpPool | None = None
        self._asked = 0

    def task(self, row: Row) -> int:
        text = str(row.prompt)
        if not text.isdecimal() or int(text) >= 500:
            raise ConfigError(f"{row.where}: there are parcels 0 to 499, found {text!r}")
        return int(text)

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return TOOLS

    def players(self) -> Mapping[str, str]:
        return {"user": "endpoint" if self.options.user_url else "rules"}

    def metrics(self) -> Mapping[str, float]:
        return {"user/requests": float(self._asked)}

    async def open(self, services: Services) -> None:
        self.opened += 1
        self._pool = HttpPool(backoff_s=0.001, max_backoff_s=0.02)

    async def close(self) -> None:
        self.closed += 1
        if self._pool is not None:
            await self._pool.close()

    async def run(self, rollout: Rollout[int], policy: AnyPolicy) -> Episode:
        replay = rollout.replay or Replay()
        heard = [{"role": "user", "content": opening(rollout.task)}]
        heard[0]["content"] = await self._user(replay, heard)
        deadline_s = self.options.engine_deadline_s
        async with Conversation(policy, rollout, tools=TOOLS, deadline_s=deadline_s) as talk:
            wrong = 0
            said: list[dict[str, Any]] = [{"role": "system", "content": "Serve."}, *heard]
            for _ in range(self.options.max_turns):
                turn = await talk.ask(said)
                if isinstance(turn, Overflow) or turn.ending is not None:
                    assert turn.ending is not None
                    return talk.episode(turn.ending, score=0.0)
                said = [tool_result(one) for one in turn.calls]
                wrong += bool(turn.errors)
                if wrong >= self.options.max_format_errors:
                    return talk.episode(Ending.stopped(Limit.FORMAT), score=0.0)
                if said:
                    continue
                if turn.content == QUESTION:
                    heard += [{"role": "assistant", "content": turn.content}]
                    answer = await self._user(replay, heard)
                    heard += [{"role": "user", "content": answer}]
                    said = heard[-1:]
                elif not turn.errors:
                    right = str(code(rollout.task)) in turn.content
                    return talk.episode(
                        Ending.finished(), score=float(right), info={"task": rollout.task}
                    )
                else:
                    said = [{"role": "user", "content": "Pardon?"}]
            return talk.episode(Ending.stopped(Limit.TURNS), score=0.0)

    async def _user(self, replay: Replay, heard: Sequence[Mapping[str, Any]]) -> str:
        async def make() -> str:
            self._asked += 1
            if self.options.user_url is None:
                return says(list(heard))
            async with crossing(Boundary.USER, deadline_s=self.options.user_deadline_s):
                return await self._endpoint(self.options.user_url, heard)

        answer: str = await replay.call("user", [dict(one) for one in heard], make)
        return answer

    async def _endpoint(self, url: str, heard: Sequence[Mapping[str, Any]]) -> str:
        assert self._pool is not None
        answer = await self._pool.post(
            f"{url}/chat/completions", {"model": "user", "messages": list(heard)}
        )
        text = answer["choices"][0]["message"]["content"]
        if not isinstance(text, str) or not text.strip():
            raise BoundaryError(Boundary.USER, f"the user's reply is no text: {text!r}")
        text.encode()
        return text


class Compared(Errands):
    """Scores a member by how many of its group it beats, and takes all facts of a member."""

    def group_scores(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        assert all(one.info["task"] >= 0 for one in episodes if one.ending.kind == "finished")
        scores = [one.score for one in episodes]
        return [
            None if score is None else float(sum(o is not None and score > o for o in scores))
            for score in scores
        ]


def opening(parcel: int) -> str:
    """What the user wants."""
    return f"Please find the code of parcel {parcel}."


def code(parcel: int) -> int:
    """What the tool says."""
    return 1000 + 7 * parcel


def says(messages: Sequence[Mapping[str, Any]]) -> str:
    """The user by rules: repeats what is wanted, then agrees."""
    return str(messages[0]["content"]) if len(messages) == 1 else "Yes, please."


def tool_result(made: ToolCall) -> dict[str, Any]:
    """What the tool says to a call."""
    parcel = made.arguments.get("parcel") if isinstance(made.arguments, Mapping) else None
    content = f"code {code(parcel)}" if isinstance(parcel, int) else "no such parcel"
    return {"role": "tool", "name": made.name, "content": content}


class Courier:
    """The policy, as `FakeSGLang` asks it: asks back `asks` times, looks the code up, says it.

    A session for whose number `wrong` holds says goodbye at once and fails.

    Attributes:
        sessions: Routing keys in the order of their first call.
    """

    def __init__(
        self, *, wrong: Callable[[int], bool] = lambda number: False, asks: int = 0
    ) -> None:
        self._wrong, self._asks = wrong, asks
        self.sessions: list[str] = []

    async def answer(self, call: Call) -> Turn:
        if call.session not in self.sessions:
            self.sessions.append(call.session)
        wrong = self._wrong(self.sessions.index(call.session))
        text = byte_tokenizer().decode(call.body["input_ids"])
        return spoken(GOODBYE if wrong else words(text, self._asks))


def words(prompt: str, asks: int = 0) -> str:
    """The next turn after this prompt."""
    turn = prompt.count("<|im_start|>assistant\n") - 1 - asks
    if turn < 0:
        return QUESTION
    if turn == 0:
        return call("find_code", parcel=int(prompt.split("parcel ")[1].split(".")[0]))
    return f"It is {prompt.rpartition('code ')[2].split()[0].partition('<')[0]}."


def spoken(text: str, *, stop: bool = True) -> Turn:
    """A turn with log-probs that tell its tokens apart."""
    tokenizer = byte_tokenizer()
    ids = [*tokenizer.encode(text, add_special_tokens=False)]
    ids += [tokenizer.eos_token_id] * stop
    return Turn(ids, scores(ids), "stop" if stop else "length")


def scores(ids: Sequence[int]) -> list[float]:
    """A log-prob for each id, exact in float32."""
    return [-((token + place) % 31 + 1) / 64 for place, token in enumerate(ids)]


def save_tokenizer(folder: Path) -> str:
    """Writes the byte tokenizer to `folder`; the value for `--hf-checkpoint`."""
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def rows(count: int) -> list[Any]:
    """`count` samples of slime as its data source reads them from a file."""
    from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep

    return [
        Sample(prompt=str(n), label=f"label of {n}", metadata={"id": f"parcel/{n}", "kind": "red"})
        for n in range(count)
    ]
