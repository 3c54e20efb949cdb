"""TRL's `GRPOTrainer` on the prompts of `benchmarks.one_gpu.fixed`: seconds, memory.

    python -m benchmarks.one_gpu.peer --policy DIR --out peer.json

TRL samples with transformers' `generate`, all rollouts of a step at once, its way where vLLM is not
installed. Weights, states of AdamW and computing are in bfloat16 (ours keeps float32 masters beside
them, which is slower), without gradient checkpointing; loss, updates a step and settings of AdamW
are those of `benchmarks.local.against_trl`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from turnwise.local.policy import load_policy

from benchmarks.local.against_trl import UPDATES, grpo_config
from benchmarks.one_gpu.fixed import messages


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    given = _parse(argv)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import TrainerCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found]

    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    policy = load_policy(str(given.policy), device=given.device, dtype=dtype, require_tools=False)
    prompts = [messages(f"train/{place}", given.prompt_words) for place in range(given.prompts)]
    batch = given.prompts * given.samples
    rows = min(given.rows, batch // UPDATES)
    steps: list[dict[str, Any]] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **options: Any) -> None:
            self.begun = _now(given.device)

        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if state.global_step % UPDATES:
                return
            wall = _now(given.device) - self.begun
            cuda = given.device == "cuda"
            steps.append(
                {
                    "step_s": wall,
                    "rollout_s": trainer.rollout_s,
                    "sampled_tokens": trainer.sampled,
                    "tokens_per_s": trainer.sampled / trainer.rollout_s,
                    "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None,
                }
            )
            given.out.write_text(json.dumps(steps, indent=1))
            self.begun = _now(given.device)

    class Timed(GRPOTrainer):  # type: ignore[misc]
        rollout_s, sampled = 0.0, 0

        def _generate(self, *args: Any, **options: Any) -> Any:
            begun = _now(given.device)
            made = super()._generate(*args, **options)
            self.rollout_s = _now(given.device) - begun
            self.sampled = sum(len(ids) for ids in made[1])
            return made

    def reward(completions: Sequence[Any], **row: Any) -> list[float]:
        return [float(random.random() < 0.5) for _ in completions]

    with tempfile.TemporaryDirectory() as output:
        trainer = Timed(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            callbacks=[Watch()],
            args=grpo_config(
                output,
                device=given.device,
                steps=given.steps,
                batch=batch,
                rows=rows,
                samples=given.samples,
                lr=given.lr,
                bf16=given.device == "cuda",
                max_completion_length=given.tokens,
                top_k=0,
            ),
        )
        trainer.train()
    print(json.dumps(steps), flush=True)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path, required=True, help="folder with weights, tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the steps")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=3, help="training steps, the first warms up")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a step")
    parser.add_argument("--samples", type=int, default=8, help="rollouts of a prompt")
    parser.add_argument("--tokens", type=int, default=256, help="of a rollout")
    parser.add_argument("--rows", type=int, default=32, help="rollouts of a micro-batch")
    parser.add_argument("--prompt-words", type=int, default=200, help="words of a prompt")
    parser.add_argument("--lr", type=float, default=1e-6)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
