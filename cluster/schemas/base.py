"""What every request model shares: field types, limits, and validation that names each wrong field by JSON Pointer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from muniment.cluster.settings import LimitSettings
from muniment.policies.errors import InvalidInput
from muniment.policies.model import Scalar, nfc

DEFAULT_LIMITS = LimitSettings()
#: Characters of a name: subject, field, user, area, agent, tool, run, step, tag, entity, id.
MAX_NAME_CHARS = 512
#: Bytes of UTF-8 of a reason, a note, an address.
MAX_NOTE_BYTES = 4096
MAX_METADATA_BYTES = 16 * 1024
MAX_METADATA_DEPTH = 8
#: Nesting of any request, the body itself counted as one.
MAX_DEPTH = 64
MAX_LIST = 64
MAX_PAGE = 200
MAX_TOP_K = 200
#: Wrong fields named in one answer.
MAX_ERRORS = 50
#: Unknown fields that are still named one by one.
MAX_UNKNOWN_FIELDS = 20
_INTEGERS = range(-(2**63), 2**64)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_MAX_POINTER_CHARS = 300


def problem(message: str, *path: str | int, code: str = "invalid") -> PydanticCustomError:
    """An error at ``path`` below the value that is being validated."""
    return PydanticCustomError(code, "{message}", {"message": message, "path": path})


def limits_of(info: ValidationInfo) -> LimitSettings:
    """The limits in force: the context of the validation, else the defaults."""
    return info.context if isinstance(info.context, LimitSettings) else DEFAULT_LIMITS


def text_fault(text: str) -> str | None:
    """What is wrong with a text that no store and no tokenizer could take, or None."""
    if "\x00" in text:
        return "must not contain NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not contain a lone surrogate"
    return None


def _clean(text: str) -> str:
    fault = text_fault(text)
    if fault is not None:
        raise problem(fault)
    return nfc(text)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise problem("must not be empty")
    return text


def _text_limit(text: str, info: ValidationInfo) -> str:
    return _within(text, limits_of(info).text_bytes)


def _note_limit(text: str) -> str:
    return _within(text, MAX_NOTE_BYTES)


def _within(text: str, limit: int) -> str:
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise problem(f"is {size} bytes of UTF-8, the limit is {limit}", code="too_long")
    return text


def _moment(value: Any) -> datetime:
    if isinstance(value, str):
        if not _RFC3339.fullmatch(value):
            raise problem("must be a time in RFC 3339, e.g. 2026-01-02T03:04:05Z")
        try:
            value = datetime.fromisoformat(value.upper())
        except ValueError:
            raise problem("is not a time that exists") from None
    if not isinstance(value, datetime):
        raise problem("must be a time in RFC 3339, e.g. 2026-01-02T03:04:05Z")
    if value.utcoffset() is None:
        raise problem("the time has no UTC offset")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise problem("the time is out of range") from None


def scalar_fault(value: Any) -> str | None:
    """What is wrong with a JSON scalar, or None; null is no scalar here."""
    if isinstance(value, str):
        return text_fault(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INTEGERS:
        return "must be an integer of 64 bits"
    return None if isinstance(value, (str, int, float)) else "must be a string, a number or a boolean"


def _scalar(value: Any, info: ValidationInfo) -> Scalar:
    fault = scalar_fault(value)
    if fault is not None:
        raise problem(fault)
    return _within(nfc(value), limits_of(info).text_bytes) if isinstance(value, str) else value


def check_json(value: Any, max_depth: int, path: tuple[str | int, ...] = ()) -> None:
    """Raises an error that names the place where ``value`` is not JSON that can be stored, or is nested too deeply."""
    if isinstance(value, (dict, list, tuple)):
        if len(path) >= max_depth:
            raise problem(f"is nested deeper than {max_depth}", *path)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                fault = text_fault(key) if isinstance(key, str) else "every name must be a string"
                if fault is not None:
                    raise problem(f"a name {fault}" if isinstance(key, str) else fault, *path)
            check_json(item, max_depth, (*path, key))
    elif value is not None:
        fault = scalar_fault(value)
        if fault is not None:
            raise problem(fault, *path)


def json_bytes(value: Any) -> int:
    """The size of ``value`` as compact JSON in UTF-8."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def json_object(value: Any, max_depth: int, max_bytes: int) -> dict[str, Any]:
    """``value`` if it is an object of plain JSON within the limits."""
    if not isinstance(value, dict):
        raise problem("must be an object")
    check_json(value, max_depth)
    size = json_bytes(value)
    if size > max_bytes:
        raise problem(f"is {size} bytes of JSON, the limit is {max_bytes}", code="too_long")
    return value


