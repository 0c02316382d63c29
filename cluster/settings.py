"""Settings: ``muniment.yaml``, then ``MUNIMENT_…`` variables (``__`` nests), then flags; the last wins.

Unknown keys are errors, and every error names its key. Units stand in the names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from muniment.policies.errors import ConfigurationError
from muniment.policies.routing import DEFAULT, RecallProfile, profiles_of

ENV_PREFIX = "MUNIMENT_"
#: The variable that names the settings file, and the file that is read when it is not set and the file exists.
FILE_VARIABLE = "MUNIMENT_CONFIG_FILE"
DEFAULT_FILE = "muniment.yaml"
#: The variables of whoever uses a service: where it is, the key, and who acts. They set nothing.
ADDRESS_VARIABLE, KEY_VARIABLE, USER_VARIABLE = "MUNIMENT_ADDRESS", "MUNIMENT_KEY", "MUNIMENT_USER"
_NO_SETTINGS = {FILE_VARIABLE, ADDRESS_VARIABLE, KEY_VARIABLE, USER_VARIABLE}
#: A variable, with its value, that Kubernetes gives every pod for each service beside it: ``muniment-…`` are some. By
#: the name alone ``…_PORT`` might be a setting misspelt.
_OF_A_SERVICE = re.compile(
    r"([A-Z\d]+_)*(SERVICE_HOST=\S+|SERVICE_PORT(_[A-Z\d]+)*=\d+"
    r"|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://\S+|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=\S+)"
)
#: How much of ``ray.resource`` a Ray actor takes. Nodes with one of it hold a thousand.
_A_LITTLE = 0.001
Database = Literal["memory", "effects", "control"]
Runtime = Literal["auto", "onnx", "torch"]


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()


def default_data_dir() -> Path:
    """Where data lies when nobody says: the user's data folder (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "muniment"


