// Partitions of processors and views, and how far their tables are recovered.

import { count, el, groupLink, rate, tone, UNKNOWN } from "../dom.js";
import { numberColumn, statusColumn } from "../table.js";
import { openListing } from "./listing.js";

const LOOK = { running: "good", recovering: "warn", preparing: "warn", connecting: "warn" };

const COLUMNS = [
  {
    title: "Processor or view", width: 26, narrow: 10, text: (row) => row.name,
    hint: (row) => row.id || row.name,
  },
  { title: "Kind", width: 11, text: (row) => row.kind },
  { title: "Topic", width: 20, text: (row) => row.topic },
  numberColumn("Partition", 10, (row) => row.partition, count, { narrow: 9, first: "asc" }),
  statusColumn("State", 14, (row) => row.state, (row) => row.look, {
    narrow: 12, hint: (row) => row.error,
  }),
  numberColumn("Lag", 12, (row) => row.lag),
  numberColumn("Rate", 11, (row) => row.rate, rate),
  numberColumn("Recovered", 11, (row) => row.recovery, percent, { narrow: 9 }),
];

function percent(share) {
  return share === null ? UNKNOWN : `${Math.floor(share * 100)} %`;
}

function rowsOf({ views, processors }) {
  const rows = [];
  for (const view of views) {
    const name = view.topic ?? view.url;
    const common = { kind: "view", id: view.url, name, topic: view.topic ?? "" };
    if (view.error !== null) {
      rows.push({
        ...common, partition: null, state: "unreachable", look: "bad", lag: null, rate: null,
        recovery: null, error: view.error,
      });
    }
    for (const each of view.partitions) {
      const state = each.stalled ? "stalled" : each.state;
      rows.push({
        ...common, partition: each.partition, state,
        look: each.stalled || each.error ? "bad" : LOOK[state] ?? "",
        lag: each.lag, rate: each.rows_per_s, recovery: each.recovery, error: each.error ?? "",
      });
    }
  }
  for (const group of processors) {
    if (group.error !== null) { // the rest is of before
      rows.push({
        kind: "processor", id: "", name: group.name, topic: "", partition: null,
        state: "unreadable", look: "bad", lag: null, rate: null, recovery: null,
        error: group.error.message,
      });
    }
    for (const each of group.partitions) {
      rows.push({
        kind: "processor", id: "", name: group.name, topic: each.topic, partition: each.partition,
        state: each.error?.code ?? each.status ?? group.state ?? "",
        look: each.error ? "bad" : tone(each.status),
        lag: each.lag, rate: each.rate_out, recovery: null, error: each.error?.message ?? "",
      });
    }
  }
  return rows;
}

export function open(root) {
  const summary = el("p.summary");
  return openListing(root, {
    title: "Processors and views",
    path: "v1/streams",
    rows(answer) {
      summary.replaceChildren(...answer.processors.map(processorLink));
      return rowsOf(answer);
    },
    summary,
    table: {
      label: "partitions of streams",
      columns: COLUMNS,
      id: (row) => `${row.kind} ${row.id} ${row.name} ${row.topic} ${row.partition}`,
      search: (row) => `${row.kind} ${row.id} ${row.name} ${row.topic} ${row.partition} ${row.state}`,
      sorted: [4, "desc"],
      empty: "No processor commits through this service, and its setting `streams` names no view.",
    },
  });
}

function processorLink({ name, table }) {
  const rows = Object.values(table.messages).reduce((sum, each) => sum + each, 0);
  const link = el("a", { href: groupLink(name) }, name);
  return el("span.item", {}, link, `: table ${table.topic}, ${count(rows)} messages `);
}
