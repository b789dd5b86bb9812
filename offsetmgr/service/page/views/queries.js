// Streaming queries, as their drivers report them, and those whose checkpoint the service follows.

import { ago, count, rate, UNKNOWN } from "../dom.js";
import { groupColumn, numberColumn, statusColumn } from "../table.js";
import { openListing } from "./listing.js";

const LOOK = { running: "good", failed: "bad", failing: "bad", stopped: "warn" };

const COLUMNS = [
  { title: "Query", width: 15, narrow: 13, text: (row) => row.name ?? row.id },
  statusColumn("State", 10, (row) => row.state, (row) => LOOK[row.state] ?? "", {
    narrow: 11,
    hint: (row) => row.error ?? "",
  }),
  groupColumn(14, undefined, (row) => row.groups[0] ?? null),
  numberColumn("Last batch", 11, (row) => row.batch_id, count, { narrow: 12 }),
  numberColumn("Began", 13, (row) => row.began_at ?? null, ago),
  numberColumn("Records", 9, (row) => row.input_rows),
  numberColumn("Lag", 8, (row) => row.lag ?? null),
  numberColumn("Took", 8, (row) => row.batch_ms, milliseconds),
  numberColumn("Input", 10, (row) => row.input_rows_per_second, rate),
  numberColumn("Processed", 10, (row) => row.processed_rows_per_second, rate),
  numberColumn("Reported", 12, (row) => row.reported_at, ago),
  { title: "Client", width: 12, text: (row) => row.client },
];

// A followed checkpoint as a row of the table.
function followed(each) {
  return {
    ...each,
    id: each.query_id ?? each.checkpoint,
    run_id: each.checkpoint,
    name: each.name || each.checkpoint,
    error: each.problem ?? notes(each),
    began_at: each.batch_at,
    input_rows: each.records,
    batch_ms: null,
    input_rows_per_second: null,
    processed_rows_per_second: null,
    reported_at: each.looked_at,
    client: `follow ${each.follow}`,
  };
}

function notes(each) {
  if (each.state !== "stopped") {
    return each.checkpoint;
  }
  const since = each.batch_at === null ? "" : ` since ${new Date(each.batch_at * 1000).toISOString()}`;
  return `nothing${since}, and ${count(each.lag)} records wait`;
}

function milliseconds(value) {
  return value === null ? UNKNOWN : `${count(value)} ms`;
}

export function open(root) {
  return openListing(root, {
    title: "Streaming queries",
    path: "v1/queries",
    rows: (answer) => [
      ...answer.queries.map((row) => ({ ...row, began_at: Date.parse(row.time) / 1000 || null })),
      ...(answer.followed ?? []).map(followed),
    ],
    table: {
      label: "streaming queries",
      columns: COLUMNS,
      id: (row) => `${row.client} ${row.run_id}`,
      search: (row) => `${row.name} ${row.id} ${row.groups.join(" ")} ${row.client}`,
      sorted: [1, "desc"],
      empty: "No driver has reported a streaming query (commit_offsets does), and none is followed ([follow.NAME]).",
    },
  });
}