def default_cache_dir() -> Path:
    """Where exported models lie when nobody says: the user's cache folder (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "muniment" / "models"


class Group(BaseModel):
    """A nested group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HttpSettings(Group):
    """Where the HTTP API listens."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")


class StoreSettings(Group):
    """Where facts, effects and control data are kept."""

    url: SecretStr | None = Field(
        None, description="PostgreSQL address for everything; without one, SQLite files in data_dir."
    )
    password_file: str | None = Field(
        None, min_length=1, description="File that holds the password of url, so that url need not."
    )
    upgrade_at_start: bool = Field(
        False, description="Upgrade the tables of an older version at start; else muniment migrate does it."
    )


class RaySettings(Group):
    """The Ray cluster that the Ray actors run in."""

    address: str | None = Field(None, description="A running Ray cluster; without one, a local one is started.")
    namespace: str = Field("muniment", min_length=1, description="Namespace of the named Ray actors.")
    num_cpus: int = Field(4, ge=1, le=4096, description="Logical CPUs of a local Ray; bounds scheduling, not threads.")
    object_store_bytes: int = Field(
        256 * 1024**2, ge=80 * 1024**2, description="Shared memory of a local Ray's object store."
    )
    resource: str | None = Field(
        None, min_length=1, description="Custom Ray resource of the nodes of address that may run ours; none: all may."
    )

    def placement(self) -> dict[str, float]:
        """What each of our Ray actors asks for, so that it is on such a node: hardly any of ``resource``."""
        # A local Ray is one node, and has no such resource.
        return {} if self.resource is None or self.address is None else {self.resource: _A_LITTLE}


class MemorySettings(Group):
    """Memory shards and the two tiers of each company."""

    shards: int = Field(
        1, ge=1, le=256, description="Memory shards at the first start, then muniment scale; SQLite allows one."
    )
    l1_capacity: int = Field(500, ge=1, description="Facts a company keeps in L1, working memory.")
    l2_capacity: int = Field(5000, ge=1, description="Facts a company keeps in L2, the archive, essentials aside.")
    index: Literal["auto", "flat", "hnsw"] = Field(
        "auto", description="Vector index of a tier: exact, approximate, or by size."
    )
    loaded_bytes: int = Field(
        2 * 1024**3, ge=1024**2, description="About how much memory the companies that a shard has loaded may take."
    )
    preload: bool = Field(
        True, description="Load pinned companies, then the largest, in half of loaded_bytes after a start."
    )
    idle_seconds: float = Field(
        3600, ge=0, description="How long a company that nobody asks for stays loaded; 0: until memory is needed."
    )


class RecallSettings(Group):
    """How the candidates of a recall are found and weighed. The profile "paper" keeps its published numbers."""

    l1_k: int = Field(DEFAULT.l1_k, ge=1, le=10_000, description="Candidates that each index of L1 brings.")
    l2_k: int = Field(DEFAULT.l2_k, ge=1, le=10_000, description="Candidates that each index of L2 brings.")
    dense_weight: float = Field(DEFAULT.dense_weight, ge=0, le=10, description="Weight of the vectors' similarity.")
    lexical_weight: float = Field(
        DEFAULT.lexical_weight, ge=0, le=10, description="Weight of the words in common; with 0 they are not searched."
    )
    entity_weight: float = Field(
        DEFAULT.entity_weight, ge=0, le=10, description="Weight of the query's entities that a fact names."
    )
    importance_weight: float = Field(
        DEFAULT.importance_weight, ge=0, le=10, description="Weight of a fact's importance."
    )
    rerank_depth: int = Field(
        DEFAULT.rerank_depth, ge=1, le=200, description="How many of the best candidates the reranker reads."
    )
    cross_encoder_weight: float = Field(
        DEFAULT.cross_encoder_weight, ge=0, le=1, description="The reranker's part of a score; retrieval has the rest."
    )

    @model_validator(mode="after")
    def _has_evidence(self) -> Self:
        if not self.dense_weight + self.lexical_weight:
            raise ValueError("dense_weight and lexical_weight are both zero")
        return self

    def profiles(self) -> dict[str, RecallProfile]:
        """The recall profiles by name."""
        return profiles_of(RecallProfile(**self.model_dump(), lexical=self.lexical_weight > 0))


class EffectSettings(Group):
    """Dedupe ledgers."""

    ledgers: int = Field(
        1, ge=1, le=256, description="Dedupe ledgers at the first start, then muniment scale; SQLite allows one."
    )


class WorkerSettings(Group):
    """Model workers: the embedding model and the reranker."""

    count: int = Field(1, ge=1, le=1024, description="Model workers at the first start, then muniment scale.")
    max_count: int | None = Field(
        None, ge=1, le=1024, description="Grow the pool up to so many while work waits, and back to count; none: never."
    )
    device: str = Field("auto", description='"auto" (a GPU where there is one), "cpu", "cuda", "cuda:1".')
    gpus_per_worker: float = Field(0, ge=0, description="Ray GPUs each worker reserves; below 1, workers share one.")
    threads: int = Field(1, ge=1, le=1024, description="CPU threads of each worker.")
    model: str = Field("bundled", min_length=1, description='Embedding model: "bundled", a path, or a hub name.')
    runtime: Runtime = Field(
        "auto", description='"onnx" (int8, CPU), "torch" (half precision on a GPU), "auto": by device.'
    )
    cache_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=default_cache_dir,
        validate_default=True,
        description="Folder of the exported models. Default: muniment/models in the user's cache folder.",
    )
    reranker: str = Field("bundled", min_length=1, description='Reranker: "bundled", a path, a hub name, or "none".')

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.max_count is not None and self.max_count < self.count:
            raise ValueError("max_count is less than count")
        return self

    def exported(self) -> bool:
        """Whether the exported models run here: on a CPU, unless the settings say otherwise."""
        from muniment.actors.embedding import gpu_possible  # NumPy takes a while, and the command line waits

        on_cpu = self.device == "cpu" or (self.device == "auto" and not gpu_possible())
        return self.runtime == "onnx" or (self.runtime == "auto" and on_cpu)


class LimitSettings(Group):
    """What one request may hold, and how long it may have to wait for its turn."""

    body_bytes: int = Field(8 * 1024**2, ge=1024, description="Largest request body.")
    text_bytes: int = Field(32 * 1024, ge=1, description="Longest text of a fact or a query, in UTF-8.")
    arguments_bytes: int = Field(256 * 1024, ge=1, description="Largest arguments of one effect, as JSON.")
    batch_facts: int = Field(1000, ge=1, le=1000, description="Facts in one batch.")
    wait_seconds: float = Field(
        5, gt=0, le=300, description="How long a request may have to wait for its turn; of more, it is refused (429)."
    )


class AuthSettings(Group):
    """Who may call."""

    enabled: bool = Field(True, description="Ask for a key; off, whoever sends none is the operator.")
    operator_key: SecretStr | None = Field(
        None,
        description="The operator's key, from: muniment key operator. Without one, it is made and kept in data_dir.",
    )
    offline_seconds: float = Field(
        300, ge=0, le=86_400, description="How long a checked key opens recalls while the store is unreachable."
    )


class WebhookSettings(Group):
    """How owners are told outside what waits for them, at the address that their company's policy names."""

    secret: SecretStr | None = Field(None, description="Signs the requests; without one, none are sent.")
    hosts: tuple[str, ...] = Field((), description="Host names that may be told; none named: any.")
    timeout_seconds: float = Field(10, gt=0, le=60, description="How long a receiver may take to answer.")


