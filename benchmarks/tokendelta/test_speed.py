"""Each method on one conversation. `measure.py` prints the table with the ratios."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from qwen_vocabulary import ranks_path

from benchmarks.tokendelta.methods import METHODS
from benchmarks.tokendelta.workload import workload

pytestmark = pytest.mark.skipif(ranks_path() is None, reason="dashscope is not installed")
ENCODE_SAMPLED_TEXT_AGAIN = ("get_token_delta, ours", "get_token_delta, slime's contract")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.benchmark(group="30 turns")
def test_every_method_gives_the_same_ids(benchmark: BenchmarkFixture, name: str) -> None:
    load = workload(30)
    if name == "renderers":
        pytest.importorskip("renderers")
    ids = benchmark.pedantic(METHODS[name](load), rounds=2, warmup_rounds=1)
    expected = METHODS["full render each turn"](load)()
    if name in ENCODE_SAMPLED_TEXT_AGAIN:
        # Their last answer has no generation prompt behind it.
        expected = expected[: len(ids)]
    assert ids == expected
