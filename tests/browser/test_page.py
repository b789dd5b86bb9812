"""The page in a real Chromium, over answers that the test scripts."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser import answers
from tests.browser.answers import UNKNOWN
from tests.browser.fake import START

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.browser.conftest import Tab

VIEWS: Final = (
    "groups",
    "groups/orders-etl",
    "groups/orders-etl/consumers",
    "groups/orders-etl/history",
    "errors",
    "queries",
    "streams",
    "stopping",
)
PROMPT: Final = [
    "offsetmgr",
    "Access token of this service",
    "It stays in this tab until the tab is closed.",
    "Show the service",
]
HOSTILE: Final = "<img src=x onerror=alert(1)> & <script>alert(2)</script> / ? # %41 'q\""


def cells(page: Page, column: int) -> list[str]:
    """Return the texts of a column of the rows in sight."""
    return page.locator(f"tbody tr:not(.spacer) td:nth-child({column})").all_inner_texts()


def crowded(tab: Tab) -> None:
    """Have all views show something, with trouble among it."""
    failing = {"code": "UNKNOWN_MEMBER_ID", "message": "it is held", "hint": "stop them"}
    members = [{"member_id": "m-1", "client_id": "reader", "host": "/10.0.0.7", "partitions": []}]
    tab.api.says(
        "overview",
        answers.overview(
            answers.group_summary("orders-etl"),
            answers.group_summary("billing", status="STALL", lag=7_000_000),
            answers.group_summary("emails", status="WARN", lag=1_203),
            answers.group_summary("refunds", failing=2, error=failing),
            answers.group_summary("foreign", watched=False, status=None, lag=None),
            ready=False,
            reasons=["Kafka has not answered for 15 s"],
        ),
    )
    partitions = [answers.partition(0, status="STALL"), answers.partition(1, error=failing)]
    tab.api.says("lag", answers.lag("orders-etl", *partitions, members=members))
    steps = [answers.step(1, None, 50, "first"), answers.step(2, 50, 10, "backward")]
    tab.api.says("history", answers.history("orders-etl", *steps))
    tab.api.says("plan", answers.plan(answers.planned(0, 10, 50), answers.planned(1, 7, 3)))
    tab.api.streams(answers.failed(1, "billing", 0, answers.REFUSED))


def shown(tab: Tab, view: str) -> Page:
    """Open a view, with the plan of a reset where it has one; return it once it is drawn."""
    page = tab.open(view)
    expect(page.locator("tbody tr:not(.spacer), article").first).to_be_visible()
    if view.endswith("history"):
        page.get_by_role("button", name="Undo").first.click()
        expect(page.get_by_role("button", name="Set 2 offsets")).to_be_enabled()
    return page


def shown_lines(page: Page) -> list[str]:
    return [line for line in page.locator("body").inner_text().split("\n") if line]


def ask_again(page: Page) -> None:
    """Have the page ask at once, as when somebody comes back to it."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_the_most_urgent_group_is_first(tab: Tab) -> None:
    """Groups in trouble stand above the others, whose number the page's title tells."""
    crowded(tab)
    page = tab.open()
    expect(page.get_by_text("2 of 5 groups need attention.")).to_be_visible()
    expect(page).to_have_title("(2) offsetmgr production")
    assert cells(page, 1) == ["billing", "refunds", "emails", "orders-etl", "foreign"]
    assert cells(page, 2) == ["STALL", "failing", "WARN", "OK", "not watched"]

    page.get_by_role("button", name="Group", exact=True).click()
    expect(page.get_by_role("columnheader", name="Group")).to_have_attribute(
        "aria-sort", "ascending"
    )
    assert cells(page, 1) == ["billing", "emails", "foreign", "orders-etl", "refunds"]
    page.keyboard.press("/")
    page.keyboard.type("IL")
    expect(page.get_by_text("2 of 5", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="refunds")).to_have_count(0)
    assert cells(page, 1) == ["billing", "emails"]


def test_odd_links_and_names_lead_to_a_page(tab: Tab) -> None:
    """An address that no view has, or that cannot be decoded; the next link works.

    Kafka takes an empty name of a group: its row has a text to click at.
    """
    tab.api.says("overview", answers.overview(answers.group_summary("")))
    for address in ("%", "groups/%FF", "constructor", "__proto__", "errors%2Fx", "groups/a/%E0"):
        page = tab.open(address)
        page.get_by_role("link", name="''").click()
        expect(page.get_by_role("heading", name="Groups / ''")).to_be_visible()
    page.get_by_role("link", name="History").click()
    expect(page.get_by_text("Kafka has no such commits")).to_be_visible()


