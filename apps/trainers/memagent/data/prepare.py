"""Writes published question-answering data sets as the data files of a run.

    ./pants run apps/trainers/memagent/data:prepare -- --train hotpot_train_v1.1.json \
        --eval hotpot_dev_distractor_v1.json --documents 200 --local-dir data
    ... --tokens 28000 --tokenizer DIR                                 contexts of exactly so many
    ... --known-base-url http://HOST:30000/v1 --known-model NAME       without what a model knows

1. Items are read and checked (`sources`); copies of a question become one; a question whose copies
   have other answers is left out. Both are counted.
2. Training questions that an evaluation file has too are left out; questions, answers and documents
   that both have are counted in `overlap.json`.
3. Where a model is named, questions that it answers without the text are left out (`knowing`); what
   it said stands in `known-NAME.jsonl`, and a second run asks only what is missing.
4. Contexts are built (`building`): an item's own documents among others of its file, at places that
   its own seed draws. A context that is made already stays as it is.
5. With `--dev N` so many questions of the first training file become dev.jsonl, and are not trained
   on: what the presets evaluate with, so that no checkpoint is chosen on a test.
6. Each file becomes NAME.jsonl, one `{"prompt", "label", "metadata"}` a line. `dropped.jsonl` lists
   what was left out of them, and why.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator
from turnwise.arguments import parse_args
from turnwise.command import RunError, run_command
from turnwise.config import CommandConfig, ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.models.client import ChatClient
from turnwise.models.config import ChatConfig
from turnwise.rollout import derive_seed
from turnwise.rows.hub import locate

from apps.trainers.memagent.data.building import Builder, CountTokens
from apps.trainers.memagent.data.knowing import Said, ask_all, knows
from apps.trainers.memagent.data.sources import Item, read_items
from apps.trainers.memagent.method import load_profile

KINDS = (".json", ".jsonl", ".parquet")
Why = Literal["a copy", "other answers", "of an evaluation", "known"]


class PrepareConfig(CommandConfig):
    """Writes published question-answering data sets as the data files of a run."""

    train: tuple[str, ...] = ()
    """Sources of training questions: HotpotQA's .json, or MemAgent's .parquet or .jsonl; or
    OWNER/NAME:FILE on the Hugging Face hub."""
    eval: tuple[str, ...] = ()
    """Sources of evaluation questions; training questions that they have are left out."""
    local_dir: Path = Path("data")
    """Folder to write to; made if it does not exist."""
    documents: int | None = Field(default=None, ge=1)
    """Documents of each context; 200 where no length is given."""
    tokens: int | None = Field(default=None, ge=1)
    """Or tokens of each context, exactly; needs tokenizer."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that counts."""
    seed: int = Field(default=1, ge=0)
    """Fixes which other documents an item has, and where each stands."""
    dev: int = Field(default=0, ge=0)
    """Questions of the first training file that go to dev.jsonl instead, drawn by the seed: for
    evaluation in training."""
    limit: int | None = Field(default=None, ge=1)
    """Questions of each file to write at most."""
    known_base_url: str | None = None
    """Endpoint, up to /v1, whose model is asked without the text; what it knows is left out."""
    known_model: str | None = None
    """The model's name there."""
    known_key_env: str = ""
    """Environment variable with the endpoint's key."""
    known_samples: int = Field(default=2, ge=1)
    """Answers to each question; one that is right leaves it out."""
    known_concurrency: int = Field(default=64, ge=1)
    """Requests under way at most."""

    @model_validator(mode="after")
    def _goes_together(self) -> PrepareConfig:
        if self.documents is not None and self.tokens is not None:
            raise ValueError("documents, tokens: a context has one length; give one of them")
        if (self.tokens is None) != (self.tokenizer is None):
            raise ValueError("tokens, tokenizer: give both or neither")
        if (self.known_base_url is None) != (self.known_model is None):
            raise ValueError("known-base-url, known-model: give both or neither")
        if not self.train and not self.eval:
            raise ValueError("train, eval: name at least one file")
        if self.dev and not self.train:
            raise ValueError("dev: is taken from a training file; name one")
        return self


