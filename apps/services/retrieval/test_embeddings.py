"""Vectors of length 1, or one error that says where and why."""

import numpy as np
import pytest
from turnwise.config import ConfigError
from turnwise.testing.servers import body, edit, status

from apps.services.retrieval.embeddings import (
    Embedder,
    EmbeddingError,
    EmbeddingRefused,
    unit_vectors,
)
from apps.services.retrieval.fakes import FakeEmbeddings, vector
from apps.services.retrieval.options import EmbeddingOptions


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    async with FakeEmbeddings(0) as endpoint:
        embedder = Embedder(endpoint.options(batch=2))
        texts = ["otter", "train", "otter river"]
        found = await embedder.embed(texts)
        await embedder.close()
    np.testing.assert_allclose(found, unit_vectors(np.array([vector(text) for text in texts])))
    assert found.dtype == np.float32 and embedder.requests == 2


async def test_a_busy_endpoint_is_asked_again() -> None:
    async with FakeEmbeddings(0) as endpoint:
        endpoint.misbehave = lambda call: status(429, Retry_After="0") if call.number < 2 else None
        embedder = Embedder(endpoint.options())
        assert (await embedder.embed(["otter"])).shape == (1, 5)
        await embedder.close()
        assert (embedder.requests, embedder.retries) == (3, 2)


async def test_a_refusal_is_not_asked_again_and_hides_the_key() -> None:
    async with FakeEmbeddings(0) as endpoint:
        endpoint.misbehave = lambda call: status(401, "no such key: long-secret")
        embedder = Embedder(endpoint.options(key_env="K"), environ={"K": "long-secret"})
        with pytest.raises(EmbeddingRefused, match=r"status 401: no such key: \[key\]"):
            await embedder.embed(["otter"])
        await embedder.close()
        assert len(endpoint.calls) == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (body(b"{}"), "no list of embeddings"),
        (body(b"<html>"), "no list of embeddings"),
        (edit(lambda answer: {"data": answer["data"][1:]}), "1 vectors for 2 texts"),
        (edit(lambda answer: answer["data"][0].update(index=0)), "wrong numbers"),
        (edit(lambda answer: answer["data"][0].update(embedding=[1.0])), "different dimensions"),
        (edit(lambda answer: answer["data"][0].update(embedding=[0.0] * 5)), "zero or not finite"),
        (edit(lambda answer: answer["data"][0].update(embedding=["x"] * 5)), "no list"),
        (
            edit(lambda answer: {"data": [{**one, "embedding": []} for one in answer["data"]]}),
            "empty",
        ),
    ],
)
async def test_an_answer_that_is_not_usable_is_an_error(bad: object, said: str) -> None:
    async with FakeEmbeddings(0) as endpoint:
        endpoint.misbehave = lambda call: bad
        embedder = Embedder(endpoint.options())
        with pytest.raises(EmbeddingError, match=said):
            await embedder.embed(["otter", "train"])
        await embedder.close()


def test_large_and_small_vectors_have_length_one() -> None:
    found = unit_vectors(np.array([[3e200, 4e200], [3e-200, 4e-200]]))
    np.testing.assert_allclose(found, [[0.6, 0.8]] * 2, rtol=1e-6)


@pytest.mark.parametrize("value", ["", "sch\u00fcssel", "two\nlines"])
def test_a_key_that_cannot_be_sent_is_refused_by_its_variable(value: str) -> None:
    options = EmbeddingOptions(model="m", base_url="http://h/v1", key_env="K")
    with pytest.raises(ConfigError, match=r"--embeddings.key-env: .*\bK\b"):
        Embedder(options, environ={"K": value})
