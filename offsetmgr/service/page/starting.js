// The dialogue with the offsets of a group as Spark's option startingOffsets.

import { get } from "./api.js";
import { button, el, setText } from "./dom.js";

/** Show the JSON with which a query without a checkpoint resumes from the group. */
export async function offerStartingOffsets(group) {
  const text = el("textarea", {
    readOnly: true, rows: 6, ariaLabel: "startingOffsets", onfocus: () => text.select(),
  });
  const message = el("p.message", { role: "alert" });
  const status = el("p.quiet", { role: "status" }, "Asking Kafka …");
  const copy = button("Copy", async () => {
    text.focus();
    try {
      await navigator.clipboard.writeText(text.value);
      setText(status, "Copied.");
    } catch {
      setText(status, "This browser does not let the page copy: press Ctrl+C."); // such as on HTTP
    }
  }, "button.main");
  copy.disabled = true;
  const dialog = el(
    "dialog", { "aria-labelledby": "starting-title", onclose: () => dialog.remove() },
    el(
      "form", { method: "dialog" },
      el("h2", { id: "starting-title" }, "Start a Spark query at ", el("span.name", {}, group)),
      el("p.quiet", {}, "The value of the option startingOffsets, for a query without a checkpoint."),
      text, message, status,
      el("div.buttons", {}, el("button", {}, "Close"), copy),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  try {
    const answer = await get("v1/starting-offsets", { group });
    text.value = answer.starting_offsets;
    copy.disabled = false;
    setText(status, "");
    text.focus();
  } catch (error) {
    setText(status, "");
    setText(message, error.message);
  }
}
