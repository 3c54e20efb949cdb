"""Copy-on-write tables behave as the dict of deep copies that they stand for."""

import copy
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taubench.source import DomainFiles
from taubench.tables import CowTable, Snapshot, hashable, render

KEYS = "abcde"
RECORDS = st.fixed_dictionaries({"n": st.integers(0, 3), "list": st.lists(st.integers(0, 3))})


@given(
    base=st.dictionaries(st.sampled_from(KEYS), RECORDS),
    steps=st.lists(st.tuples(st.sampled_from(["get", "grow", "set"]), st.sampled_from(KEYS))),
)
def test_a_table_equals_a_dict_of_deep_copies(
    base: dict[str, Any], steps: list[tuple[str, str]]
) -> None:
    pristine = copy.deepcopy(base)
    table, model = CowTable(base), copy.deepcopy(base)
    for verb, key in steps:
        if verb == "set":
            table[key] = {"n": 9, "list": []}
            model[key] = {"n": 9, "list": []}
        elif key in model:
            assert table[key] == model[key]
            if verb == "grow":
                table[key]["list"].append(7)
                model[key]["list"].append(7)
        else:
            with pytest.raises(KeyError):
                table[key]
    assert base == pristine
    assert (len(table), list(table), dict(table)) == (len(model), list(model), model)
    assert list(table.items()) == list(model.items())
    assert list(table.values()) == list(model.values())
    assert [key in table for key in KEYS] == [key in model for key in KEYS]
    assert table.get("z") is None


def test_a_key_that_cannot_be_hashed_raises_as_a_dict_does() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        ["a"] in CowTable({"a": {}})  # type: ignore[comparison-overlap]  # noqa: B015


def test_text_tells_apart_what_python_calls_equal() -> None:
    texts = {render({"n": value}) for value in (1, 1.0, True, "1", [1], -0.0, 0.0)}
    assert len(texts) == 7
    assert render({"b": 1, "a": [2]}) == render({"a": [2], "b": 1}) == "(('a', (2,)), ('b', 1))"


@given(
    changed=st.dictionaries(
        st.sampled_from([f"k{n:02}" for n in range(0, 60, 7)] + ["a", "k305", "z"]), RECORDS
    )
)
def test_the_state_hash_is_that_of_the_whole_text(changed: dict[str, Any]) -> None:
    tables = {
        name: {f"k{n:02}": {"n": n} for n in range(60)} for name in ("users", "orders", "products")
    }
    snapshot = Snapshot(DomainFiles({}, (), "", (), tables))
    state = snapshot.new_state()
    users = state["users"]
    assert isinstance(users, CowTable)
    for key, record in changed.items():
        users[key] = record
    whole = {**tables, "users": {**tables["users"], **changed}}
    expected = sha256(str(hashable(whole)).encode()).hexdigest()
    assert snapshot.state_hash(snapshot.changes(state)) == expected
