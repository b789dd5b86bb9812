// One group: its partitions, its consumers, or the history of its commits.

import { get } from "../api.js";
import { LagChart } from "../chart.js";
import {
  ago, button, count, duration, el, groupLink, meaning, NAMELESS, rate, sentence, setText, tone,
  urgency,
} from "../dom.js";
import { Poll } from "../poll.js";
import { ResetDialogue } from "../reset.js";
import { offerStartingOffsets } from "../starting.js";
import { numberColumn, statusColumn, Table } from "../table.js";
import { openHistory } from "./history.js";

const TABS = { "": "Partitions", consumers: "Consumers", history: "History" };
const SHOWN_PARTITIONS = 6;

/** Return the look of a partition: an error of its own, else Burrow's status. */
function partitionLook(row) {
  return row.error === null ? tone(row.status) : "bad";
}

function partitionWord(row) {
  return row.error?.code ?? row.status ?? row.phase ?? "";
}

function owner(row) {
  return row.committer ?? row.client_id ?? "";
}

const PARTITIONS = [
  { title: "Topic", width: 16, narrow: 10, text: (row) => row.topic },
  numberColumn("Partition", 10, (row) => row.partition, count, { narrow: 9, first: "asc" }),
  statusColumn("Status", 15, partitionWord, partitionLook, {
    narrow: 11,
    hint: (row) => row.error?.message ?? meaning(row.status),
  }),
  numberColumn("Lag", 10, (row) => row.lag, count, { narrow: 8 }),
  numberColumn("Behind", 10, (row) => row.lag_seconds, duration),
  numberColumn("Submitted", 11, (row) => row.submitted),
  numberColumn("Committed", 11, (row) => row.committed),
  numberColumn("End", 11, (row) => row.end),
  numberColumn("Last commit", 12, (row) => row.committed_at, ago),
  { title: "Committed by", width: 13, text: owner },
  { title: "Metadata", width: 10, text: (row) => row.metadata ?? "" },
];

// What is shown of a partition: without the rest an answer is read in half the time.
const FIELDS = [
  "topic", "partition", "submitted", "committed", "end", "lag", "lag_seconds", "committed_at",
  "pending_acks", "metadata", "member_id", "client_id", "committer", "phase", "status", "rate_out",
  "error",
];

const CONSUMERS = [
  { title: "Consumer", width: 26, narrow: 15, text: (row) => row.client },
  { title: "Kind", width: 14, text: (row) => row.kind },
  { title: "Host", width: 18, text: (row) => row.host },
  numberColumn("Partitions", 11, (row) => row.partitions, count, { narrow: 11 }),
  numberColumn("Lag", 12, (row) => row.lag),
  numberColumn("Behind", 12, (row) => row.seconds, duration),
  numberColumn("Pending acks", 14, (row) => row.acks, count, { narrow: 12 }),
];

export function open(root, { name, tab = "" }) {
  const facts = el("p.summary", {}, "Asking Kafka …");
  const problems = el("ul.problems");
  const figure = el("figure.chart", { role: "img", ariaLabel: "Lag since this view was opened" });
  const chart = new LagChart(figure);
  const body = el("div.body");
  const reset = (preset) => new ResetDialogue(name, preset, () => refresh());
  const tabs = Object.entries(TABS).map(([key, title]) => el("a", {
    href: groupLink(name, key),
    ariaCurrent: key === tab ? "page" : null,
  }, title));
  root.append(
    el(
      "div.heading", {},
      el("h1", {}, el("a", { href: "#/groups" }, "Groups"), " / ", el("span.name", {}, name || NAMELESS)),
      button("startingOffsets …", () => offerStartingOffsets(name)),
      button("Reset offsets …", () => reset(), "button.main"),
    ),
    facts, problems, figure,
    el("nav.tabs", { ariaLabel: "Group" }, ...tabs),
    body,
  );
  const shown = tab === "history" ? openHistory(body, name, reset) : openLag(body, tab);
  let begun = false;
  let answered = false;
  let held = null; // what the service knows of the group by itself
  const poll = new Poll(
    (signal) => get("v1/lag", { group: name, field: FIELDS }, signal),
    ({ groups: [group] }) => {
      answered = true;
      group.partitions = group.partitions.map(named);
      setText(facts, described(group));
      facts.dataset.tone = worst(group);
      problems.replaceChildren(...problemsOf(group));
      if (begun) {
        chart.add(group.lag);
      }
      shown.onLag?.(group);
    },
    (error) => {
      setText(facts, "");
      showTrouble(error);
    },
  );

  /** Show what is known without an answer of Kafka, which may be slow or down. */
  function showTrouble(error) {
    const found = [error, held].filter(Boolean);
    problems.replaceChildren(...found.map((each) => problem("", each.message, "")));
  }

  function refresh() {
    poll.now();
    shown.refresh?.();
  }

  return {
    onOverview(overview) {
      const group = overview.groups.find((each) => each.name === name);
      held = group?.error ?? null;
      if (!begun) {
        begun = true;
        chart.begin(group?.lag_points ?? [], overview.watch.interval_s);
        if (!answered) {
          showTrouble(null);
        }
      }
    },
    close() {
      poll.stop();
      chart.close();
      shown.close?.();
    },
  };
}

