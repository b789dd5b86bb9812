// The dialogue of a reset: first the plan, then its execution.

import { post } from "./api.js";
import { button, count, el, plural, setText } from "./dom.js";
import { numberColumn, Table } from "./table.js";

// The modes of `offsetmgr reset`, with what is to be typed for them.
const MODES = {
  "to-earliest": ["the start of each log"],
  "to-latest": ["the end of each log"],
  "to-offset": ["an offset", "such as 42"],
  "shift-by": ["so many records further", "such as -100"],
  "to-datetime": ["a time", "such as 2026-01-31T13:05:00 (UTC)"],
  "by-duration": ["so long ago", "such as 2h30m"],
  "to-current": ["where it is committed now"],
  "from-group": ["the offsets of another group", "its name"],
  "to-history": ["where it stood at a past time", "such as 2026-01-31T13:05:00 (UTC)"],
};

const COLUMNS = [
  { title: "Topic", width: 14, narrow: 9, text: (row) => row.topic },
  numberColumn("Partition", 10, (row) => row.partition, count, { narrow: 9 }),
  numberColumn("Now", 11, (row) => row.current),
  numberColumn("New", 11, (row) => row.new, count, { narrow: 9 }),
  numberColumn("Change", 11, change, signed, { narrow: 8 }),
  numberColumn("Lag after", 11, (row) => row.lag),
  { title: "Note", width: 24, text: (row) => row.note },
];

function change(row) {
  const isKnown = row.new !== null && row.current !== null;
  return isKnown ? Number(BigInt(row.new) - BigInt(row.current)) : null;
}

function signed(value) {
  return value > 0 ? `+${count(value)}` : count(value);
}

/** Asks how a group shall be reset; with a `preset` {mode, value} it makes the plan at once. */
export class ResetDialogue {
  #group;
  #onDone;
  #plan = null;
  #form = 0; // rises with each change of the form: a plan is for one state of it

  constructor(group, preset, onDone) {
    this.#group = group;
    this.#onDone = onDone;
    this.mode = el(
      "select", { id: "mode", onchange: () => this.#changed() },
      ...Object.entries(MODES).map(([value, [text]]) => el("option", { value }, text)),
    );
    this.value = el("input", { id: "value", autocomplete: "off" });
    this.valueLabel = el("label", { htmlFor: "value" }, "Value");
    this.topics = el("input", {
      id: "topics", placeholder: "all that is committed", autocomplete: "off",
    });
    this.live = el("input", { id: "live", type: "checkbox" });
    this.liveLabel = el(
      "label.check", { htmlFor: "live", hidden: true }, this.live,
      " The job keeps running: let the service set the offsets. The job's next batch may commit "
      + "over lower ones, and at its next start its checkpoint decides.",
    );
    this.message = el("p.message", { role: "alert" });
    this.summary = el("p.summary", { role: "status" });
    this.table = new Table({
      label: "plan",
      columns: COLUMNS,
      id: (row) => `${row.topic} ${row.partition}`,
      search: (row) => `${row.topic} ${row.partition} ${row.note}`,
      sorted: [0, "asc"],
      empty: "The group has no such partitions.",
    });
    this.table.root.hidden = true;
    this.planButton = el("button", { type: "submit" }, "Show the plan");
    this.doButton = button("Execute", () => this.#execute(), "button.main");
    this.closeButton = button("Cancel", () => this.dialog.close());
    const form = el(
      "form", {},
      el("h2", { id: "reset-title" }, "Reset offsets of ", el("span.name", {}, group)),
      el(
        "div.fields", {},
        el("label", { htmlFor: "mode" }, "To"), this.mode,
        this.valueLabel, this.value,
        el("label", { htmlFor: "topics" }, "Topics"), this.topics,
      ),
      el("p.quiet", {}, "Topics: orders or orders:0,3, several with spaces between them. "
        + "Nothing changes before you execute the plan."),
      this.liveLabel, this.message, this.summary, this.table.root,
      el("div.buttons", {}, this.closeButton, this.planButton, this.doButton),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#makePlan();
    });
    form.addEventListener("input", (event) => {
      if (event.target !== this.table.filter) {
        this.#changed();
      }
    });
    this.dialog = el("dialog", { "aria-labelledby": "reset-title" }, form);
    this.dialog.addEventListener("close", () => this.dialog.remove());
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.mode.value = preset?.mode ?? "to-earliest";
    this.value.value = preset?.value ?? "";
    this.#changed();
    if (preset) {
      this.#makePlan();
    }
  }

  /** Forget the plan: it is not one for what the form says now. */
  #changed() {
    const [, hint] = MODES[this.mode.value];
    this.value.hidden = this.valueLabel.hidden = hint === undefined;
    this.value.required = hint !== undefined;
    this.value.placeholder = hint ?? "";
    this.#plan = null;
    this.#form += 1;
    this.doButton.disabled = true;
    this.table.root.hidden = true;
    setText(this.doButton, "Execute");
    setText(this.message, "");
    setText(this.summary, "");
  }