class TelemetrySettings(Group):
    """Traces, logs and metrics, for whoever watches the whole."""

    endpoint: str | None = Field(
        None, description="OTLP over HTTP address that spans are sent to (…/v1/traces); without one, none are."
    )
    log_format: Literal["text", "json"] = Field("text", description="How log lines are written.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "WARNING", description="What is logged at least; INFO: also a line for each request."
    )
    metrics_key: SecretStr | None = Field(
        None, description="Opens GET /metrics, and nothing else, as a bearer key; the operator's key does so too."
    )


class Settings(BaseSettings):
    """All settings of one service. Frozen; see ``load``."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    data_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=default_data_dir,
        validate_default=True,
        description="Folder of everything this service keeps. Default: muniment in the user's data folder.",
    )
    http: HttpSettings = HttpSettings()
    store: StoreSettings = StoreSettings()
    ray: RaySettings = RaySettings()
    memory: MemorySettings = MemorySettings()
    recall: RecallSettings = RecallSettings()
    effects: EffectSettings = EffectSettings()
    workers: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    auth: AuthSettings = AuthSettings()
    webhooks: WebhookSettings = WebhookSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = settings_file()
        sources = (init_settings, env_settings)
        return (*sources, YamlConfigSettingsSource(settings_cls, file)) if file else sources

    def store_url(self, database: Database) -> str:
        """The SQLAlchemy address of one of the three databases: a file each, or PostgreSQL for all."""
        from muniment.actors.store.engine import sqlite_url  # SQLAlchemy takes a while, and the command line waits

        if self.store.url is not None:
            return self.store.url.get_secret_value()
        return sqlite_url(self.data_dir / f"{database}.db")


def settings_file() -> Path | None:
    """The YAML file in force: the one ``MUNIMENT_CONFIG_FILE`` names, else ``muniment.yaml`` here if there is one."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ConfigurationError(f"{FILE_VARIABLE}: there is no file {named}")
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def load(**flags: Any) -> Settings:
    """The effective settings; ``flags`` (nested dicts per group) win, those that are None say nothing.

    Raises ``ConfigurationError``, whose detail starts with the key that is wrong.
    """
    _refuse_unknown_variables()
    _refuse_what_is_no_mapping()
    try:
        return _with_password(Settings(**_said(flags)))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ConfigurationError("; ".join(problems)) from None
    except SettingsError as error:
        raise ConfigurationError(f"{error}") from None


def _refuse_what_is_no_mapping() -> None:
    """Raises ``ConfigurationError`` for a settings file that is not YAML with names and what they are set to."""
    path = settings_file()
    if path is None:
        return
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if content is not None and not (isinstance(content, dict) and all(isinstance(name, str) for name in content)):
        raise ConfigurationError(f"{path}: must have names of groups, each with its settings")


def _with_password(settings: Settings) -> Settings:
    """The settings with the password in the store's address: other nodes get it from here, and may lack the file."""
    url, file = settings.store.url, settings.store.password_file
    if file is None:
        return settings
    if url is None:
        raise ConfigurationError("store.password_file: there is no store.url that it could be the password of")
    import sqlalchemy as sa  # takes a while, and the command line waits

    try:
        password = Path(file).expanduser().read_text().strip()
        address = sa.make_url(url.get_secret_value())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"store.password_file: {file} cannot be read: {reason}") from None
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigurationError("store.url is not an address") from None
    if not password:
        raise ConfigurationError(f"store.password_file: {file} is empty")
    whole = SecretStr(address.set(password=password).render_as_string(hide_password=False))
    return settings.model_copy(update={"store": settings.store.model_copy(update={"url": whole})})


def _said(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags without those that say nothing."""
    cleaned = {key: _said(value) if isinstance(value, dict) else value for key, value in flags.items()}
    return {key: value for key, value in cleaned.items() if value is not None and value != {}}


def _refuse_unknown_variables() -> None:
    known = set(Settings.model_fields)
    for name, value in os.environ.items():
        if name.startswith(ENV_PREFIX) and name not in _NO_SETTINGS:
            group = name.removeprefix(ENV_PREFIX).lower().split("__")[0]
            if group not in known and not _OF_A_SERVICE.fullmatch(f"{name.removeprefix(ENV_PREFIX)}={value}"):
                raise ConfigurationError(f"{name}: there is no such setting; groups are {', '.join(sorted(known))}")


def effective(settings: Settings) -> dict[str, Any]:
    """The settings as plain JSON values, secrets masked."""
    return settings.model_dump(mode="json")


def document() -> Iterator[dict[str, str]]:
    """Every setting, from the models: ``key``, ``variable``, ``type``, ``default``, ``description``."""
    yield from _document(Settings, ())


def _document(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Group):
            yield from _document(kind, here)
            continue
        yield {
            "key": ".".join(here),
            "variable": ENV_PREFIX + "__".join(here).upper(),
            "type": kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", ""),
            "default": "" if field.default_factory else str(field.default),
            "description": field.description or "",
        }
