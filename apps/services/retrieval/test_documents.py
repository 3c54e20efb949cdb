"""What a corpus and the lists of an eid may hold, and what an error names."""

import json
from pathlib import Path
from typing import Any

import pytest
from turnwise.config import ConfigError

from apps.services.retrieval.documents import (
    Documents,
    read_allow_lists,
    read_corpus,
    write_documents,
)
from apps.services.retrieval.fakes import DOCUMENTS, write_rows


def written(folder: Path, rows: Any) -> Documents:
    path = write_rows(folder / "corpus.jsonl", rows)
    write_documents(folder, read_corpus(path))
    return Documents(folder)


def test_documents_come_back_as_they_were_with_every_field(tmp_path: Path) -> None:
    rows = [*DOCUMENTS, {"id": 7, "text": "Ünïcode \u2028 in\nlines", "more": {"deep": [1]}}]
    documents = written(tmp_path, rows)
    assert list(documents)[:5] == list(DOCUMENTS)
    last = {"id": "7", "content": "Ünïcode \u2028 in\nlines", "more": {"deep": [1]}}
    assert documents[5] == last == json.loads(bytes(documents.as_json(5)))
    assert len(documents) == 6


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"content": "x"}, "id: must be a text or a whole number, found None"),
        ({"id": True, "content": "x"}, "id: must be a text"),
        ({"id": " ", "content": "x"}, "id: must be a text"),
        ({"id": 1.5, "content": "x"}, "found 1.5"),
        ({"id": "a", "body": "x"}, "either content or text, found the keys body, id"),
        ({"id": "a", "content": "x", "text": "x"}, "found content and text"),
        ({"id": "a", "content": ""}, "content: must be a text that is not blank"),
        ({"id": "a", "text": ["x"]}, "text: must be a text"),
        ({"id": "a", "content": "x", "title": 3}, "title: must be a text, found 3"),
        ({"id": "a", "content": "half \ud800"}, "can't be written as JSON"),
        ({"id": "first", "content": "x"}, "'first' is the id of"),
    ],
)
def test_a_wrong_document_is_refused_by_file_line_and_field(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    path = write_rows(tmp_path / "c.jsonl", [{"id": "first", "content": "y"}, row])
    with pytest.raises(ConfigError) as error:
        list(read_corpus(path))
    assert f"{path}:2: " in str(error.value) and said in str(error.value)


def test_lists_hold_positions_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    documents = written(tmp_path, DOCUMENTS)
    path = write_rows(tmp_path / "allow.jsonl", [{"eid": "../x", "ids": ["d", "a", "d"]}])
    assert {eid: at.tolist() for eid, at in read_allow_lists(path, documents).items()} == {
        "../x": [0, 3]
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"ids": []}, "eid: must be"),
        ({"eid": "first", "ids": []}, "has a list already"),
        ({"eid": "q", "ids": "abc"}, "ids: must be a list of ids, found 'abc'"),
        ({"eid": "q", "ids": ["zz"]}, "'zz' is no document of the corpus"),
    ],
)
def test_a_wrong_list_is_refused_by_file_and_line(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    documents = written(tmp_path, DOCUMENTS)
    path = write_rows(tmp_path / "allow.jsonl", [{"eid": "first", "ids": ["a"]}, row])
    with pytest.raises(ConfigError) as error:
        read_allow_lists(path, documents)
    assert f"{path}:2: " in str(error.value) and said in str(error.value)
