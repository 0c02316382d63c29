"""What was read of an SQLite file, for as long as nobody has changed the file since.

SQLite says by ``PRAGMA data_version`` whether any other connection, of this or of another process, has committed since
it was last asked; that is a look into shared memory, and takes a fiftieth of reading a row through SQLAlchemy (10
against 520 microseconds). So an answer out of memory is the answer that the file would give now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import sqlalchemy as sa

from muniment.actors.store.engine import driver_errors

T = TypeVar("T")
_KEPT = 10_000


class Unchanged:
    """Answers of one SQLite file by what was asked. A question that another store is asked is asked each time.

    Safe for concurrent use. Its own connection only looks: what it commits itself it would not be told of.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._local = engine.dialect.name == "sqlite"
        self._lock = threading.Lock()
        self._connection: Any = None
        self._version: int | None = None
        self._answers: dict[Hashable, Any] = {}

    def get(self, question: Hashable, read: Callable[[], T]) -> T:
        """What ``read`` answers, or has answered to this question. Raises what it raises, and ``SQLAlchemyError``."""
        if not self._local:
            return read()
        with self._lock:
            version = self._look()
            if version != self._version:
                self._answers.clear()
                self._version = version
            elif question in self._answers:
                answer: T = self._answers[question]
                return answer
        answer = read()
        with self._lock:
            if version == self._version:
                if len(self._answers) >= _KEPT:
                    self._answers.clear()
                self._answers[question] = answer
        return answer

    def _look(self) -> int:
        with driver_errors(self._engine.dialect):
            if self._connection is None:
                borrowed = self._engine.raw_connection()
                borrowed.detach()
                self._connection = borrowed.dbapi_connection
            found: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return found

    def close(self) -> None:
        """Closes the connection; the next question opens another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = self._version = None
