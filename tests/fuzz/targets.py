"""What is given a broken input: each target breaks one thing, and runs what would meet it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from turnwise.engine.torch_engine import TorchEngine
from turnwise.evaluation.command import evaluate_method
from turnwise.launch.__main__ import control
from turnwise.launch.record import LaunchRecord, write_record
from turnwise.local.command import LocalRun, train_method
from turnwise.local.policy import load_policy
from turnwise.method import find_method, make_method
from turnwise.report import write_report
from turnwise.rows.reader import read_rows
from turnwise.run.control import ask, make_request

from tests.fuzz.mutations import WORDS, copy_tree, empty, mutate_file, mutate_json

APPS = Path(__file__).parents[2] / "apps"
METHOD = "examples.order_desk:OrderDesk"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
Case = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Whole inputs.

    Attributes:
        policy: A folder that loads.
        run: A run folder of one training step, done.
        evaluation: The folder of an evaluation, done.
        rows: A data file.
        work: Where copies are broken.
    """

    policy: Path
    run: Path
    evaluation: Path
    rows: Path
    work: Path


def make_seeds(folder: Path) -> Seeds:
    """Writes the whole inputs."""
    policy = folder / "policy"
    _tokenizer().save_pretrained(policy)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=4096,
    )  # fmt: skip
    model: Any = Qwen3ForCausalLM(config)
    model.save_pretrained(policy)
    run = folder / "run"
    argv = ["--hf-checkpoint", str(policy), "--run-dir", str(run), *SMALL]
    assert LocalRun(find_method(METHOD), argv).run() == 0
    write_record(run, LaunchRecord(address="http://127.0.0.1:1", job="job", host="elsewhere"))
    ask(run, make_request("set", {"lr": "1e-5"}))
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    evaluation = folder / "evaluation"
    argv = ["--hf-checkpoint", str(policy), "--prompt-data", str(rows), "--label-key", "label"]
    argv += ["--trials", "2", "--max-response-len", "2", "--threads", "1"]
    assert evaluate_method(METHOD, [*argv, "--run-dir", str(evaluation)]) == 0
    work = folder / "work"
    work.mkdir()
    return Seeds(policy, run, evaluation, rows, work)


ROWS: tuple[dict[str, Any], ...] = (
    {"input": "#W1", "label": "no longer needed", "metadata": {"id": "a", "level": 1}},
    {"input": "#W2", "label": "ordered by mistake", "metadata": {"id": "b", "tags": ["x"]}},
)
SMALL = (
    "--num-rollout", "1", "--rollout-batch-size", "1", "--n-samples-per-prompt", "2",
    "--n-samples-per-eval-prompt", "1", "--rollout-max-response-len", "2", "--threads", "1",
    "--rollout-max-context-len", "4096", "--engine-rows", "4",
)  # fmt: skip


def _tokenizer() -> Any:
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


