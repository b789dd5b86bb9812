// Streaming queries, as their drivers report them.

import { ago, count, rate, UNKNOWN } from "../dom.js";
import { groupColumn, numberColumn, statusColumn } from "../table.js";
import { openListing } from "./listing.js";

const LOOK = { running: "good", failed: "bad" };

const COLUMNS = [
  { title: "Query", width: 20, narrow: 13, text: (row) => row.name ?? row.id },
  statusColumn("State", 10, (row) => row.state, (row) => LOOK[row.state] ?? "", {
    narrow: 11,
    hint: (row) => row.error ?? "",
  }),
  groupColumn(18, undefined, (row) => row.groups[0] ?? ""),
  numberColumn("Last batch", 11, (row) => row.batch_id, count, { narrow: 12 }),
  numberColumn("Records", 9, (row) => row.input_rows),
  numberColumn("Took", 9, (row) => row.batch_ms, milliseconds),
  numberColumn("Input", 10, (row) => row.input_rows_per_second, rate),
  numberColumn("Processed", 10, (row) => row.processed_rows_per_second, rate),
  numberColumn("Reported", 13, (row) => row.reported_at, ago),
  { title: "Client", width: 14, text: (row) => row.client },
];

function milliseconds(value) {
  return value === null ? UNKNOWN : `${count(value)} ms`;
}

export function open(root) {
  return openListing(root, {
    title: "Streaming queries",
    path: "v1/queries",
    rows: (answer) => answer.queries,
    table: {
      label: "streaming queries",
      columns: COLUMNS,
      id: (row) => `${row.client} ${row.run_id}`,
      search: (row) => `${row.name} ${row.id} ${row.groups.join(" ")} ${row.client}`,
      sorted: [1, "desc"],
      empty: "No driver has reported a streaming query. Jobs that use commit_offsets do so.",
    },
  });
}
