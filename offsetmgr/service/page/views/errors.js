// The live stream of commit errors, one entry for each cause.

import { clock, count, el, groupLink, plural, sentence, setText } from "../dom.js";
import { failures } from "../failures.js";

const SHOWN_PARTITIONS = 8;
const FAULT = {
  caller: "the job that submits the offset",
  operator: "whoever runs the group, its ACLs or this configuration",
  broker: "Kafka",
  network: "the network between the service and Kafka",
};

export function open(root) {
  const note = el("p.quiet");
  const list = el("div.causes");
  const cards = new Map();
  root.append(el("div.heading", {}, el("h1", {}, "Commit errors"), note), list);
  const show = () => {
    const { dropped } = failures;
    const lost = dropped ? `${count(dropped)} errors came too fast to be shown. ` : "";
    const live = failures.causes.size ? "The newest cause is first." : "No commit has failed.";
    setText(note, failures.trouble || lost + live);
    for (const [key, card] of cards) {
      if (!failures.causes.has(key)) {
        card.remove();
        cards.delete(key);
      }
    }
    let place = null;
    for (const cause of [...failures.causes.values()].reverse()) {
      const card = cards.get(cause.key) ?? newCard(cause);
      cards.set(cause.key, card);
      fill(card, cause);
      const next = place === null ? list.firstChild : place.nextSibling;
      if (next !== card) {
        list.insertBefore(card, next);
      }
      place = card;
    }
  };
  const end = failures.listen(show);
  show();
  return { close: end };
}

function newCard({ group, error }) {
  const link = el("a", { href: groupLink(group) }, group);
  return el(
    "article.cause", { "data-tone": error.notice ? "warn" : "bad" },
    el("h2", {}, el("span.status", {}, error.code), " ", link),
    el("p.quiet"), el("p"), el("p"), el("p.quiet"),
  );
}

function fill(card, { error, times, firstAt, lastAt, partitions }) {
  const [, when, message, cure, where] = card.children;
  const again = times > 1 ? `${plural(times, "time")} since ${clock(firstAt)}, last at ` : "";
  setText(when, `${again}${clock(lastAt)} UTC`);
  setText(message, sentence(error.message));
  setText(cure, toDo(error));
  const named = [...partitions].slice(0, SHOWN_PARTITIONS).join(", ");
  const more = partitions.size - SHOWN_PARTITIONS;
  setText(where, `Partitions: ${named}${more > 0 ? ` and ${count(more)} more` : ""}`);
}

function toDo(error) {
  const cure = error.fix ?? error.hint ?? "";
  const parts = [
    cure && !error.message.includes(cure) ? `To do: ${cure}.` : "",
    error.fault ? `It is up to ${FAULT[error.fault] ?? error.fault}.` : "",
    error.retriable ? "The service tries again by itself." : "",
  ];
  return parts.filter(Boolean).join(" ");
}
