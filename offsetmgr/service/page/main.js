// The frame of the page: which view is shown, what holds for all of them, and the token.

import { get, now, token, whenUnauthorized } from "./api.js";
import { button, clock, count, el, plural, setText } from "./dom.js";
import { failures } from "./failures.js";
import { Poll } from "./poll.js";
import * as errors from "./views/errors.js";
import * as group from "./views/group.js";
import * as groups from "./views/groups.js";
import * as queries from "./views/queries.js";
import * as stopping from "./views/stopping.js";
import * as streams from "./views/streams.js";

const VIEWS = new Map(Object.entries({ groups, errors, queries, streams, stopping }));
const [header, cluster, nav, notices, main, footer] = [
  "header", "cluster", "nav", "notices", "main", "footer",
].map((id) => document.getElementById(id));

const TITLES = {
  groups: "Groups",
  errors: "Commit errors",
  queries: "Queries",
  streams: "Streams",
};
const links = new Map(
  Object.entries(TITLES).map(([name, title]) => [name, el("a", { href: `#/${name}` }, title)]),
);
nav.append(...links.values());

const filters = new Map(); // what was typed into the filter of each view, for the next visit
let view = null;
let overview = null;
let answeredAt = null;
let firstVersion = null;
let poll = null;

function closeView() {
  document.querySelectorAll("dialog").forEach((each) => each.close());
  view?.close();
  view = null;
}

function openView() {
  closeView();
  const { name, subject, tab } = place();
  const { open } = subject === undefined ? VIEWS.get(name) : group;
  main.replaceChildren();
  view = open(main, { name: subject, tab });
  keepFilter([name, subject, tab].join("/"));
  for (const [each, link] of links) {
    link.ariaCurrent = each === name ? "page" : null;
  }
  if (overview !== null) {
    view.onOverview?.(overview);
  }
}

/** Return the view of the address, the list of groups if it has none; `subject` is a group. */
function place() {
  try {
    const [, name, subject, tab] = location.hash.split("/").map(decodeURIComponent);
    if (VIEWS.has(name)) {
      return name === "groups" ? { name, subject, tab } : { name };
    }
  } catch {
    // it is not percent-encoded UTF-8
  }
  return { name: "groups" };
}

function keepFilter(place) {
  const filter = main.querySelector("input[type=search]");
  if (filter) {
    filter.value = filters.get(place) ?? "";
    filter.addEventListener("input", () => filters.set(place, filter.value));
  }
}

function showOverview(answer) {
  overview = answer;
  answeredAt = now();
  firstVersion ??= answer.version;
  header.hidden = footer.hidden = false;
  setText(cluster, answer.cluster);
  const bad = answer.groups.filter((each) => groups.look(each) === "bad").length;
  document.title = `${bad ? `(${bad}) ` : ""}offsetmgr ${answer.cluster}`;
  setText(footer.firstChild, [
    `offsetmgr ${answer.version}`,
    `instance ${answer.instance.slice(0, 8)}`,
    plural(answer.clients, "client"),
    plural(answer.managers, "manager"),
    asIdentity(answer.identity),
    "times in UTC",
  ].filter(Boolean).join(", "));
  footer.lastChild.hidden = token.get() === null;
  const found = answer.draining ? [] : answer.reasons.map((text) => notice("bad", text));
  const { failed_rounds: rounds, read_at: readAt } = answer.watch;
  if (rounds > 0) {
    const since = readAt === null ? "" : ` What is shown is from ${clock(readAt)}.`;
    const why = answer.groups_error?.message ?? "see the log";
    found.push(notice("bad", `No lag: ${plural(rounds, "round")} of the watch failed: ${why}.${since}`));
  }
  if (answer.version !== firstVersion) {
    const text = `The service was upgraded to ${answer.version}: reload this page.`;
    found.push(notice("warn", text));
  }
  if (answer.draining) {
    found.push(notice("warn", "The service is stopping. ", "#/stopping", "What it still commits"));
  }
  showNotices(found);
  view.onOverview?.(answer);
}

function asIdentity(identity) {
  return identity && `as ${identity.name}${identity.read_only ? ", who may only read" : ""}`;
}

function onTrouble(error) {
  if (error.status === 401) {
    return; // the prompt is shown
  }
  const since = answeredAt === null ? "" : ` What is shown is from ${clock(answeredAt)}.`;
  header.hidden = false;
  showNotices([notice("bad", `No overview: ${error.message}.${since}`)]);
}

function notice(look, text, href, link) {
  return el("p.notice", { "data-tone": look }, text, href ? el("a", { href }, link) : null);
}

function showNotices(found) {
  const texts = (elements) => elements.map((each) => each.textContent).join("\n");
  if (texts(found) !== texts([...notices.children])) { // a screen reader reads each new one aloud
    notices.replaceChildren(...found);
  }
}

function start() {
  failures.start((total) => {
    setText(links.get("errors"), total ? `${TITLES.errors} (${count(total)})` : TITLES.errors);
  });
  // The title counts groups in trouble also while the tab is hidden.
  const load = (signal) => get("v1/overview", {}, signal);
  poll = new Poll(load, showOverview, onTrouble, { inBackground: true });
  openView();
}

function stop() {
  poll.stop();
  poll = null;
  failures.stop();
  closeView();
}

/** Show nothing but the question for a token: without one the page knows nothing. */
function askForToken(message, refused) {
  stop();
  token.forget();
  filters.clear();
  header.hidden = footer.hidden = true;
  overview = null;
  document.title = "offsetmgr";
  notices.replaceChildren();
  const input = el("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const form = el(
    "form.prompt", {},
    el("h1", {}, "offsetmgr"),
    el("label", { htmlFor: "token" }, "Access token of this service"),
    input,
    el("p.quiet", {}, refused ? message : "It stays in this tab until the tab is closed."),
    el("button.main", { type: "submit" }, "Show the service"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    start();
  });
  main.replaceChildren(form);
  input.focus();
}

footer.append(
  el("span"),
  button("Forget the token", () => askForToken("", false), "button.plain"),
);
whenUnauthorized((message, refused) => poll && askForToken(message, refused));
addEventListener("hashchange", () => {
  if (poll) {
    openView();
    main.focus({ preventScroll: true });
  }
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    main.querySelector("input[type=search]")?.focus();
  }
});
start();
