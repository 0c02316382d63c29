"""Ray: settings, actor options, typed handles, start and stop, the Python client."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muniment.cluster.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    """The clients, imported when they are first asked for."""
    if name in __all__:
        return getattr(import_module("muniment.cluster.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