def test_each_view_keeps_its_filter(tab: Tab) -> None:
    """A view is filtered as before when it is opened again; the other views are not filtered."""
    crowded(tab)
    page = tab.open("")
    search = page.get_by_role("searchbox")
    search.fill("il")
    page.get_by_role("link", name="billing").click()
    expect(page.get_by_role("heading", name="billing")).to_be_visible()
    expect(search).to_have_value("")
    search.fill("orders 1")
    page.get_by_role("link", name="Consumers").click()
    expect(search).to_have_value("")
    page.get_by_role("link", name="Partitions").click()
    expect(search).to_have_value("orders 1")
    page.get_by_role("link", name="Groups").first.click()
    expect(search).to_have_value("il")
    expect(page.get_by_text("2 of 5", exact=True)).to_be_visible()
    assert cells(page, 1) == ["billing", "emails"]


def test_ten_thousand_partitions_are_a_few_rows(tab: Tab) -> None:
    """The page draws the rows in sight alone, and the keyboard reaches the last one."""
    tab.api.says("lag", answers.lag("orders-etl", *map(answers.partition, range(10_000))))
    page = shown(tab, "groups/orders-etl")
    rows = page.locator("tbody tr:not(.spacer)")
    assert rows.count() < 100
    assert page.get_by_role("table").get_attribute("aria-rowcount") == "10001"

    page.get_by_role("region", name="partitions").focus()
    page.keyboard.press("ArrowDown")
    expect(rows.first).to_be_focused()
    page.keyboard.press("End")
    last = page.locator("tr[aria-rowindex='10001']")
    expect(last).to_be_focused()
    assert last.inner_text().split("\t")[:2] == ["orders", "9,999"]
    page.keyboard.press("ArrowUp")
    expect(page.locator("tr[aria-rowindex='10000']")).to_be_focused()
    assert rows.count() < 100


def test_the_keyboard_alone_gets_to_a_group(tab: Tab) -> None:
    """Arrows choose a row, Enter follows its link.

    An update neither moves the focus nor draws the row anew.
    """
    page = shown(tab, "groups")
    link = page.get_by_role("link", name="orders-etl")
    link.focus()
    urgent = answers.group_summary("billing", status="STALL")
    calm = answers.group_summary("orders-etl", lag=77)
    tab.api.says("overview", answers.overview(urgent, calm))
    ask_again(page)
    expect(page.get_by_role("cell", name="77", exact=True)).to_be_visible()
    assert cells(page, 1) == ["billing", "orders-etl"]
    expect(link).to_be_focused()
    page.get_by_role("region", name="groups").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="billing")).to_be_visible()


def test_hostile_names_and_metadata_are_only_text(tab: Tab) -> None:
    """A script as a group's name, topic, metadata or message is shown letter by letter."""
    tab.api.says("overview", answers.overview(answers.group_summary(HOSTILE)))
    error = {"code": "X", "message": HOSTILE, "hint": HOSTILE}
    row = answers.partition(0, topic=HOSTILE, metadata=HOSTILE, error=error)
    tab.api.says("lag", answers.lag(HOSTILE, row))
    tab.api.says(
        "history", answers.history(HOSTILE, answers.step(1, 1, 2, "forward", metadata=HOSTILE))
    )
    tab.api.streams(answers.failed(1, HOSTILE, 0, {**answers.REFUSED, "message": HOSTILE}))
    page = shown(tab, "groups")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.locator("tbody tr:not(.spacer) td:nth-child(11)")).to_have_text([HOSTILE])
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("cell", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="Commit errors").click()
    expect(page.get_by_text(f"{HOSTILE}.", exact=True)).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    asked = [each.url for each in tab.api.requests if "/v1/lag" in each.url]
    assert all("group=%3Cimg+src%3Dx" in url for url in asked)


def test_without_a_token_there_is_only_the_question_for_one(tab: Tab) -> None:
    """Nothing that the service refuses is on the page; the token goes with each request."""
    refusal = answers.error("unauthorized", "the token is not one of this service")
    healthy = answers.overview(answers.group_summary("orders-etl"))
    for name in ("overview", "events", "lag"):
        tab.api.says(name, refusal, 401)
    page = tab.open("groups/orders-etl")
    expect(page.get_by_label("Access token")).to_be_focused()
    assert shown_lines(page) == PROMPT

    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_text("the token is not one of this service")).to_be_visible()
    tab.api.says("overview", healthy)
    tab.api.says("lag", answers.lag("orders-etl", answers.partition(0)))
    tab.api.streams("")
    page.keyboard.type("s3cret")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="orders-etl")).to_be_visible()
    sent = tab.api.requests[-1].headers["authorization"]
    assert sent == "Bearer s3cret"
    assert page.evaluate("[document.cookie, localStorage.length]") == ["", 0]

    page.get_by_role("button", name="Forget the token").click()
    expect(page.get_by_label("Access token")).to_be_visible()
    assert shown_lines(page) == PROMPT
    assert page.evaluate("sessionStorage.length") == 0


