"""The corpus: read once with every fault named, then kept on disk and read a document at a time.

A document is a JSON object with `id`, `content` and what else its row had; `title`, where it has
one, is searched with the content.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from turnwise.config import ConfigError
from turnwise.rows.files import Record, records
from turnwise.run.disk import reading

Document = dict[str, Any]
_TEXTS = "documents.jsonl"
_ENDS = "ends.npy"


def corpus_hash(path: Path) -> str:
    """SHA-256 of the file.

    Raises:
        ConfigError: it can't be read.
    """
    with reading(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_corpus(path: Path) -> Iterator[Document]:
    """
    Raises:
        ConfigError: naming file and line, the field, what was found and what to do.
    """
    seen: dict[str, str] = {}
    for record in records(path):
        document = _document(record)
        name = document["id"]
        if name in seen:
            raise ConfigError(f"{record.where}: id: {name!r} is the id of {seen[name]} too")
        seen[name] = record.where
        yield document


def _document(record: Record) -> Document:
    fields = dict(record.fields)
    name = identifier(fields.get("id"), record.where, "id")
    keys = [key for key in ("content", "text") if key in fields]
    if len(keys) != 1:
        found = " and ".join(keys) or f"the keys {', '.join(sorted(fields)) or 'none'}"
        raise ConfigError(f"{record.where}: a document has either content or text, found {found}")
    content = fields.pop(keys[0])
    if not isinstance(content, str) or not content.strip():
        raise ConfigError(
            f"{record.where}: {keys[0]}: must be a text that is not blank, found {content!r:.80}"
        )
    if not isinstance(fields.get("title", ""), str):
        raise ConfigError(f"{record.where}: title: must be a text, found {fields['title']!r:.80}")
    document = {**fields, "id": name, "content": content}
    try:
        msgspec.json.encode(document)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{record.where}: can't be written as JSON: {error}") from None
    return document


def identifier(value: Any, where: str, key: str) -> str:
    """A name as text; a whole number is one too.

    Raises:
        ConfigError: it is neither, or blank.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {key}: must be a text or a whole number, found {value!r:.80}")
    return value


def searched_text(document: Document) -> str:
    """What of a document is searched."""
    title = document.get("title", "")
    return f"{title}\n{document['content']}" if title else str(document["content"])


def write_documents(folder: Path, documents: Iterator[Document]) -> int:
    """Writes them for `Documents`; returns how many there are.

    Raises:
        ConfigError: what reading them raises.
        OSError: the folder can't be written to.
    """
    ends: list[int] = []
    with (folder / _TEXTS).open("wb") as stream:
        for document in documents:
            stream.write(msgspec.json.encode(document) + b"\n")
            ends.append(stream.tell())
    np.save(folder / _ENDS, np.array(ends, dtype=np.int64))
    return len(ends)


class Documents:
    """The documents of an index by their position, from a memory map."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError if the files are not there or broken."""
        self._ends = np.load(folder / _ENDS, mmap_mode="r", allow_pickle=False)
        with (folder / _TEXTS).open("rb") as stream:
            self._texts = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if self._ends.ndim != 1 or not len(self._ends) or self._ends[-1] != len(self._texts):
            raise ValueError(f"{_TEXTS} has another size than {_ENDS} says")

    def __len__(self) -> int:
        return len(self._ends)

    def as_json(self, position: int) -> msgspec.Raw:
        """The document as it is written."""
        start = int(self._ends[position - 1]) if position else 0
        return msgspec.Raw(self._texts[start : int(self._ends[position]) - 1])

    def __getitem__(self, position: int) -> Document:
        document: Document = msgspec.json.decode(self.as_json(position))
        return document

    def __iter__(self) -> Iterator[Document]:
        return (self[position] for position in range(len(self)))

    def close(self) -> None:
        """Gives the memory map back."""
        self._texts.close()


def read_allow_lists(path: Path, documents: Documents) -> dict[str, np.ndarray]:
    """Positions of the documents that each `eid` may see, ascending int64[n].

    Raises:
        ConfigError: naming file and line, what was found and what to do.
    """
    positions = {document["id"]: at for at, document in enumerate(documents)}
    allowed: dict[str, np.ndarray] = {}
    for record in records(path):
        eid = identifier(record.fields.get("eid"), record.where, "eid")
        if eid in allowed:
            raise ConfigError(f"{record.where}: eid: {eid!r} has a list already; merge the two")
        ids = record.fields.get("ids")
        if not isinstance(ids, list):
            raise ConfigError(f"{record.where}: ids: must be a list of ids, found {ids!r:.80}")
        found = set()
        for one in ids:
            name = identifier(one, record.where, "ids")
            if name not in positions:
                raise ConfigError(f"{record.where}: ids: {name!r} is no document of the corpus")
            found.add(positions[name])
        allowed[eid] = np.array(sorted(found), dtype=np.int64)
    return allowed
