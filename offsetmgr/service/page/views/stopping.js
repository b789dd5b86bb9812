// What a service that stops has not committed yet.

import { count, duration, el, plural, setText } from "../dom.js";
import { groupColumn, numberColumn } from "../table.js";
import { openListing } from "./listing.js";

const COLUMNS = [
  groupColumn(24, 13, (row) => row.group),
  { title: "Topic", width: 18, narrow: 11, text: (row) => row.topic },
  numberColumn("Partition", 10, (row) => row.partition, count, { narrow: 9 }),
  numberColumn("Submitted", 14, (row) => row.submitted?.offset),
  numberColumn("Committed", 14, (row) => row.committed?.offset),
  { title: "Client", width: 18, text: (row) => row.client ?? "" },
  { title: "Error", width: 44, text: (row) => row.last_error?.message ?? "" },
];

export function open(root) {
  const summary = el("p.summary");
  return openListing(root, {
    title: "Stopping",
    path: "v1/draining",
    rows(answer) {
      setText(summary, answer.draining ? progress(answer) : "The service is not stopping.");
      return answer.partitions;
    },
    summary,
    failed: "The service has stopped or does not answer; this was the last it said.",
    everyMs: 1_000,
    table: {
      label: "uncommitted offsets",
      columns: COLUMNS,
      id: (row) => `${row.group} ${row.topic} ${row.partition}`,
      search: (row) => `${row.group} ${row.topic} ${row.client}`,
      sorted: [0, "asc"],
      empty: "Nothing is left to commit.",
    },
  });
}

function progress({ deadline_s: left, managers, uncommitted }) {
  const time = left === null ? "" : `, ${duration(left)} left`;
  return `${plural(uncommitted, "offset")} of ${plural(managers, "partition")} `
    + `not committed yet${time}.`;
}