def _metadata(value: Any) -> dict[str, Any]:
    return json_object(value, MAX_METADATA_DEPTH, MAX_METADATA_BYTES)


def _arguments(value: Any, info: ValidationInfo) -> dict[str, Any]:
    return json_object(value, MAX_DEPTH - 1, limits_of(info).arguments_bytes)


def _number(value: Any) -> Any:
    """A number from a query string; everything else as it is."""
    if isinstance(value, str):
        try:
            return int(value) if re.fullmatch(r"-?\d{1,20}", value, re.ASCII) else float(value)
        except ValueError:
            raise problem("must be a number") from None
    return value


@dataclass(frozen=True, slots=True)
class Listed:
    """The annotation of a bounded list, which is refused before its items are looked at where it is too long.

    ``setting``: the limit of that name in force, instead of ``most``.
    """

    most: int
    least: int = 0
    setting: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._bounded, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shown = {**handler(schema), "minItems": self.least, "maxItems": self.most}
        return {**shown, "x-limit": self.setting} if self.setting else shown

    def _bounded(self, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        most = getattr(limits_of(info), self.setting) if self.setting else self.most
        if len(value) < self.least:
            raise problem("must not be empty")
        if len(value) > most:
            raise problem(f"must have at most {most} items, has {len(value)}")
        return tuple(value)


_Str = Annotated[str, Field(strict=True)]
#: A short name, not blank, in NFC.
Name = Annotated[
    _Str, Field(min_length=1, max_length=MAX_NAME_CHARS), AfterValidator(_clean), AfterValidator(_not_blank)
]
#: A text to remember or to search for, not blank, in NFC. Its limit is a setting.
Text = Annotated[
    _Str,
    Field(min_length=1, json_schema_extra={"maxLength": DEFAULT_LIMITS.text_bytes, "x-limit": "text_bytes"}),
    AfterValidator(_clean),
    AfterValidator(_not_blank),
    AfterValidator(_text_limit),
]
#: A reason, a note, an address: not blank, in NFC.
Note = Annotated[
    _Str,
    Field(min_length=1, json_schema_extra={"maxLength": MAX_NOTE_BYTES}),
    AfterValidator(_clean),
    AfterValidator(_not_blank),
    AfterValidator(_note_limit),
]
#: A moment, aware and in UTC; RFC 3339 on the wire.
Moment = Annotated[datetime, BeforeValidator(_moment)]
#: Any JSON scalar but null.
Value = Annotated[
    Scalar,
    PlainValidator(_scalar),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}),
]
#: A number in [0, 1].
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PageLimit = Annotated[int, Field(strict=True, ge=1, le=MAX_PAGE)]
#: The same from a query string.
QueryShare = Annotated[Share, BeforeValidator(_number)]
QueryLimit = Annotated[PageLimit, BeforeValidator(_number)]
#: Opaque: what the last answer gave as ``next``.
Cursor = Annotated[_Str, Field(min_length=1, max_length=2048), AfterValidator(_clean)]
Flag = Annotated[bool, Field(strict=True)]
#: The version that a document is to replace, as its reading told it; 0 is what holds where nobody wrote any.
Version = Annotated[int, Field(strict=True, ge=0)]
Metadata = Annotated[
    dict[str, Any], BeforeValidator(_metadata), Field(json_schema_extra={"x-max-bytes": MAX_METADATA_BYTES})
]
Arguments = Annotated[
    dict[str, Any],
    BeforeValidator(_arguments),
    Field(json_schema_extra={"x-max-bytes": DEFAULT_LIMITS.arguments_bytes, "x-limit": "arguments_bytes"}),
]

Item = TypeVar("Item")
#: A bounded list, kept as a tuple.
Items = Annotated[tuple[Item, ...], Listed(MAX_LIST)]


