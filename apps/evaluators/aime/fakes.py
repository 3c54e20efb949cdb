"""Stand-ins for tests: a method that knows the answers, an endpoint, a policy of few weights."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from apps.evaluators.aime.attempts import AttemptRow, open_journal, write_problems
from apps.evaluators.aime.run import evaluate_here
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from turnwise.command import run_command
from turnwise.config import ConfigError
from turnwise.episode import Boundary, BoundaryError, Ending, Episode, Limit
from turnwise.method import Job, Method
from turnwise.run.folder import RunFolder

from apps.evaluators.aime.problems import Problem

Json = dict[str, Any]
METHOD = f"{__name__}:make_method"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class KnowingMethod(Method):
    """Samples one turn, then answers right where the attempt's number and the problem's are even
    together, and wrong otherwise.

    Options, all by rollout id: `lose`, `stop`, `crash`, `interrupt`; `temperature` and `max_tokens`
    sample otherwise than asked; `needs` names an option that has to be there.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        if "needs" in options and options["needs"] not in options:
            raise ConfigError(f"method: {options['needs']} is missing")
        self.options = options
        self.played: list[str] = []
        self.closed = False

    async def run(self, job: Job) -> Episode:
        name = job.rollout_id
        if name in self.options.get("interrupt", ()):
            raise KeyboardInterrupt
        if name in self.options.get("crash", ()):
            raise ValueError("a bug of the method")
        self.played.append(name)
        sampling = job.policy.sampling
        params = replace(
            sampling,
            temperature=self.options.get("temperature", sampling.temperature),
            max_new_tokens=self.options.get("max_tokens", 8),
            seed=job.seed,
        )
        prompt = torch.arange(3, 3 + 10, dtype=torch.int32).numpy()
        await job.policy.engine.generate(prompt, params, session_id=name)
        await job.policy.engine.release(name)
        ending: Ending = Ending.finished()
        if name in self.options.get("lose", ()):
            ending = Ending.lost(BoundaryError(Boundary.SANDBOX, "no process"))
        if name in self.options.get("stop", ()):
            ending = Ending.stopped(Limit.TURNS)
        right = (int(name.rpartition("#")[2]) + int(job.metadata["index"])) % 2 == 0
        answer = job.label if right else "-1"
        words = "" if ending.limit else f"The answer is \\boxed{{{answer}}}."
        return Episode(
            rollout_id=name,
            group_id=job.group_id,
            task_id=name,
            segments=(),
            ending=ending,
            score=0.25 if ending.by_policy else None,
            transcript=[
                {"role": "user", "content": str(job.prompt)},
                {"role": "assistant", "content": words},
            ],
            metrics={"tool_calls": 2.0},
        )

    def metrics(self) -> Mapping[str, float]:
        return {"coder/requests": float(len(self.played))}

    async def close(self) -> None:
        self.closed = True


made: list[KnowingMethod] = []
"""Methods in the order in which they were made."""


def make_method(options: Mapping[str, Any]) -> Method:
    made.append(KnowingMethod(options))
    return made[-1]


def no_method(options: Mapping[str, Any]) -> object:
    return object()


Say = Callable[[Json], Json | int]


class Endpoint:
    """Answers chat completions and SGLang's `/generate` from a thread of its own with `say`, which
    gets the request."""

    def __init__(self, say: Say) -> None:
        self.say, self.url = say, ""
        self.asked: list[Json] = []
        self.keys: set[str | None] = set()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """SGLang's answer, with the text that `say` gives as bytes of `byte_tokenizer`."""
        body = await request.json()
        self.asked.append(body)
        reply = self.say(body)
        if isinstance(reply, int):
            return web.Response(status=reply)
        choice = reply["choices"][0]
        ids = [*byte_tokenizer().encode(choice["message"]["content"]), 2]
        meta = {
            "finish_reason": {"type": choice["finish_reason"]},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "output_token_logprobs": [[-0.5, token] for token in ids],
        }
        return web.json_response({"meta_info": meta})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization"))
        if body["messages"][0]["content"] == "Hello":
            if body["model"] != "m":
                return web.json_response({"error": "no such model"}, status=404)
            return web.json_response(said("Hello"))
        self.asked.append(body)
        reply = self.say(body)
        if isinstance(reply, int):
            text = "context_length_exceeded" if reply == 400 else ""
            return web.Response(status=reply, text=text)
        return web.json_response(reply)


def said(text: str | None, finish: str = "stop") -> Json:
    """An answer of 30 tokens to 100."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 30},
    }


@contextmanager
def serving(say: Say) -> Iterator[Endpoint]:
    """An endpoint on this machine while the block runs."""
    endpoint, loop, ready = Endpoint(say), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", endpoint.answer)
        app.router.add_post("/v1/generate", endpoint.generate)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def work() -> None:
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def byte_tokenizer() -> Any:
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


def write_policy(folder: Path) -> Path:
    """A random model of 4096 positions, with `byte_tokenizer`."""
    torch.manual_seed(0)
    sizes: Json = {
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
    }
    model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


LOST = Ending.lost(BoundaryError(Boundary.ENGINE, "gone"))


def write_run(folder: Path, scores: dict[str, list[float | None]], **config: Any) -> Path:
    """A folder as an evaluation leaves it; problems are named `<data>/<question>`."""
    k = max(len(row) for row in scores.values())
    settings = {"n_samples_per_eval_prompt": k, "temperature": 0.7, "top_p": 0.95, **config}
    run = RunFolder.create(folder, "eval-aime", settings)
    problems, places = [], dict[str, int]()
    for name in scores:
        data, _, question = name.partition("/")
        places[data] = places.get(data, 0) + 1
        problems.append(Problem(data, places[data], question, "1"))
    write_problems(run.path, problems)
    journal = open_journal(run.path)
    for problem, row in zip(problems, scores.values(), strict=True):
        for trial, score in enumerate(row):
            ending = LOST if score is None else Ending.finished()
            journal.append(
                AttemptRow(
                    task_id=problem.id,
                    trial=trial,
                    label="1",
                    output=f"\\boxed{{{score}}}",
                    prediction=f"{score}",
                    vote=f"{score}",
                    by="formula",
                    score=score,
                    kind=ending.kind,
                    boundary=ending.boundary,
                    error=ending.error,
                )
            )
    return folder


def evaluate(folder: Path, *more: str, policy: Sequence[str] = ("--hf-checkpoint", "p")) -> int:
    """Runs the command; returns its exit code."""
    return run_command(evaluate_here, [*policy, "--run-dir", str(folder), *more])


def knowing(folder: Path, *more: str, **options: object) -> int:
    """An evaluation of the method that knows the answers, two attempts a problem."""
    config = folder.with_suffix(".toml")
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items()))
    method = ["--method", METHOD, "--method-config", str(config)]
    return evaluate(folder, *method, "--n-samples-per-eval-prompt", "2", *more)


def results(folder: Path) -> Json:
    """results.json."""
    data: Json = json.loads((folder / "results.json").read_text())
    return data


def rows(folder: Path, name: str = "trials.jsonl") -> list[Json]:
    """A file of JSON lines."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def at(url: str) -> list[str]:
    """The endpoint as the policy."""
    return ["--base-url", url, "--model", "m"]
