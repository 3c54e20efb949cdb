"""The measured pattern, small: the service finds what the libraries find alone."""

import pytest

from benchmarks.retrieval.measure import MeasureConfig, measure


def test_the_service_finds_what_the_libraries_find() -> None:
    config = MeasureConfig(documents=500, questions=100, clients=8)
    found = {one.name: one for one in measure(config)}
    assert found["service, bm25"].recall == pytest.approx(found["bm25s alone"].recall, abs=0.02)
    assert found["service, dense"].recall == found["FAISS flat alone"].recall
    assert all(one.qps > 0 and one.p99_s >= one.p50_s for one in found.values())