class Request(BaseModel):
    """The base of all request models: frozen, unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > len(cls.model_fields) + MAX_UNKNOWN_FIELDS:
            raise problem(f"has {len(data)} fields, of which at most {len(cls.model_fields)} are known")
        return data


class Page(Request):
    """One page of a list, asked for in a query string: ``limit`` entries (1 to 200), after ``cursor``."""

    limit: QueryLimit = 50
    cursor: Cursor | None = None


class Write(Request):
    """A write that may be repeated: the same key and body within 24 h give the same answer, another body is 409."""

    idempotency_key: Name | None = None

    def without_key(self) -> Self:
        """The request itself, for comparing bodies."""
        return self.model_copy(update={"idempotency_key": None})


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], data: Any, limits: LimitSettings = DEFAULT_LIMITS) -> Model:
    """``data`` (plain dicts, or an instance already) as ``model``.

    Raises ``InvalidInput`` with at most ``MAX_ERRORS`` errors of ``{"pointer", "message"}``.
    """
    try:
        return model.model_validate(data, context=limits)
    except ValidationError as error:
        errors = _errors(error, data)
    first = errors[0]
    raise InvalidInput(f"{first['pointer'] or '/'}: {first['message']}", errors=errors)


def parse_query(model: type[Model], pairs: list[tuple[str, str]], limits: LimitSettings = DEFAULT_LIMITS) -> Model:
    """The pairs of a query string as ``model``: a list field may repeat, every other one may not."""
    data: dict[str, Any] = {}
    for name, value in pairs[: 10 * MAX_LIST]:
        field = model.model_fields.get(name)
        if field is not None and _is_list(field.annotation):
            data.setdefault(name, []).append(value)
        elif name in data:
            raise InvalidInput.at(pointer_of([name]), "is given more than once")
        else:
            data[name] = value
    return parse(model, data, limits)


def _is_list(annotation: Any) -> bool:
    return "tuple[" in str(annotation)


_MESSAGES: Mapping[str, str] = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "string_type": "must be a string",
    "string_unicode": "must not contain a lone surrogate",
    "float_type": "must be a number",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}


def _errors(error: ValidationError, data: Any) -> list[dict[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for entry in error.errors(include_url=False, include_input=False):
        context = entry.get("ctx", {})
        path = _path(entry["loc"], data, absent=entry["type"] == "missing") + list(context.get("path", ()))
        found[pointer_of(path), _message(entry["type"], entry["msg"], context)] = None
        if len(found) == MAX_ERRORS:
            break
    # A list whose item is wrong is also "too short" for pydantic; the item's own error says it all.
    told = [(p, m) for p, m in found if not any(other.startswith(f"{p}/") for other, _ in found)]
    return [{"pointer": pointer, "message": message} for pointer, message in told]


def _message(kind: str, text: str, context: Mapping[str, Any]) -> str:
    if "message" in context:
        return str(context["message"])
    if kind == "value_error":
        return text.removeprefix("Value error, ")
    if kind in ("too_short", "string_too_short"):
        return "must not be empty" if context["min_length"] == 1 else f"must have at least {context['min_length']}"
    if kind in ("too_long", "string_too_long"):
        return f"must have at most {context['max_length']} {'characters' if kind[0] == 's' else 'items'}"
    return _MESSAGES.get(kind, text.replace("Input should be", "must be").replace("True", "true"))


def _path(loc: tuple[int | str, ...], data: Any, absent: bool) -> list[int | str]:
    """``loc`` without the labels that pydantic adds for the branches of a union."""
    path: list[int | str] = []
    for place, step in enumerate(loc):
        if _holds(data, step):
            data = data[step]
        elif not (absent and place == len(loc) - 1):
            continue
        path.append(step)
    return path


def _holds(data: Any, step: int | str) -> bool:
    if isinstance(data, (list, tuple)):
        return isinstance(step, int) and step < len(data)
    return isinstance(data, Mapping) and step in data


def pointer_of(path: list[int | str]) -> str:
    """The JSON Pointer (RFC 6901) of a path, cut where somebody's field name is longer than a message should be."""
    pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
    pointer = pointer.encode("utf-8", "backslashreplace").decode()  # a field's name may hold a lone surrogate
    return pointer if len(pointer) <= _MAX_POINTER_CHARS else pointer[:_MAX_POINTER_CHARS] + "…"
