// A view that is one table of what the service answers at one address.

import { get } from "../api.js";
import { el, setText } from "../dom.js";
import { Poll } from "../poll.js";
import { Table } from "../table.js";

/**
 * Open such a view: `rows(answer)` are its rows, `summary` an element beside the title.  `failed`
 * is the text for a question that failed; by default it is the error's own.
 */
export function openListing(root, { title, path, rows, table, summary = null, failed, everyMs }) {
  const note = el("p.quiet");
  const list = new Table(table);
  root.append(el("div.heading", {}, el("h1", {}, title), summary), note, list.root);
  const poll = new Poll(
    (signal) => get(path, {}, signal),
    (answer) => {
      setText(note, "");
      list.set(rows(answer));
    },
    (error) => setText(note, failed ?? error.message),
    { everyMs },
  );
  return { close: () => poll.stop() };
}
