"""Stand-ins for tests: an endpoint, a policy of few weights."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from turnwise.command import run_command
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.aime.benchmark import Aime

Json = dict[str, Any]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


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


def evaluate(folder: Path, *more: str, policy: Sequence[str] = ("--hf-checkpoint", "p")) -> int:
    """Runs the command; returns its exit code."""
    return run_command(
        partial(evaluate_benchmark, Aime()), [*policy, "--run-dir", str(folder), *more]
    )


def summary(folder: Path) -> Json:
    """summary.json."""
    data: Json = json.loads((folder / "summary.json").read_text())
    return data


def means(folder: Path) -> dict[str, float]:
    """The measures by name."""
    return {one["name"]: one["estimate"]["mean"] for one in summary(folder)["measures"]}


def rows(folder: Path, name: str = "trials.jsonl") -> list[Json]:
    """A file of JSON lines."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def at(url: str) -> list[str]:
    """The endpoint as the policy."""
    return ["--base-url", url, "--model", "m"]