def key(text: str) -> str:
    """What makes two texts equal: words and signs in lower case, with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@dataclass(slots=True)
class Sorted:
    """The items of a file, each question once, and what is left out of them: the item and why."""

    items: list[Item]
    dropped: list[tuple[Item, Why]]


def without_copies(items: Iterable[Item]) -> Sorted:
    """Each question once; one whose copies have other answers is left out."""
    copies: dict[str, list[Item]] = {}
    for item in items:
        copies.setdefault(key(item.question), []).append(item)
    found = Sorted([], [])
    for first, *others in copies.values():
        answers = set(map(key, first.answers))
        alike = all(set(map(key, other.answers)) == answers for other in others)
        (found.items if alike else []).append(first)
        found.dropped += [(other, "a copy") for other in others]
        found.dropped += [] if alike else [(first, "other answers")]
    return found


def overlap(train: Sorted, evaluation: Sequence[Item]) -> dict[str, int]:
    """How many training questions, answers and documents an evaluation file has too; those that
    are left out count."""

    def parts(items: Sequence[Item]) -> Mapping[str, set[str]]:
        return {
            "questions": {key(item.question) for item in items},
            "answers": {key(answer) for item in items for answer in item.answers},
            "documents": {key(text) for item in items for text in item.documents},
        }

    one = parts([*train.items, *(item for item, _ in train.dropped)])
    other = parts(evaluation)
    return {name: len(one[name] & other[name]) for name in one}


def prepare(argv: Sequence[str]) -> None:
    """The command.

    Raises:
        ConfigError: a bad option or item, or a folder that can't be written to.
        RunError: the endpoint failed; what it said is kept.
    """
    config = parse_args(
        PrepareConfig, argv, prog="prepare", description=PrepareConfig.__doc__ or ""
    )
    train, evaluation = (
        [locate(source, KINDS) for source in sources] for sources in (config.train, config.eval)
    )
    names = [path.stem for path in (*train, *evaluation)] + ["dev"] * bool(config.dev)
    names += ["dropped"]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"train, eval: two files would be written to {twice}.jsonl; rename one")
    files = {path: without_copies(read_items(path)) for path in (*train, *evaluation)}
    evaluated = [item for path in evaluation for item in files[path].items]
    counted = None if config.tokenizer is None else _counter(config.tokenizer)
    folder = config.local_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in train:
            leave_out(files[path], {key(item.question) for item in evaluated}, "of an evaluation")
        report = {path.stem: overlap(files[path], evaluated) for path in train}
        for path, found in files.items():
            written = folder / f"{path.stem}.jsonl"
            if written.exists() and written.samefile(path):
                raise ConfigError(f"--local-dir: {path} is a source; name another folder")
            own = [*found.items, *(item for item, _ in found.dropped)]
            if config.known_base_url:
                leave_out(found, asyncio.run(_known(config, path, found.items)), "known")
            rest = found.items
            if config.dev and path == train[0]:
                dev, rest = _split(rest, config.dev, config.seed, path)
                write_rows(folder / "dev.jsonl", _rows(config, own, dev, counted))
                print(f"{folder / 'dev.jsonl'}: {len(dev)} questions of {path}")
            rest = rest[: config.limit]
            write_rows(written, _rows(config, own, rest, counted))
            counts = Counter(why for _, why in found.dropped)
            said = ", ".join(f"{counts[why]} {why}" for why in get_args(Why))
            print(f"{written}: {len(rest)} questions; left out: {said}")
        write_rows(folder / "dropped.jsonl", _dropped(files))
        text = json.dumps(report, indent=2)
        (folder / "overlap.json").write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--local-dir {folder}: {error.strerror or error}") from None


def _split(
    items: Sequence[Item], count: int, seed: int, path: Path
) -> tuple[list[Item], list[Item]]:
    """So many items that the seed draws, and the others, both in order."""
    if count >= len(items):
        raise ConfigError(f"--dev {count}: {path} has {len(items)} questions to take them from")
    drawn = set(random.Random(derive_seed(seed, "dev")).sample(range(len(items)), count))
    dev = [item for place, item in enumerate(items) if place in drawn]
    return dev, [item for place, item in enumerate(items) if place not in drawn]


def leave_out(found: Sorted, questions: Collection[str], why: Why) -> None:
    """Takes questions, by their `key`, out of the items."""
    found.dropped += [(item, why) for item in found.items if key(item.question) in questions]
    found.items[:] = [item for item in found.items if key(item.question) not in questions]


def _dropped(files: Mapping[Path, Sorted]) -> Iterator[Mapping[str, Any]]:
    for path, found in files.items():
        for item, why in found.dropped:
            yield {"file": path.name, "id": item.id, "question": item.question, "why": why}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a data file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _rows(
    config: PrepareConfig, items: Sequence[Item], kept: Sequence[Item], counted: CountTokens | None
) -> Iterator[Mapping[str, Any]]:
    pool = sorted({text for item in items for text in item.documents})
    builder = Builder(pool, seed=config.seed)
    for item in kept:
        metadata: dict[str, Any] = {"id": item.id}
        if item.context is not None:
            metadata["context"] = item.context
        else:
            if config.tokens is not None and counted is not None:
                built = builder.of_tokens(item, config.tokens, counted)
            else:
                built = builder.of_documents(item, config.documents or 200)
            metadata |= {
                "context": built.text,
                "num_docs": built.documents,
                "places": list(built.places),
            }
        yield {"prompt": item.question, "label": list(item.answers), "metadata": metadata}


async def _known(config: PrepareConfig, path: Path, items: Sequence[Item]) -> set[str]:
    """Questions that the model answers without the text."""
    assert config.known_base_url is not None and config.known_model is not None
    client = ChatClient(
        ChatConfig(
            base_url=config.known_base_url,
            model=config.known_model,
            key_env=config.known_key_env,
            max_tokens=512,
            concurrency=config.known_concurrency,
        ),
        boundary=Boundary.JUDGE,
    )
    said = Said(config.local_dir / f"known-{path.stem}.jsonl", config.known_model)
    try:
        await ask_all(client, items, said, samples=config.known_samples)
    except* BoundaryError as errors:
        raise RunError(
            f"{config.known_base_url}: {errors.exceptions[0]}; what was answered is in {said.path},"
            " and the same command goes on from there"
        ) from None
    finally:
        await client.close()
    return {key(item.question) for item in items if knows(said.of(item.question), item.answers)}


def _counter(folder: Path) -> CountTokens:
    encoder = load_profile(folder).encoder
    return lambda text: len(encoder.encode(text))


if __name__ == "__main__":
    sys.exit(run_command(prepare, sys.argv[1:]))
