# pip install 'offsetmgr[streams]'
"""Mask words in comments: one group keeps the words, another looks them up.

Run it with ``stream_on_spark.py blocked_words:words --available-now``,
then ``blocked_words:comments``.
"""

from offsetmgr.streams import (
    Context,
    codecs,
    define_group,
    group_table,
    input,
    lookup,
    output,
    persist,
)


def block(ctx: Context, blocked: bool) -> None:
    """Block the word that is the key, or allow it again."""
    if blocked:
        ctx.set_value(True)
    else:
        ctx.delete()


words = define_group(
    "blocked-words",
    input("block-word", codecs.Json(bool), block),
    persist(codecs.Json(bool)),
)

WORDS = group_table("blocked-words")


def mask(ctx: Context, comment: str) -> None:
    """Emit the comment with stars in the place of blocked words."""
    shown = [
        "*" * len(word) if ctx.lookup(WORDS, word.lower()) else word for word in comment.split()
    ]
    ctx.emit("clean-comments", ctx.key, " ".join(shown))


comments = define_group(
    "comments",
    input("comments", codecs.String(), mask),
    lookup(WORDS, codecs.Json(bool)),
    output("clean-comments", codecs.String()),
)

SAMPLES = {
    "block-word": [("spam", "true")],
    "comments": [("bob", "no more spam please")],
}
"""Messages to see it with: keys and values by topic."""
