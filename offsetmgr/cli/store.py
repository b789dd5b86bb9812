"""The command for the tables of an offset store."""

from __future__ import annotations

from typing import Annotated

import typer

from offsetmgr.stores import open_database

Url = Annotated[
    str, typer.Argument(metavar="URL", help="postgresql+psycopg://user@host/database, for example.")
]


def init(
    url: Url,
    *,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL, for a migration; change nothing.")
    ] = False,
) -> None:
    """Create the tables of an offset store in a database, where they do not exist."""
    with open_database(url) as store:
        if print_:
            print(store.table_text(), end="")
        else:
            store.create_tables()
            print(f"{store.url} has the tables of an offset store.")
