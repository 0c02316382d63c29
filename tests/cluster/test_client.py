"""One client, two ways to the same service: HTTP, and inside its Ray cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.live import Service

#: What a program does with a client; prints what it got.
PROGRAM = """
import json, sys
from muniment.cluster import Client
from muniment.policies.errors import MunimentError

address, key = sys.argv[1:]
got = {}
with Client(address, key=key) as client:
    source = {"kind": "counterparty", "id": "mail:1", "author": "ana"}
    fact = {"text": "The gate code of the north depot is 4711.", "subject": "north depot", "field": "gate code",
            "value": "4711", "source": source}
    told = client.remember([fact], idempotency_key="once")
    got["same answer"] = client.remember([fact], idempotency_key="once") == told
    got["outcome"] = told["results"][0]["outcome"]
    got["warm"] = client.warm()["loaded"]
    got["recalled"] = [r["fact"]["value"] for r in client.recall("gate code of the north depot")["results"]]
    got["current"] = client.facts("north depot", "gate code")["current"]["value"]
    got["listed"] = [fact["id"] for fact in client.memories(limit=10)["memories"]] == [told["results"][0]["id"]]
    call = dict(area="a", agent="b", tool="mail.send", arguments={"to": "ana", "on": address[:4]})
    with client.effect(**call, run="r1", step="1"):
        got["done"] = True
    again = client.propose(**call, run_id="r2", step_id="1", wait_ms=0)
    got["again"] = [again["verdict"], again["origin"]["run_id"]]
    got["trail"] = [entry["verdict"] for entry in client.trail("r1")["entries"]]
    for wrong in (lambda: client.recall(""), lambda: client.keys(), lambda: client.confirm("no token")):
        try:
            wrong()
        except MunimentError as error:
            got.setdefault("errors", []).append([type(error).__name__, error.fields.get("errors")])
got["ray"] = "ray" in sys.modules
print(json.dumps(got))
"""


def run(address: Any, key: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(address), key], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def over_http(service: Service) -> dict[str, Any]:
    return run(service.url, prepared(service, "client-http"))


def prepared(service: Service, company: str) -> str:
    curator = service.key(company, "curator")
    with service.client(curator) as client:
        client.classify("mail.send", key_paths=["/to", "/on"], window={"seconds": 3600})
    return service.key(company, "agent")


def test_over_http_without_ray(over_http: dict[str, Any]) -> None:
    assert over_http["ray"] is False
    assert over_http["outcome"] == "stored"
    assert over_http["same answer"]
    assert over_http["warm"] is True
    assert over_http["recalled"][0] == over_http["current"] == "4711"
    assert over_http["listed"]
    assert over_http["again"] == ["duplicate", "r1"]
    assert over_http["trail"][0] == "allow"
    assert [name for name, _ in over_http["errors"]][:2] == ["InvalidInput", "Forbidden"]
    assert over_http["errors"][0][1][0]["pointer"] == "/query"


def test_inside_the_ray_cluster_the_answers_are_the_same(service: Service, over_http: dict[str, Any]) -> None:
    inside = run(service.data_dir, prepared(service, "client-ray"))
    assert inside.pop("ray") is True
    assert inside == {name: value for name, value in over_http.items() if name != "ray"}


def test_a_key_is_looked_at_in_every_request_inside_the_cluster_too(service: Service) -> None:
    code = (
        "import sys\nfrom muniment.cluster import Client\n"
        "with Client(sys.argv[1], key='mk_wrong') as client:\n"
        "    try:\n        client.recall('q')\n    except Exception as error:\n        print(type(error).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(service.data_dir)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split()[-1] == "Unauthenticated"
