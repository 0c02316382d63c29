"""The store: its tables, archives of it, and whether it holds together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from muniment.cluster import launcher
from muniment.cluster.settings import load
from muniment.deploy.commands.common import AsJson, DataDir, OneCompany, app, console, counted


@app.command()
def migrate(data_dir: DataDir = None) -> None:
    """Bring the tables of an older version to this one. Stop the service and back its store up first."""
    from muniment.cluster.services import prepare_stores

    settings = load(data_dir=data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    prepare_stores(settings, upgrade=True)
    console.print("the tables are those of this version", highlight=False)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="The archive to write.")],
    company: OneCompany = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write what there is of a company, or of all, into an archive; the service may run meanwhile."""
    from muniment.cluster.archives import export_to

    with counted("exporting") as progress:
        counts = export_to(load(data_dir=data_dir), file, company, progress)
    if as_json:
        _print_counts(file, counts)
    else:
        said = f"{counts['companies']} companies, {counts.total()} rows: {file}"
        console.print(said, highlight=False, soft_wrap=True, markup=False)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An archive.")], data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Bring in the companies of an archive. What broke off is finished by repeating."""
    from muniment.cluster.archives import import_from

    settings = load(data_dir=data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with counted("importing") as progress:
        counts = import_from(settings, file, progress)
    if as_json:
        _print_counts(file, counts)
    else:
        console.print(f"{counts['companies']} companies, {counts.total()} rows were new", highlight=False)


def _print_counts(file: Path, counts: Counter[str]) -> None:
    """The rows of each table that were written or new."""
    totals = {"companies": counts["companies"], "rows": counts.total()}
    print(json.dumps({"file": str(file), **totals, "tables": {name: n for name, n in counts.items() if n}}))


@app.command()
def verify(company: OneCompany = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check that the store holds together, and where the service runs its indexes; status 1 where they do not."""
    from muniment.cluster.archives import verify_indexes, verify_stores

    settings = load(data_dir=data_dir)
    with counted("checking") as progress:
        report = verify_stores(settings, company, progress)
    if launcher.find(settings.data_dir) is not None:
        report["indexes"] = verify_indexes(settings.data_dir)
        report["intact"] &= not report["indexes"]["wrong"]
    if as_json:
        print(json.dumps(report))
    else:
        console.print("intact" if report["intact"] else "not intact")
        for name in ("checked", "wrong", "indexes"):
            for what, count in report.get(name, {}).items():
                console.print(f"{name:>8}  {what}: {count}", highlight=False, soft_wrap=True, markup=False)
        for problem in report["problems"]:
            console.print(f"{problem['problem']}: {problem['where']}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(0 if report["intact"] else 1)
