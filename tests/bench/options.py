"""Command-line options that the recall benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from muniment.actors.cross_encoder import BUNDLED
from muniment.cluster.settings import Runtime
from muniment.policies.routing import PROFILES


def names(*allowed: str) -> Callable[[str], list[str]]:
    """Reads names separated by commas, each one of ``allowed``."""

    def read(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in found if name not in allowed]
        if unknown or not found:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(allowed)}")
        return list(dict.fromkeys(found))

    return read


def numbers(text: str) -> list[int]:
    """Reads whole numbers separated by commas."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers, separated by commas") from None


def add_common(parser: argparse.ArgumentParser, profiles: list[str]) -> None:
    """``--profile``, ``--reranker``, ``--runtime``, ``--out``, ``--plots``."""
    parser.add_argument("--profile", type=names(*PROFILES), default=profiles, help=", ".join(PROFILES))
    parser.add_argument("--reranker", default=BUNDLED, help="bundled, a path, a hub name, or none")
    runtimes = get_args(Runtime)
    parser.add_argument("--runtime", choices=runtimes, default="auto", help="of the models: torch is the reference")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write plots into this folder, as PNG")
