"""The format of an archive: a stream of checked frames of packed records, from a header to a manifest.

A frame is the length of its content (4 bytes, big-endian), the content (``wire.pack``: versioned msgpack) and the first
8 bytes of the SHA-256 of all that the archive holds up to there. So a changed, missing, repeated or reordered frame, a
cut-off end and anything after the end are all found, each where it is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from muniment.actors.wire import pack, unpack
from muniment.policies.errors import CorruptData

MAGIC = b"muniment archive\n"
VERSION = 1
#: Rows of one frame, and about its largest size.
MAX_ROWS = 500
MAX_BYTES = 8 * 1024**2
_LENGTH_BYTES = 4
_CHECK_BYTES = 8
#: No frame is longer: a damaged length must not ask for all memory.
_LONGEST = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Header:
    """``revisions``: of the databases it is from. ``columns``: of each table, in the order of the rows' values."""

    created_at: int
    company: str | None
    revisions: dict[str, str]
    columns: dict[str, list[str]]
    model: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table."""

    table: str
    rows: list[list[Any]]


class Writer:
    """Writes an archive to a binary stream."""

    def __init__(self, stream: IO[bytes], header: Header) -> None:
        self._stream = stream
        self._digest = hashlib.sha256(MAGIC)
        self.counts: Counter[str] = Counter()
        stream.write(MAGIC)
        model = None if header.model is None else list(header.model)
        self._frame(
            {
                "kind": "header",
                "version": VERSION,
                "created_at": header.created_at,
                "company": header.company,
                "revisions": header.revisions,
                "columns": header.columns,
                "model": model,
            }
        )

    def add(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Adds rows of a table."""
        self._frame({"kind": "rows", "table": table, "rows": [list(row) for row in rows]})
        self.counts[table] += len(rows)

    def close(self) -> None:
        """Ends the archive with its manifest; without it the archive is cut off."""
        self._frame({"kind": "manifest", "counts": dict(self.counts)})
        self._stream.flush()

    def _frame(self, record: dict[str, Any]) -> None:
        content = pack(record)
        framed = len(content).to_bytes(_LENGTH_BYTES, "big") + content
        self._digest.update(framed)
        self._stream.write(framed + self._digest.digest()[:_CHECK_BYTES])


def read_header(stream: IO[bytes]) -> Header:
    """The header of an archive. Raises ``CorruptData`` for what is none, or of another version."""
    return _header(next(_frames(stream), {}))


def read_rows(stream: IO[bytes]) -> Iterator[Rows]:
    """The rows, checked as they come. Raises ``CorruptData``, at the latest at the end."""
    counts: Counter[str] = Counter()
    frames = _frames(stream)
    columns = _header(next(frames, {})).columns
    ended = False
    for frame in frames:
        if ended:
            raise CorruptData("the archive goes on after its end")
        if frame.get("kind") == "manifest":
            ended = True
            if frame.get("counts") != dict(counts):
                raise CorruptData("the archive holds other rows than its manifest says")
            continue
        yield _rows(frame, columns, counts)
    if not ended:
        raise CorruptData("the archive is cut off")


def _rows(frame: dict[str, Any], columns: dict[str, list[str]], counts: Counter[str]) -> Rows:
    found = Rows(frame.get("table", ""), frame.get("rows", []))
    if frame.get("kind") != "rows" or found.table not in columns:
        raise CorruptData("the archive holds something that this program does not know")
    if any(len(row) != len(columns[found.table]) for row in found.rows):
        raise CorruptData(f"a row of {found.table} in the archive has not the values that its columns say")
    counts[found.table] += len(found.rows)
    return found


def _header(frame: dict[str, Any]) -> Header:
    if frame.get("kind") != "header":
        raise CorruptData("the archive has no header")
    if frame["version"] != VERSION:
        raise CorruptData(f"the archive has version {frame['version']}, this program reads {VERSION}")
    model = frame["model"]
    return Header(
        created_at=frame["created_at"],
        company=frame["company"],
        revisions=frame["revisions"],
        columns=frame["columns"],
        model=None if model is None else (model[0], model[1]),
    )


def _frames(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    if stream.read(len(MAGIC)) != MAGIC:
        raise CorruptData("this is no archive")
    digest = hashlib.sha256(MAGIC)
    number = 0
    while length := stream.read(_LENGTH_BYTES):
        size = int.from_bytes(length, "big")
        if len(length) < _LENGTH_BYTES or size > _LONGEST:
            raise CorruptData(f"the archive is damaged at frame {number}")
        content, check = stream.read(size), stream.read(_CHECK_BYTES)
        digest.update(length + content)
        if len(content) < size or check != digest.digest()[:_CHECK_BYTES]:
            raise CorruptData(f"the archive is damaged at frame {number}")
        frame = unpack(content)
        if not isinstance(frame, dict):
            raise CorruptData(f"frame {number} of the archive is no record")
        yield frame
        number += 1