/** Return a partition's values by the names of their fields. */
function named(values) {
  const row = {};
  FIELDS.forEach((field, index) => {
    row[field] = values[index];
  });
  return row;
}

function worst(group) {
  const looks = [group.error ? "bad" : tone(group.status), ...group.partitions.map(partitionLook)];
  return looks.reduce((one, other) => (urgency(one) > urgency(other) ? one : other));
}

function described(group) {
  const out = group.partitions.reduce((sum, each) => sum + (each.rate_out ?? 0), 0);
  const parts = [
    group.status && `${group.status}: ${meaning(group.status)}`,
    `lag ${count(group.lag)}`,
    group.lag_seconds !== null && `${duration(group.lag_seconds)} behind`,
    group.partitions.some((each) => each.rate_out !== null) && `${rate(out)} committed`,
    group.state && `state ${group.state}`,
    group.pending_acks > 0 && `${count(group.pending_acks)} pending acks`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Return an item for the group's error, and one for each message of its partitions. */
function problemsOf(group) {
  const found = group.error ? [problem("", group.error.message, group.error.hint ?? "")] : [];
  const same = Map.groupBy(
    group.partitions.filter((each) => each.error !== null),
    (each) => each.error.code,
  );
  for (const why of group.lag_seconds_unknown ?? []) {
    found.push(problem("Seconds behind unknown: ", why, ""));
  }
  for (const rows of same.values()) {
    const named = rows.slice(0, SHOWN_PARTITIONS).map((each) => `${each.topic} ${each.partition}`);
    const more = rows.length > named.length ? ` and ${count(rows.length - named.length)} more` : "";
    const { message, hint } = rows[0].error;
    found.push(problem(`${named.join(", ")}${more}: `, message, hint ?? ""));
  }
  return found;
}

function problem(where, message, hint) {
  const cure = message.includes(hint) ? "" : ` To do: ${hint}.`;
  return el("li", {}, el("strong", {}, where), `${sentence(message)}${cure}`);
}

function openLag(root, tab) {
  const consumers = tab === "consumers";
  const table = new Table(consumers ? {
    label: "consumers",
    columns: CONSUMERS,
    id: (row) => row.id,
    search: (row) => `${row.client} ${row.host}`,
    sorted: [6, "desc"],
    empty: "Nobody reads or commits this group now.",
  } : {
    label: "partitions",
    columns: PARTITIONS,
    id: (row) => `${row.topic} ${row.partition}`,
    search: (row) => `${row.topic} ${row.partition} ${partitionWord(row)} ${owner(row)}`,
    sorted: [2, "desc"],
    empty: "Nothing is committed in this group.",
  });
  root.append(table.root);
  return { onLag: (group) => table.set(consumers ? consumersOf(group) : group.partitions) };
}

/** Return Kafka's members of the group, and the clients that commit through the service. */
function consumersOf(group) {
  const found = new Map(group.members.map((each) => [each.member_id, {
    id: each.member_id, client: each.client_id, kind: "member", host: each.host.replace("/", ""),
    partitions: 0, lag: 0, seconds: null, acks: 0,
  }]));
  for (const each of group.partitions) {
    const id = each.member_id ?? each.committer;
    if (id === null) {
      continue;
    }
    const row = found.get(id) ?? {
      id, client: id, kind: "service client", host: "",
      partitions: 0, lag: 0, seconds: null, acks: 0,
    };
    row.partitions += 1;
    row.lag += each.lag ?? 0;
    row.acks += each.pending_acks ?? 0;
    if (each.lag_seconds !== null) {
      row.seconds = Math.max(row.seconds ?? 0, each.lag_seconds);
    }
    found.set(id, row);
  }
  return [...found.values()];
}
