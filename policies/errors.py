"""Every error of this project: one root, a stable ``code``, ``retryable``, fields that survive pickle and the wire."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class MunimentError(Exception):
    """Root of all errors. ``fields`` holds plain JSON values only, so that an error can cross any boundary."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    _registry: ClassVar[dict[str, type[MunimentError]]] = {}

    def __init__(self, detail: str = "", **fields: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields

    def __init_subclass__(cls) -> None:
        known = MunimentError._registry.setdefault(cls.code, cls)
        if known is not cls and known.__qualname__ != cls.__qualname__:
            raise TypeError(f"error code {cls.code!r} of {cls.__name__} is taken by {known.__name__}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.detail, self.fields))

    def to_wire(self) -> dict[str, Any]:
        """The error as a plain dict for msgpack."""
        return {"code": self.code, "detail": self.detail, "fields": self.fields}

    @staticmethod
    def from_wire(data: dict[str, Any]) -> MunimentError:
        """The error that ``to_wire`` described; an unknown code becomes the root."""
        kind = MunimentError._registry.get(data["code"], MunimentError)
        return _rebuild(kind, data["detail"], data["fields"])


def _rebuild(kind: type[MunimentError], detail: str, fields: dict[str, Any]) -> MunimentError:
    return kind(detail, **fields)


class InvalidInput(MunimentError):
    """A field of a request is wrong. ``errors``: list of ``{"pointer": JSON Pointer, "message": str}``."""

    code = "invalid_field"

    @classmethod
    def at(cls, pointer: str, message: str) -> Self:
        """One wrong field, named by its JSON Pointer (RFC 6901)."""
        return cls(f"{pointer or '/'}: {message}", errors=[{"pointer": pointer, "message": message}])


class MissingKeyPath(InvalidInput):
    """A declared key path is absent or null in an effect's arguments: an error, never an empty value (seed 001)."""

    code = "missing_key_path"


class MalformedBody(MunimentError):
    """The body is not JSON: also invalid UTF-8 and nesting that is too deep."""

    code = "malformed_body"


class TooLarge(MunimentError):
    """The body is larger than the limit. ``limit_bytes``."""

    code = "too_large"


class Unauthenticated(MunimentError):
    """No key, or one that is unknown, revoked or expired."""

    code = "unauthenticated"


class Forbidden(MunimentError):
    """The actor may not do this."""

    code = "forbidden"


class NotFound(MunimentError):
    """There is no such thing for this actor; what another company has is not distinguished from what does not exist."""

    code = "not_found"


class StateConflict(MunimentError):
    """The request contradicts the state of what it names."""

    code = "state_conflict"


class IdempotencyMismatch(StateConflict):
    """The same idempotency key came with another body."""

    code = "idempotency_mismatch"


class AlreadyRuled(StateConflict):
    """The conflict has a ruling. ``resolution`` is the first one."""

    code = "already_ruled"


class StaleReservation(StateConflict):
    """The token no longer holds its key. ``state`` and, where another run took it, ``holder`` say what became of it."""

    code = "stale_reservation"


class IllegalTransition(StateConflict):
    """The event is not allowed in this state; nothing was changed."""

    code = "illegal_transition"


class Overloaded(MunimentError):
    """A bounded queue is full. ``retry_after_seconds``."""

    code = "overloaded"
    retryable = True


class Unavailable(MunimentError):
    """A needed part is down. ``retry_after_seconds``."""

    code = "unavailable"
    retryable = True


class StoreUnavailable(Unavailable):
    """The store cannot be reached or cannot commit; nothing was acknowledged."""

    code = "store_unavailable"


class DeadlineExceeded(Unavailable):
    """The answer did not come in time; a write may or may not have happened and is safe to repeat."""

    code = "deadline_exceeded"


class ModelUnavailable(Unavailable):
    """A model cannot be loaded or is not the one it should be."""

    code = "model_unavailable"


class Fenced(MunimentError):
    """This instance was replaced: a newer one holds the epoch, and nothing was written."""

    code = "fenced"
    retryable = True


class Moved(MunimentError):
    """What was asked about is another one's by now: nothing was done, and whoever has it is to be asked."""

    code = "moved"
    retryable = True


class ConfigurationError(MunimentError):
    """A setting is wrong or contradicts what is stored; ``detail`` says what to do."""

    code = "configuration"


class CorruptData(MunimentError):
    """Stored data does not decode or does not match its checksum."""

    code = "corrupt_data"
