# pip install 'offsetmgr[streams]'
"""Add the country of their user to clicks: a stream joined with a table.

Run it with ``stream_on_spark.py user_profiles:graph --available-now``.
"""

from dataclasses import dataclass

from offsetmgr.streams import Context, codecs, define_group, input, join, output


@dataclass
class Profile:
    """Name and country of a user."""

    name: str
    country: str


@dataclass
class CountryClick:
    """A click and where it came from."""

    url: str
    country: str


def enrich(ctx: Context, url: str) -> None:
    """Emit the click with the country in the user's profile."""
    profile = ctx.join("profiles")
    country = profile.country if profile else "unknown"
    ctx.emit("country-clicks", ctx.key, CountryClick(url, country))


graph = define_group(
    "click-countries",
    input("clicks", codecs.String(), enrich),
    join("profiles", codecs.Json(Profile)),
    output("country-clicks", codecs.Json(CountryClick)),
)

SAMPLES = {
    "profiles": [("bob", '{"name": "Bob", "country": "CH"}')],
    "clicks": [("bob", "/cart"), ("ann", "/pay")],
}
"""Messages to see it with: keys and values by topic."""