  async #makePlan() {
    const { value: mode } = this.mode;
    const topics = this.topics.value.split(/\s+/).filter(Boolean);
    this.#changed();
    const form = this.#form;
    await this.#working("Making the plan …", "", async () => {
      const plan = await post("v1/plan", {
        group: this.#group,
        mode,
        value: MODES[mode].length > 1 ? this.value.value.trim() : null,
        topics: topics.length ? topics : null,
        live: this.live.checked,
      });
      if (form === this.#form) {
        this.#plan = plan;
        this.#showPlan();
      }
    });
  }

  #showPlan() {
    const { partitions, refused, can_live: canLive } = this.#plan;
    const changed = partitions.filter((row) => row.new !== null && row.new !== row.current);
    this.liveLabel.hidden = !canLive && !this.live.checked;
    setText(this.message, refused ? refused.message : "");
    setText(this.summary, summed(partitions, changed));
    this.table.set(partitions);
    this.table.root.hidden = false;
    this.doButton.disabled = refused !== null || this.#targets().length === 0;
    setText(this.doButton, `Set ${plural(this.#targets().length, "offset")}`);
  }

  #targets() {
    return this.#plan.partitions.filter((row) => row.new !== null);
  }

  async #execute() {
    const partitions = this.#targets().map((row) => ({
      topic: row.topic,
      partition: row.partition,
      current: row.current,
      new: row.new,
      metadata: row.metadata ?? "",
    }));
    const { live, topic_ids } = this.#plan;
    this.doButton.disabled = true;
    const unknown = "; it is not known whether the offsets were set: make a new plan";
    await this.#working("Setting the offsets …", unknown, async () => {
      const done = await post("v1/reset", { group: this.#group, live, partitions, topic_ids });
      const failed = done.partitions.filter((row) => /^not (done|known)/.test(row.note));
      const set = plural(partitions.length - failed.length, "offset");
      setText(this.summary, `Done: ${set} set.`);
      const why = `${plural(failed.length, "partition")} may not be set; the notes say why.`;
      setText(this.message, failed.length ? why : "");
      this.table.set(done.partitions);
      this.table.root.hidden = false;
      this.planButton.hidden = this.doButton.hidden = true;
      setText(this.closeButton, "Close");
      this.closeButton.focus();
      this.#onDone();
    });
  }

  /** Do `work`; `unknown` is added to errors after which it may have been done. */
  async #working(text, unknown, work) {
    this.planButton.disabled = true;
    setText(this.summary, text);
    try {
      await work();
    } catch (error) {
      setText(this.summary, "");
      const isRefused = error.status >= 400 && error.status < 500;
      setText(this.message, error.message + (isRefused ? "" : unknown));
    }
    this.planButton.disabled = false;
  }
}

/** Return what a plan means: how much is read again, and how much is left out. */
function summed(rows, changed) {
  const moves = changed.map(change).filter((each) => each !== null);
  const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
  const again = -sum(moves.filter((each) => each < 0));
  const skipped = sum(moves.filter((each) => each > 0));
  const parts = [
    `${count(changed.length)} of ${plural(rows.length, "partition")} change`,
    again > 0 && `${plural(again, "record")} would be read again`,
    skipped > 0 && `${plural(skipped, "record")} would be skipped`,
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}
