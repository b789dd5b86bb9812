// Every commit of a group that Kafka still has, and the way back to before each of them.

import { get } from "../api.js";
import { count, el, setText } from "../dom.js";
import { numberColumn, statusColumn, Table } from "../table.js";

const SINCE = { "1h": "the last hour", "1d": "the last day", "7d": "the last 7 days", "": "all" };
const MOST_STEPS = 5_000;
const LOOK = { backward: "bad", deleted: "bad" };

/** Open the history; `reset(preset)` asks for a plan. */
export function openHistory(root, group, reset) {
  const note = el("p.quiet");
  const since = el(
    "select", { ariaLabel: "Commits of", onchange: load },
    ...Object.entries(SINCE).map(([value, text]) => el("option", { value }, text)),
  );
  const table = new Table({
    label: "commits",
    columns: [
      {
        title: "Time (UTC)", width: 24, narrow: 12, text: shownTime,
        brief: (row) => shownTime(row).slice("2026-".length, "2026-01-31 13:02".length),
      },
      {
        title: "Topic", width: 20, narrow: 9, text: (row) => row.topic,
        brief: (row) => `${row.topic} ${row.partition}`,
      },
      numberColumn("Partition", 11, (row) => row.partition),
      numberColumn("From", 14, (row) => row.from, count, { narrow: 9 }),
      numberColumn("To", 14, (row) => row.to, count, { narrow: 9 }),
      statusColumn("Change", 24, change, look),
      { title: "Metadata", width: 20, text: (row) => row.metadata },
      { title: "Undo", width: 10, narrow: 7, text: () => "Undo …", brief: () => "Undo", act: undo },
    ],
    id: (row) => row.id,
    search: (row) => `${row.time} ${row.topic} ${row.partition} ${row.change} ${row.metadata}`,
    sorted: [0, "desc"],
    empty: "Kafka has no such commits of this group.",
    tools: [since],
  });
  root.append(note, table.root);
  let asked = 0;
  load();

  function undo(row) {
    reset({ mode: "to-history", value: justBefore(row.time) });
  }

  async function load() {
    setText(note, "Reading Kafka's log of commits …");
    const number = asked += 1;
    try {
      const query = { group, since: since.value || null, limit: MOST_STEPS };
      const { steps, left_out: left } = await get("v1/history", query);
      if (number !== asked) {
        return; // an answer to what was chosen before
      }
      setText(note, left > 0 ? `${count(left)} older commits are left out.` : "");
      table.set(steps.map((step, id) => ({ ...step, id })));
    } catch (error) {
      if (number === asked) {
        setText(note, error.message);
      }
    }
  }

  return { refresh: load };
}

function shownTime(row) {
  return row.time.replace("T", " ").replace("Z", "");
}

function change(row) {
  return row.cause ? `${row.change}: ${row.cause}` : row.change;
}

function look(row) {
  return LOOK[row.change] ?? "";
}

/** Return the time one millisecond before, as text. */
function justBefore(time) {
  return new Date(Date.parse(time) - 1).toISOString();
}

