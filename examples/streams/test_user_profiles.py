"""Clicks get the country of the profile as it is then."""

from user_profiles import CountryClick, Profile, graph

from offsetmgr.streams import Tester


def test_a_click_gets_the_country_of_its_user() -> None:
    """A changed profile counts from then on; a user may have none."""
    tester = Tester()
    tester.add_processor(graph)
    clicks = tester.queue_tracker("country-clicks")
    tester.consume("clicks", "bob", "/cart")
    tester.consume("profiles", "bob", Profile("Bob", "NL"))
    tester.consume("clicks", "bob", "/pay")
    tester.consume("profiles", "bob", None)
    tester.consume("clicks", "bob", "/bye")
    assert [click.value for click in clicks] == [
        CountryClick("/cart", "unknown"),
        CountryClick("/pay", "NL"),
        CountryClick("/bye", "unknown"),
    ]
