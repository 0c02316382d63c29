"""``muniment mcp`` as a host starts it: a process of its own, spoken to through its standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.live import Service


@pytest.mark.parametrize("way", ["address", "folder", "ray"])
def test_a_host_remembers_and_recalls(service: Service, way: str) -> None:
    key = service.key("mcp", "agent")
    flags, variables = {
        "address": ([], {"MUNIMENT_KEY": key, "MUNIMENT_ADDRESS": service.url, "MUNIMENT_USER": "ana"}),
        "folder": (["--key", key, "--data-dir", str(service.data_dir)], {}),
        "ray": (["--key", key, "--address", str(service.data_dir)], {}),
    }[way]
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "muniment.deploy.cli", "mcp", *flags], env={**os.environ, **variables}
    )
    strays: list[Exception] = []

    async def heard(message: Any) -> None:
        if isinstance(message, Exception):
            strays.append(message)

    async def scenario() -> None:
        async with Client(command, message_handler=heard) as host:
            fact = {"text": f"the {way} of the host is known", "source": {"kind": "agent_summary", "author": "bot"}}
            told = await host.call_tool("remember", {"facts": [fact]})
            assert not told.is_error, told
            found = await host.call_tool("recall", {"query": f"the {way} of the host"})
            texts = [result["fact"]["text"] for result in found.structured_content["results"]]
            assert fact["text"] in texts

    asyncio.run(scenario())
    assert strays == []  # what is no message
