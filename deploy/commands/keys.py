"""Keys."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from muniment.deploy.commands.common import AsJson, DataDir, app, console, operator_client

keys = typer.Typer(help="Make, list and revoke keys.", no_args_is_help=True)
app.add_typer(keys, name="key")


@keys.command("create")
def key_create(
    company: Annotated[str, typer.Option("--company", help="Whose key it is; created if need be.")],
    roles: Annotated[str, typer.Option("--roles", help="Comma-separated: agent, owner, curator, auditor, admin.")],
    user: Annotated[str | None, typer.Option("--user", help="The user it is bound to.")] = None,
    groups: Annotated[str | None, typer.Option("--groups", help="Comma-separated groups of that user.")] = None,
    sources: Annotated[str | None, typer.Option("--sources", help="Comma-separated source kinds it may claim.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; it is shown this once."""
    with operator_client(data_dir, company) as client:
        client.create_company(company)
        made = client.create_key(_names(roles) or [], user=user, groups=_names(groups), sources=_names(sources))
    if as_json:
        print(json.dumps({name: made.get(name) for name in ("id", "key", "company", "roles", "user")}))
    else:
        console.print(f"{made['id']}  {made['key']}", highlight=False, soft_wrap=True, markup=False)


@keys.command("list")
def key_list(
    company: Annotated[str, typer.Option("--company", help="Whose keys.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the keys of a company, never the keys themselves."""
    found_keys: list[dict[str, Any]] = []
    with operator_client(data_dir, company) as client:
        page = client.keys(limit=200)
        found_keys += page["keys"]
        while page.get("next"):
            page = client.keys(limit=200, cursor=page["next"])
            found_keys += page["keys"]
    if as_json:
        print(json.dumps({"keys": found_keys}))
        return
    table = Table(Column("id", no_wrap=True), "roles", "user", "groups", "expires", box=None, pad_edge=False)
    for key in found_keys:
        parts = [key["id"], ", ".join(key["roles"]), key.get("user"), ", ".join(key.get("groups", ()))]
        table.add_row(*(str(part or "") for part in (*parts, key.get("expires_at"))))
    console.print(table)


@keys.command("revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(help="The id of the key, k_…")],
    company: Annotated[str, typer.Option("--company", help="Whose key it is.")],
    data_dir: DataDir = None,
) -> None:
    """End a key at once."""
    with operator_client(data_dir, company) as client:
        client.revoke_key(key_id)
    console.print(f"revoked {key_id}", highlight=False, markup=False)


def _names(text: str | None) -> list[str] | None:
    """The names of a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@keys.command("operator")
def key_operator() -> None:
    """Print a new operator's key, for auth.operator_key: it becomes the one operator's key at the next start."""
    from muniment.actors.store.keys import OPERATOR_ID, new_key

    print(new_key(OPERATOR_ID))