def policy_folder(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A checkpoint from elsewhere: loaded, its template audited, its forward pass compared."""
    folder = copy_tree(seeds.policy, seeds.work / "policy")
    names = [path for path in sorted(folder.iterdir()) if path.suffix != ".safetensors"]
    how = mutate_file(rng, rng.choice([*names, folder / "model.safetensors"]))

    def case() -> None:
        loaded = load_policy(str(folder))
        loaded.profile()
        TorchEngine(loaded.model, rows=2, context=64)

    return how, case


def checkpoint(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A checkpoint of the run, broken, half the time with a manifest that fits; resumed."""
    run = copy_tree(seeds.run, seeds.work / "run")
    folder = run / "checkpoints" / "step_1"
    how = mutate_file(rng, rng.choice(sorted(folder.iterdir())))
    manifest = folder / "manifest.json"
    if rng.random() < 0.5 and manifest.is_file() and "manifest" not in how:
        files_ = {
            path.name: {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in folder.iterdir()
            if path.is_file() and path != manifest
        }
        manifest.write_text(json.dumps({"step": 1, "files": files_}))
        how += ", signed"
    return how, _resume(run)


def run_folder(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A run folder, broken: its report is made, and the run resumed."""
    run = copy_tree(seeds.run, seeds.work / "run")
    names = ("config.json", "metrics.jsonl", "episodes.jsonl", "summary.json", "control.jsonl")
    how = mutate_file(rng, run / rng.choice(names))
    return how, (lambda: write_report(run)) if rng.random() < 0.6 else _resume(run)


def _resume(run: Path) -> Case:
    return lambda: LocalRun(find_method(METHOD), ["--resume", "--run-dir", str(run)]).run()


def evaluation(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """The folder of an evaluation, broken: gone on with, graded again, compared."""
    run = copy_tree(seeds.evaluation, seeds.work / "evaluation")
    how = mutate_file(rng, rng.choice(sorted(path for path in run.iterdir() if path.is_file())))
    argv = rng.choice(
        (
            ["--resume", "--run-dir", str(run)],
            ["--rescore", str(run), "--run-dir", str(empty(seeds.work / "again") / "run")],
            ["--compare", str(seeds.evaluation), str(run)],
        )
    )
    return f"{argv[0]} {how}", lambda: evaluate_method(METHOD, argv)


def data_file(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A data file, broken: its rows become tasks."""
    path = empty(seeds.work / "data") / "rows.jsonl"
    path.write_bytes(seeds.rows.read_bytes())
    how = mutate_file(rng, path)
    method = make_method(METHOD, {})
    return how, lambda: [method.task(row) for row in read_rows(path, label_key="label")]


def launch_record(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """The record of a launch, broken: asked after."""
    run = copy_tree(seeds.run, seeds.work / "run")
    how = mutate_file(rng, run / "launch.json")
    return how, lambda: control(["status", str(run)])


def options(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A command line of training: read and printed."""
    method = rng.choice(("tau", "agentflow", METHOD))
    cls = find_method(method)
    from turnwise.local.options import TrainOptions

    argv = ["--dry-run"]
    for _ in range(rng.randrange(1, 4)):
        fields = rng.choice((TrainOptions, cls.Options)).model_fields
        name = rng.choice(list(fields)).replace("_", "-")
        if rng.random() < 0.1:
            name += rng.choice((".x", "-x", ".0.y"))
        count = rng.choice((0, 1, 1, 1, 1, 2))
        argv += [f"--{name}", *(rng.choice(WORDS) for _ in range(count))]
    return repr(argv)[:300], lambda: train_method(method, argv)


def toml(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A file of options: read and printed."""
    path = empty(seeds.work / "toml") / "options.toml"
    method = rng.choice(("tau", "agentflow"))
    whole = {"num-rollout": 3, "lr": 1e-5, "seed": 3, method: {"on-rewrite": "keep"}}
    changed, how = mutate_json(rng, whole)
    path.write_text(_as_toml(changed), encoding="utf-8", errors="surrogatepass")
    if rng.random() < 0.3:
        how += " " + mutate_file(rng, path)
    return how, lambda: train_method(method, ["--dry-run", "--config", str(path)])


def cluster(rng: Random, seeds: Seeds) -> tuple[str, Case]:
    """A preset of a cluster's run with a value changed, or an option: planned, nothing started."""
    preset = rng.choice(sorted((APPS / "trainers").glob("*/presets/*.toml")))
    method = preset.parents[1].name
    path = empty(seeds.work / "toml") / "cluster.toml"
    lines = preset.read_text(encoding="utf-8").splitlines()
    argv = ["--backend", "slime", "--dry-run", "--config", str(path)]
    settings = [at for at, line in enumerate(lines) if " = " in line and line[0] != "#"]
    at = rng.choice(settings)
    key = lines[at].partition(" = ")[0].strip()
    word = rng.choice(WORDS)
    if rng.random() < 0.5:
        lines[at] = f"{key} = {rng.choice((json.dumps(word), word, '[]', '{}', '-1', '0'))}"
    else:
        argv += [f"--{rng.choice(('', f'{method}.', 'ray.', 'model.'))}{key}", word]
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    return f"{preset.name}: {lines[at]!r:.120} {argv[5:]}", lambda: train_method(method, argv)


def _as_toml(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    settings = [(key, inner) for key, inner in value.items() if not isinstance(inner, dict)]
    tables = [(key, inner) for key, inner in value.items() if isinstance(inner, dict)]
    text = "".join(f"{key} = {json.dumps(inner)}\n" for key, inner in settings)
    return text + "".join(f"[{key}]\n{_as_toml(inner)}" for key, inner in tables)


TARGETS = {
    found.__name__: found
    for found in (
        *(policy_folder, checkpoint, run_folder, evaluation, data_file),
        *(launch_record, options, toml, cluster),
    )
}