def test_a_reset_is_planned_before_it_is_executed(tab: Tab) -> None:
    """Only the plan that is shown can be executed; a changed form needs a new one.

    Its offsets are those of the service, also where a number of JavaScript would round them.
    """
    now, new = 2**60 + 1, 2**60 - 9
    left = answers.planned(1, 7, None, note="nothing was committed then; left as it is")
    ids, row = {"orders": "of-the-plan"}, answers.planned(0, now, new, metadata="m")
    tab.api.says("plan", answers.plan(row, left, topic_ids=ids))
    done = answers.planned(0, now, new, note="")
    tab.api.says("reset", answers.plan(done, executed=True))
    page = shown(tab, "groups/orders-etl")
    page.get_by_role("button", name="Reset offsets").click()
    dialogue = page.get_by_role("dialog")
    execute = dialogue.get_by_role("button", name="Execute")
    expect(execute).to_be_disabled()
    dialogue.get_by_label("To", exact=True).select_option("shift-by")
    dialogue.get_by_label("Value").fill("-10")
    dialogue.get_by_label("Topics").fill("orders:0,1 clicks")
    dialogue.get_by_role("button", name="Show the plan").click()
    expect(dialogue.get_by_text("10 records would be read again")).to_be_visible()
    expect(dialogue.get_by_text(f"{now:,}")).to_be_visible()
    assert tab.api.posted("plan") == [
        {
            "group": "orders-etl",
            "mode": "shift-by",
            "value": "-10",
            "topics": ["orders:0,1", "clicks"],
            "live": False,
        }
    ]
    dialogue.get_by_label("Value").fill("-20")
    expect(execute).to_be_disabled()
    dialogue.get_by_role("button", name="Show the plan").click()
    dialogue.get_by_role("button", name="Set 1 offset", exact=True).click()
    expect(dialogue.get_by_text("Done: 1 offset set.")).to_be_visible()
    row = {"topic": "orders", "partition": 0, "current": now, "new": new, "metadata": "m"}
    assert tab.api.posted("reset") == [
        {"group": "orders-etl", "live": False, "partitions": [row], "topic_ids": ids}
    ]
    dialogue.get_by_role("button", name="Close").click()
    expect(dialogue).to_have_count(0)


def test_a_late_plan_is_not_for_a_form_that_was_changed(tab: Tab) -> None:
    """A slow Kafka answers after the operator has chosen another mode: that plan is dropped."""
    late: list[Route] = []

    def hold(route: Route) -> None:
        late.append(route)

    page = shown(tab, "groups/orders-etl")
    page.get_by_role("button", name="Reset offsets").click()
    dialogue = page.get_by_role("dialog")
    plan = dialogue.get_by_role("button", name="Show the plan")
    page.route("**/v1/plan", hold)
    with page.expect_request("**/v1/plan"):
        plan.click()
    dialogue.get_by_label("To", exact=True).select_option("to-latest")
    page.unroute("**/v1/plan", hold)
    late[0].fulfill(json=answers.plan(answers.planned(0, 500, 0)))
    expect(plan).to_be_enabled()
    expect(dialogue.get_by_role("button", name="Execute")).to_be_disabled()
    tab.api.says("plan", answers.plan(answers.planned(0, 500, 900)))
    plan.click()
    expect(dialogue.get_by_text("400 records would be skipped")).to_be_visible()
    dialogue.get_by_role("button", name="Cancel").click()
    expect(dialogue).to_have_count(0)


