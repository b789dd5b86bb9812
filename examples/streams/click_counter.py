# pip install 'offsetmgr[streams]'
"""Count the clicks of each user.

Run it with ``stream_on_spark.py click_counter:graph --available-now``.
"""

from offsetmgr.streams import Context, codecs, define_group, input, persist


def count(ctx: Context, url: str) -> None:
    """Add one to the row of the user, who is the key."""
    ctx.set_value((ctx.value() or 0) + 1)


graph = define_group(
    "click-counter",
    input("clicks", codecs.String(), count),
    persist(codecs.Int64()),
)

SAMPLES = {"clicks": [("ann", "/cart"), ("bob", "/cart"), ("bob", "/pay")]}
"""Messages to see it with: keys and values by topic."""
