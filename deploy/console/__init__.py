"""The review desk at ``/console``: pages for the people who own facts. Server-rendered; works without scripts."""

from muniment.deploy.console.router import console_router

__all__ = ["console_router"]
