"""The command line, ``muniment``. Failures are one clear line and a non-zero status."""

from __future__ import annotations

import sys

import httpx
import sqlalchemy as sa

from muniment.actors.store.engine import told_by
from muniment.deploy.commands import cluster, keys, mcp, models, service, store  # noqa: F401  each adds its commands
from muniment.deploy.commands.common import app, complain
from muniment.policies.errors import MunimentError


def main() -> None:
    """Runs the command line."""
    try:
        app()
        return
    except MunimentError as error:
        cause = error.__cause__
        # More than a client of the service is told: this is who runs it.
        why = f" ({told_by(cause)})" if isinstance(cause, sa.exc.SQLAlchemyError) else ""
        complain((error.detail or error.code) + why)
    except httpx.HTTPError as error:
        complain(f"the service does not answer: {error or type(error).__name__}")
    except OSError as error:  # a folder that cannot be made, a full disk
        complain(f"{error.filename or 'system'}: {error.strerror or error}")
    sys.exit(1)


if __name__ == "__main__":
    main()
