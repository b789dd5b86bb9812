"""The command ``spark reconcile``."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from offsetmgr.client import OffsetClient
from offsetmgr.spark import Reconciliation, Standing, reconcile


def run(checkpoint: str, group: str, service: str, *, execute: bool) -> bool:
    """Whether the group is where the checkpoint is, in the end."""
    with OffsetClient(service) as client:
        found = reconcile(client, group, checkpoint)
        console = Console(soft_wrap=True, highlight=False, markup=False)
        if found.batch_id is None:
            console.print("The checkpoint has no finished batch yet: there is nothing to commit.")
            return True
        console.print(_table(found))
        total, differing = len(found.standings), len(found.differences)
        if not differing:
            console.print(f"Group {group} is at the end of batch {found.batch_id}.")
            return True
        if execute:
            found.execute(client)
            console.print(f"Committed {differing} of {total} partitions to group {group}.")
            return True
    console.print(
        f"{differing} of {total} partitions differ; --execute commits the checkpoint's offsets."
    )
    return False


def _table(found: Reconciliation) -> Table:
    table = Table("topic", "partition", "checkpoint", "group", "", box=None, header_style="bold")
    for (topic, partition), each in found.standings.items():
        committed = "-" if each.committed is None else str(each.committed)
        table.add_row(topic, str(partition), str(each.checkpoint), committed, _words(each))
    return table


def _words(standing: Standing) -> str:
    if standing.committed is None:
        return "nothing committed"
    ahead = standing.committed - standing.checkpoint
    if not ahead:
        return ""
    return f"group is {abs(ahead)} {'ahead' if ahead > 0 else 'behind'}"
