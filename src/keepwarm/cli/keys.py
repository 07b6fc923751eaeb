"""`keepwarm keys`: make, list and revoke the keys of a data folder, whether or not a server runs on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from keepwarm.cli.data_dir import DataDirOption, find_data_dir, keys_file, resolve_data_dir

command = typer.Typer(
    name="keys", help="Make, list and revoke keys.", add_completion=False, rich_markup_mode=None
)


@command.command()
def create(
    label: Annotated[str, typer.Option("--label", help="Whose key it is; shown in the list.")] = "default",
    tenant: Annotated[
        str,
        typer.Option(
            "--tenant", help="Who owns it: keys of one tenant share what was read, two tenants share nothing."
        ),
    ] = "default",
    data_dir: DataDirOption = None,
) -> None:
    """Make a key and print it: the one time it can be seen. A running server takes it at once."""
    from keepwarm.control.keys import FileKeys, check_label, tenant_id

    check_label(label)
    owner = tenant_id(tenant)
    secret, record = FileKeys(keys_file(resolve_data_dir(data_dir))).create(label, tenant=owner)
    typer.echo(f"key {record.id} ({label}) of tenant {owner}, shown only now:", err=True)
    typer.echo(secret)


@command.command(name="list")
def list_keys(data_dir: DataDirOption = None) -> None:
    """List the keys: id, label, owner, when made, and whether revoked. No secret is stored or shown."""
    from rich.table import Table

    from keepwarm.cli.output import console_beside
    from keepwarm.control.keys import FileKeys

    table = Table("id", "label", "tenant", "made", "state")
    table.columns[0].overflow = "fold"  # never cut: `keys revoke` wants the whole of it
    table.columns[0].no_wrap = True
    for record in FileKeys(keys_file(find_data_dir(data_dir))).list():
        state = "valid" if record.revoked_at is None else f"revoked {_date(record.revoked_at)}"
        table.add_row(record.id, record.label, record.tenant, _date(record.created_at), state)
    console_beside(None).print(table)


@command.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, from `keepwarm keys list`.")],
    data_dir: DataDirOption = None,
) -> None:
    """Revoke a key. A running server refuses it from the next request on."""
    from keepwarm.control.keys import FileKeys

    FileKeys(keys_file(find_data_dir(data_dir))).revoke(key_id)
    typer.echo(f"key {key_id} is revoked")


def _date(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
