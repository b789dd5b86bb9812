// All groups, the most urgent first.

import { sparkline } from "../chart.js";
import { count, duration, el, meaning, plural, rate, sentence, setText, tone } from "../dom.js";
import { groupColumn, numberColumn, statusColumn, Table } from "../table.js";

/** Return the look of a group: the worst of its lag, its commits and its reading. */
export function look(group) {
  const worse = group.failing > 0 || group.error !== null;
  return worse ? "bad" : tone(group.status);
}

function word(group) {
  if (tone(group.status) === "bad" || look(group) !== "bad") {
    return group.status ?? (group.watched ? "new" : "not watched");
  }
  return group.failing > 0 ? "failing" : "unreadable";
}

/** Return Kafka's state of a group, or what it is if it commits no offsets. */
function state(group) {
  const plain = [undefined, null, "classic", "consumer", "unknown", "store"].includes(group.type);
  return (plain ? group.state : group.type) ?? "–";
}

function hint(group) {
  return group.error?.message ?? meaning(group.status);
}

const COLUMNS = [
  groupColumn(24, 17, (row) => row.name),
  statusColumn("Status", 15, word, look, { narrow: 12, hint }),
  numberColumn("Lag", 10, (row) => row.lag, count, { narrow: 9 }),
  numberColumn("Behind", 10, (row) => row.lag_seconds, duration),
  numberColumn("Committed", 10, (row) => row.rate_out, rate),
  { title: "Lag lately", width: 12, text: (row) => row.lag, draw: sparkline },
  { title: "State", width: 9, text: state },
  numberColumn("Members", 9, (row) => row.members),
  numberColumn("Partitions", 10, (row) => row.partitions),
  numberColumn("Failing", 8, (row) => row.failing),
  numberColumn("Pending acks", 13, (row) => row.pending_acks),
];

export function open(root) {
  const summary = el("p.summary");
  const hints = el("p.quiet");
  const table = new Table({
    label: "groups",
    columns: COLUMNS,
    id: (row) => row.name,
    search: (row) => `${row.name} ${row.clients.join(" ")}`,
    sorted: [1, "desc"],
    empty: "This cluster has no consumer groups.",
  });
  root.append(el("div.heading", {}, el("h1", {}, "Groups"), summary), hints, table.root);
  return {
    onOverview(answer) {
      const bad = answer.groups.filter((each) => look(each) === "bad").length;
      const all = plural(answer.groups.length, "group");
      const attention = `${count(bad)} of ${all} ${bad === 1 ? "needs" : "need"} attention.`;
      const well = answer.groups_error ? "; not all could be read." : ", none in trouble.";
      setText(summary, bad ? attention : `${all}${well}`);
      const told = [answer.groups_error?.message, answer.watch.hint].filter(Boolean);
      setText(hints, told.map(sentence).join(" "));
      table.set(answer.groups);
    },
    close() {},
  };
}
