import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokendelta import LengthError, Sample, pack, unpack
from tokendelta.balancing import first_fit_decreasing, karmarkar_karp


def sample(length, response):
    mask = (np.arange(response) % 3 > 0).astype(np.uint8)
    logprobs = np.where(mask == 1, -0.5, np.nan).astype(np.float32)
    ids = np.arange(length, dtype=np.int32)
    return Sample(ids, length - response, mask, logprobs, (), 1.0)


SAMPLES = st.lists(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), max_size=30
).map(lambda sizes: [sample(*size) for size in sizes])


@given(SAMPLES, st.integers(60, 200), st.integers(1, 6), st.sampled_from([None, 1, 40]))
def test_unpacking_gives_the_samples_back(samples, max_tokens, ranks, crossover) -> None:
    batches = pack(samples, max_tokens, ranks=ranks, crossover=crossover)
    found = unpack(batches)
    assert len(found) == len(samples)
    for given_sample, (ids, mask, logprobs) in zip(samples, found, strict=True):
        prompt = given_sample.prompt_length
        assert np.array_equal(ids, given_sample.ids)
        assert not mask[:prompt].any() and np.isnan(logprobs[:prompt]).all()
        assert np.array_equal(mask[prompt:], given_sample.loss_mask)
        assert np.array_equal(logprobs[prompt:], given_sample.logprobs, equal_nan=True)
    for batch in batches:
        size = len(batch.ids)
        assert 0 < size <= max_tokens and batch.cu_seqlens[-1] == size
        assert len(batch.cu_seqlens) == len(batch.sample_index) + 1
        starts = batch.cu_seqlens[:-1]
        assert (batch.position_ids[starts] == 0).all()
        assert len(batch.position_ids) == len(batch.loss_mask) == len(batch.logprobs) == size


@given(SAMPLES, st.integers(2, 5))
def test_every_rank_gets_as_many_batches_if_there_are_sequences_enough(samples, ranks) -> None:
    batches = pack(samples, 100, ranks=ranks)
    counts = [sum(batch.rank == rank for batch in batches) for rank in range(ranks)]
    if len(samples) >= ranks * 4:
        assert len(set(counts)) == 1
    assert [batch.rank for batch in batches] == sorted(batch.rank for batch in batches)


def test_long_sequences_are_balanced_by_their_quadratic_cost() -> None:
    samples = [sample(900, 10), *[sample(100, 10) for _ in range(9)]] * 2
    for crossover in (None, 100):
        batches = pack(samples, 900, ranks=2, crossover=crossover)
        costs = [0.0, 0.0]
        for batch in batches:
            lengths = np.diff(batch.cu_seqlens)
            costs[batch.rank] += float((lengths + lengths**2 / (crossover or 10**9)).sum())
        assert max(costs) / min(costs) < 1.05


@given(st.lists(st.integers(1, 50), max_size=60))
def test_bins_fit_and_no_two_could_be_one(sizes) -> None:
    bins = first_fit_decreasing(sizes, 50)
    assert sorted(i for members in bins for i in members) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in members) <= 50 for members in bins)
    # No two bins could be one.
    fill = sorted(sum(sizes[i] for i in members) for members in bins)
    assert len(fill) < 2 or fill[0] + fill[1] > 50


@given(st.lists(st.floats(1, 100), min_size=1, max_size=40), st.integers(1, 6))
def test_groups_hold_everything_once_and_as_many(costs, parts) -> None:
    groups = karmarkar_karp(costs, parts)
    assert sorted(i for group in groups for i in group) == list(range(len(costs)))
    if len(costs) % parts == 0:
        assert {len(group) for group in groups} == {len(costs) // parts}
    totals = [sum(costs[i] for i in group) for group in groups]
    assert max(totals) - min(totals) <= 2 * max(costs)


def test_the_heaviest_group_is_merged_with_the_lightest() -> None:
    costs = [float(cost) for cost in range(1, 17)]
    groups = karmarkar_karp(costs, 4)
    assert [sum(costs[i] for i in group) for group in groups] == [34.0] * 4


def test_a_sample_that_does_not_fit_is_named() -> None:
    with pytest.raises(LengthError, match="sample 1 has 30 tokens, more than max_tokens=20"):
        pack([sample(10, 5), sample(30, 5)], 20)
    with pytest.raises(ValueError, match="ranks"):
        pack([sample(10, 5)], 20, ranks=0)


def test_nothing_packs_to_nothing() -> None:
    assert pack([], 100) == [] and pack([], 100, ranks=4) == []
