"""The compiled core against its twin in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tokendelta import _core, _reference

IDS = st.lists(st.integers(0, 2**31 - 2), max_size=40)
ODD_ID = st.one_of(
    st.integers(-5, 2**33), st.floats(allow_nan=True), st.none(), st.text(max_size=1), st.booleans()
)
ODD_SCORE = st.one_of(
    st.floats(-5, 0), st.floats(allow_nan=True), st.integers(-3, 3), st.none(), st.text(max_size=1)
)


class TokenBuffers(RuleBasedStateMachine):
    """Both buffers through the same calls; views that were handed out must never change."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.twin = _core.Tokens(16), _reference.Tokens(16)
        self.views: list[tuple[np.ndarray, list[int]]] = []

    @rule(ids=IDS, as_array=st.booleans(), skip=st.integers(0, 2))
    def append_context(self, ids, as_array, skip) -> None:
        skip = min(skip, len(ids))
        found = self.core.append_context(np.array(ids, dtype=np.int32) if as_array else ids, skip)
        assert found == self.twin.append_context(ids, skip)

    @rule(
        pairs=st.lists(st.tuples(st.integers(0, 500), st.floats(-9, 0, width=32)), max_size=40),
        limit=st.sampled_from([0, 400, 600]),
    )
    def append_sampled(self, pairs, limit) -> None:
        ids, scores = [p[0] for p in pairs], [p[1] for p in pairs]
        found = self.core.append_sampled(ids, scores, limit)
        assert found == self.twin.append_sampled(ids, scores, limit)

    @rule(ids=st.lists(ODD_ID, max_size=6), data=st.data())
    def append_odd(self, ids, data) -> None:
        size = len(ids)
        scores = data.draw(st.lists(ODD_SCORE, min_size=size, max_size=size))
        found = self.core.append_sampled(ids, scores, 500)
        assert found == self.twin.append_sampled(ids, scores, 500)

    @precondition(lambda self: self.twin.size)
    @rule(data=st.data())
    def look(self, data) -> None:
        start = data.draw(st.integers(0, self.twin.size))
        stop = data.draw(st.integers(start, self.twin.size))
        view = self.core.view(start, stop)
        assert not view.flags.writeable
        self.views.append((view, self.twin.view(start, stop).tolist()))
        token = data.draw(st.integers(0, 500))
        assert self.core.find(token, start, stop) == self.twin.find(token, start, stop)
        index = data.draw(st.integers(0, self.twin.size - 1))
        assert self.core[index] == self.twin[index] and self.core[-1] == self.twin[-1]

    @rule(data=st.data(), keep=st.booleans())
    def cut(self, data, keep) -> None:
        size = data.draw(st.integers(0, self.twin.size))
        sampled = data.draw(st.integers(0, self.twin.sampled))
        if keep:
            self.core, self.twin = self.core.branch(size, sampled), self.twin.branch(size, sampled)
        else:
            self.core.truncate(size, sampled)
            self.twin.truncate(size, sampled)

    @rule(beyond=st.integers(1, 3))
    def refuse(self, beyond) -> None:
        for tokens in (self.core, self.twin):
            with pytest.raises(ValueError):
                tokens.truncate(tokens.size + beyond, 0)
            with pytest.raises(ValueError):
                tokens.branch(tokens.size, tokens.sampled + beyond)
            with pytest.raises(ValueError):
                tokens.find(1, 0, tokens.size + beyond)
            with pytest.raises(ValueError):
                tokens.append_context([1], 1 + beyond)
            with pytest.raises(IndexError):
                tokens[tokens.size + beyond]

    @invariant()
    def equal(self) -> None:
        assert self.core.size == self.twin.size == len(self.core)
        assert self.core.sampled == self.twin.sampled
        assert np.array_equal(self.core.view(0, self.core.size), self.twin.view(0, self.twin.size))
        assert np.array_equal(
            self.core.logprob_view(0, self.core.sampled),
            self.twin.logprob_view(0, self.twin.sampled),
        )
        for view, seen in self.views:
            assert view.tolist() == seen


TestTokenBuffers = TokenBuffers.TestCase
TestTokenBuffers.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)


@given(IDS, IDS, IDS)
def test_common_prefix(shared, left, right) -> None:
    a, b = np.array(shared + left, dtype=np.int32), np.array(shared + right, dtype=np.int32)
    assert _core.common_prefix(a, b) == _reference.common_prefix(a, b)


def outcome(call, *arrays):
    """What a call wrote, or that it was refused."""
    copies = [array.copy() if isinstance(array, np.ndarray) else array for array in arrays]
    try:
        call(*copies)
    except ValueError:
        return "refused"
    return [copy.tobytes() if isinstance(copy, np.ndarray) else copy for copy in copies]


@given(
    st.integers(0, 20),
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(-2, 22), st.integers(-2, 22), st.integers(-1, 12)), max_size=4),
)
def test_fill_streams(size, sampled, spans) -> None:
    arguments = (
        np.zeros(size, np.uint8),
        np.full(size, np.nan, np.float32),
        np.linspace(-2, 0, sampled, dtype=np.float32),
        np.array(spans, dtype=np.int64).reshape(-1),
    )
    core, twin = (outcome(m.fill_streams, *arguments) for m in (_core, _reference))
    # A call that is refused half way may have written the spans before.
    assert core == twin


LENGTHS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(
    st.lists(LENGTHS | st.integers(0, 9).map(lambda n: (n, n // 2, n // 2)), max_size=5), st.data()
)
def test_pack_streams(lengths, data) -> None:
    fitting = sum(size for size, _, _ in lengths)
    room = data.draw(st.sampled_from([fitting, fitting, fitting + 1, max(fitting - 1, 0)]))
    samples = [
        (np.arange(n, dtype=np.int32), np.ones(m, np.uint8), np.full(k, -0.5, np.float32))
        for n, m, k in lengths
    ]
    streams = [np.full(room, -1, kind) for kind in (np.int32, np.int32, np.int8, np.float32)]
    streams[2] = streams[2].view(np.uint8)
    core, twin = (
        outcome(lambda *arrays, m=module: m.pack_streams(*arrays, samples), *streams)
        for module in (_core, _reference)
    )
    assert core == twin
