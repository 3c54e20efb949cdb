"""A policy for tests: it serves the customers of the compact retail family by the annotated calls.

`Desk.answer` plugs into `FakeSGLang`. It reads the prompt's text alone, as a model does: which
customer speaks, and how many turns were taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from taubench import Task, user_profile
from taubench.splits import family_tasks
from taubench.users import compact_user
from taubench.users.script import write_script
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from turnwise.testing.servers import Call, Turn

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QUESTION = "Shall I look it up for you?"
GOODBYE = "All of it is done."


def make_tokenizer() -> Any:
    """259 tokens: three of ChatML and the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = (files("turnwise.local") / "chatml_tools.jinja").read_text("utf-8")
    return fast


def save_tokenizer(folder: Path) -> str:
    """Writes the tokenizer to `folder`; the value for `--hf-checkpoint`."""
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@cache
def openings() -> dict[str, Task]:
    """The tasks of the family whose customer speaks like no other, by the first message."""
    found: dict[str, list[Task]] = {}
    for task in family_tasks():
        script = write_script(task.user_id, task.instruction, user_profile(task))
        found.setdefault(compact_user().start(script), []).append(task)
    return {words: tasks[0] for words, tasks in found.items() if len(tasks) == 1}


def prompts(count: int) -> list[Any]:
    """`count` samples of slime as its data source reads them from a prepared file."""
    from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep

    tasks = sorted(openings().values(), key=lambda task: task.index)[:count]
    return [
        Sample(
            prompt=task.index,
            label=f"label of {task.index}",
            metadata={"env": task.domain, "task_split": task.split},
        )
        for task in tasks
    ]


class Desk:
    """Asks `asks` times, makes the annotated calls one a turn, and says goodbye.

    A session for whose number `wrong` holds says goodbye at once and fails.

    Attributes:
        sessions: Routing keys in the order of their first call.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        wrong: Callable[[int], bool] = lambda number: False,
        asks: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._wrong = wrong
        self._asks = asks
        self.sessions: list[str] = []

    async def answer(self, call: Call) -> Turn:
        if call.session not in self.sessions:
            self.sessions.append(call.session)
        text = self._tokenizer.decode(call.body["input_ids"])
        wrong = self._wrong(self.sessions.index(call.session))
        said = GOODBYE if wrong else words(text, self._asks)
        return self.turn(self.form(text, said))

    def form(self, prompt: str, said: str) -> str:
        """How a turn is written."""
        return said

    def turn(self, text: str, *, stop: bool = True) -> Turn:
        """A turn with log-probs that tell its tokens apart."""
        ids = [*self._tokenizer.encode(text, add_special_tokens=False)]
        ids += [self._tokenizer.eos_token_id] * stop
        return Turn(ids, scores(ids), "stop" if stop else "length")


class Speaker(Desk):
    """Writes its turns in the form that the prompt asks for."""

    def form(self, prompt: str, said: str) -> str:
        system = prompt.split("<|im_end|>")[0]
        if "line that begins with Action:" not in system:
            return said
        return self._as_text(said, thinks="Thought:" in system)

    def _as_text(self, said: str, *, thinks: bool) -> str:
        action = {"name": "respond", "arguments": {"content": said}}
        if said.startswith("<tool_call>"):
            action = json.loads(said.split("\n")[1])
        thought = "Thought: that comes next.\n" * thinks
        return f"{thought}Action: {json.dumps(action)}"


def words(prompt: str, asks: int = 0) -> str:
    """The next turn of an agent that asks first and knows the annotated calls."""
    opening = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    turn = prompt.count("<|im_start|>assistant\n") - 1 - asks
    if turn < 0:
        return QUESTION
    actions = openings()[opening].actions
    if turn >= len(actions):
        return GOODBYE
    call = {"name": actions[turn].name, "arguments": dict(actions[turn].kwargs)}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def customer(messages: list[dict[str, Any]]) -> str:
    """What a model that plays a customer of the desk answers: it plays its part, labels its answer
    where it must, and finds every draft right."""
    if "VERDICT" in messages[0]["content"]:
        return "It follows the part.\nVERDICT: RIGHT"
    heard = messages[-1]["content"]
    if messages[0]["role"] != "system":
        return "Yes, I am here."
    said = {QUESTION: "Yes, please.", GOODBYE: "###STOP###"}.get(heard)
    if said is None:
        part = messages[0]["content"]
        told = [words for words, task in openings().items() if task.instruction in part]
        # Whoever only asks whether somebody is there tells no part.
        (said,) = told or ["Yes."]
    return f"Thought: so be it.\nReply: {said}" if "Reply:" in messages[0]["content"] else said


def scores(ids: Sequence[int]) -> list[float]:
    """A log-prob for each id, exact in float32."""
    return [-((token + place) % 31 + 1) / 64 for place, token in enumerate(ids)]