def test_a_refused_reset_says_why(tab: Tab) -> None:
    """A held group cannot be reset, a reader may not: the page has the service's own words."""
    held = {"code": "group_held", "message": "group orders-etl is held by client 'etl'"}
    rows = answers.planned(0, 500, 490)
    tab.api.says("plan", answers.plan(rows, refused=held, can_live=True))
    page = shown(tab, "groups/orders-etl")
    page.get_by_role("button", name="Reset offsets").click()
    dialogue = page.get_by_role("dialog")
    dialogue.get_by_role("button", name="Show the plan").click()
    expect(dialogue.get_by_role("alert")).to_contain_text("held by client 'etl'")
    expect(dialogue.get_by_role("button", name="Set 1 offset")).to_be_disabled()

    tab.api.says("plan", answers.plan(rows, live=True, can_live=True))
    tab.api.says("reset", answers.error("forbidden", "identity 'guest' may only read"), 403)
    dialogue.get_by_label("The job keeps running").check()
    dialogue.get_by_role("button", name="Show the plan").click()
    dialogue.get_by_role("button", name="Set 1 offset").click()
    expect(dialogue.get_by_role("alert")).to_contain_text("identity 'guest' may only read")
    assert [each["live"] for each in tab.api.posted("plan")] == [False, True]
    tab.api.says("reset", answers.error("timeout", "no answer from Kafka in time"), 504)
    dialogue.get_by_role("button", name="Show the plan").click()
    dialogue.get_by_role("button", name="Set 1 offset").click()
    expect(dialogue.get_by_role("alert")).to_contain_text("not known whether the offsets were set")
    page.keyboard.press("Escape")
    expect(dialogue).to_have_count(0)


def test_the_offsets_of_a_group_can_be_copied_for_spark(tab: Tab) -> None:
    """The JSON is the service's; a group without offsets shows the service's message instead."""
    tab.in_phone()
    page = shown(tab, "groups/orders-etl")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="startingOffsets").click()
    dialogue = page.get_by_role("dialog")
    expect(dialogue.get_by_label("startingOffsets", exact=True)).to_have_value(START)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    dialogue.get_by_role("button", name="Copy").click()
    expect(dialogue.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == START
    dialogue.get_by_role("button", name="Close").click()
    expect(dialogue).to_have_count(0)

    tab.api.says("starting-offsets", answers.error("not_found", "it has no offsets"), 404)
    page.get_by_role("button", name="startingOffsets").click()
    expect(dialogue.get_by_role("alert")).to_contain_text("it has no offsets")
    expect(dialogue.get_by_role("button", name="Copy")).to_be_disabled()


def test_a_late_history_is_not_shown_for_another_period(tab: Tab) -> None:
    """All commits take Kafka longer than those of the last hour, which were chosen after them."""
    late: dict[bool, Route] = {}

    def keep(route: Route) -> None:
        late["since=1h" in route.request.url] = route

    with tab.page.expect_response("**/v1/history?*"):
        page = tab.open("groups/orders-etl/history")
    period = page.get_by_label("Commits of")
    page.route("**/v1/history?*limit*", keep)
    for value in ("", "1h"):
        with page.expect_request("**/v1/history?*"):
            period.select_option(value)
    while len(late) < 2:  # or the guard of the test run ends it
        page.evaluate("0")
    late[True].fulfill(json=answers.history("orders-etl", answers.step(1, 1, 2, "forward")))
    expect(page.get_by_role("cell", name="forward")).to_be_visible()
    with page.expect_response("**/v1/history?*"):
        late[False].fulfill(json=answers.history("orders-etl", answers.step(1, 2, 1, "backward")))
    expect(page.get_by_role("cell", name="forward")).to_be_visible()


def test_times_are_by_the_clock_of_the_service(tab: Tab) -> None:
    """The browser's may be an hour behind: a commit is as old as it is."""
    now_s = time.time() + 3_600
    tab.api.headers = {"Date": formatdate(now_s, usegmt=True)}
    tab.api.says("lag", answers.lag("orders-etl", answers.partition(0, committed_at=now_s - 630)))
    page = tab.open("groups/orders-etl")
    expect(page.get_by_role("cell", name="10 min")).to_be_visible()


def test_a_history_shows_the_cause_of_a_deletion(tab: Tab) -> None:
    """Kafka deletes offsets with their topic; no person did."""
    step = answers.step(1, 50, None, "deleted", cause="the topic was recreated")
    tab.api.says("history", answers.history("orders-etl", step))
    page = tab.open("groups/orders-etl/history")
    expect(page.get_by_role("cell", name="deleted: the topic was recreated")).to_be_visible()


def test_commit_errors_are_gathered_by_cause(tab: Tab) -> None:
    """Many errors of one cause are one entry, with its partitions, its fix and who has to act."""
    late = {"code": "REQUEST_TIMED_OUT", "message": "no answer", "retriable": True}
    tab.api.streams(
        "".join(answers.failed(n, "billing", n % 12, answers.REFUSED) for n in range(1, 41))
        + answers.failed(41, "emails", 4, late)
    )
    page = tab.open("errors")
    expect(page.get_by_role("link", name="Commit errors (2)")).to_be_visible()
    newest, oldest = page.get_by_role("article").all()
    expect(newest).to_contain_text("REQUEST_TIMED_OUT emails")
    expect(newest).to_contain_text("The service tries again by itself.")
    expect(oldest).to_contain_text("40 times since")
    expect(oldest).to_contain_text("the group has live members")
    expect(oldest).to_contain_text("It is up to whoever runs the group")
    expect(oldest).to_contain_text("and 4 more")
    # A new reader says what it has seen, so that nothing is counted twice.
    with page.expect_request(lambda request: request.headers.get("last-event-id") == "41"):
        pass


def test_a_stopping_service_lists_uncommitted_offsets(tab: Tab) -> None:
    """The page leads to what is not committed yet, and keeps it when the service has gone."""
    reason = ["the service is stopping"]
    tab.api.says("overview", answers.overview(draining=True, ready=False, reasons=reason))
    page = tab.open()
    page.get_by_role("link", name="What it still commits").click()
    left = "1 offset of 12 partitions not committed yet, 12 s left."
    expect(page.get_by_text(left)).to_be_visible()
    expect(page.get_by_role("cell", name="Kafka did not answer in time")).to_be_visible()
    page.unroute_all()
    page.route("**/v1/**", lambda route: route.abort())
    ask_again(page)
    expect(page.get_by_text("this was the last it said")).to_be_visible()
    expect(page.get_by_text("No overview: the service does not answer. What is")).to_be_visible()
    expect(page.get_by_role("cell", name="Kafka did not answer in time")).to_be_visible()


def test_trouble_with_kafka_stands_above_every_view(tab: Tab) -> None:
    """An operator sees first what makes all else old."""
    crowded(tab)
    tab.api.says("lag", answers.error("REQUEST_TIMED_OUT", "lag: Kafka did not answer"), 504)
    page = tab.open("groups/orders-etl")
    expect(page.get_by_role("status").first).to_contain_text("Kafka has not answered for 15 s")
    expect(page.get_by_text("lag: Kafka did not answer.")).to_be_visible()


def test_queries_and_streams(tab: Tab) -> None:
    """Last batches with their rates; tables with how far they are recovered.

    A replica of a view has rows of its own, one that is named twice has them twice.  A processor
    whose group could not be read is a row.
    """
    streams = answers.streams()
    replica = {**streams["views"][0], "url": "http://127.0.0.1:8744"}
    unread = {**streams["processors"][0], "error": answers.REFUSED, "partitions": []}
    tab.api.says(
        "streams",
        {
            "views": [*streams["views"], replica, replica],
            "processors": [*streams["processors"], unread],
        },
    )
    page = shown(tab, "queries")
    assert cells(page, 2) == ["failed", "running"]
    assert cells(page, 4) == ["8", "1,204"]
    assert cells(page, 9) == [UNKNOWN, "1,251/s"]
    page = shown(tab, "streams")
    expect(page.get_by_text("revenue: table revenue-table, 26 messages").first).to_be_visible()
    states = ["unreachable", "unreadable", *3 * ["recovering"], *3 * ["running"], "OK", "OK"]
    assert cells(page, 5) == states
    assert cells(page, 8) == [*2 * [UNKNOWN], *3 * ["70 %"], *3 * ["100 %"], *2 * [UNKNOWN]]


WCAG: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


def violations(page: Page, *rules: str) -> list[tuple[str, str]]:
    answer = Axe().run(page, options={"runOnly": rules})
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in answer.response["violations"]]


def test_anybody_can_use_every_view(tab: Tab) -> None:
    """No view breaks a rule of WCAG 2.1 AA that axe-core checks, nor is wider than a phone.

    No table has to be scrolled sideways either: a history shows from, to and Undo.
    """
    found = {}
    tab.in_phone()
    crowded(tab)
    for view in VIEWS:
        page = shown(tab, view)
        found[view, "light"] = violations(page, *WCAG)
        tab.in_colours("dark")
        found[view, "dark"] = violations(page, "color-contrast")
        tab.in_colours("light")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, view
        for table in page.locator(".scroll:visible").all():
            assert table.evaluate("(each) => each.scrollWidth <= each.clientWidth"), view
        if view.endswith("history"):
            for name in ("From", "To", "Undo"):
                head = page.get_by_role("columnheader", name=name, exact=True).first
                expect(head).to_be_in_viewport(ratio=1)
    assert not any(found.values()), found
