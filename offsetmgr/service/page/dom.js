// Elements and texts.  Names and metadata come from anybody: they are only ever set as text, with
// characters that are not to be seen, or that turn the direction of writing, as escapes.

import { now } from "./api.js";

/** Return a text as the commands print it, such as "two\\nlines". */
export function visible(text) {
  return String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (character) => {
    const code = character.codePointAt(0).toString(16);
    return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  });
}

/** Return an element; `tag` may have classes ("p.note"), attributes may be listeners. */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  element.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in element) {
      element[key] = value;
    } else if (value !== null && value !== undefined) {
      element.setAttribute(key, value);
    }
  }
  const shown = children.filter((child) => child !== null);
  element.append(...shown.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** Return a button that calls `onclick`; `tag` may have classes. */
export function button(text, onclick, tag = "button") {
  return el(tag, { type: "button", onclick }, text);
}

/** Set a text only if it differs, so that what did not change costs nothing. */
export function setText(element, text) {
  const shown = visible(text ?? "");
  if (element.textContent !== shown) {
    element.textContent = shown;
  }
}

/** Set where a link leads; null makes it a text. */
export function setLink(link, href) {
  if (href === null) {
    link.removeAttribute("href");
  } else {
    link.href = href;
  }
}

const wholeNumber = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const rateNumber = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

export const UNKNOWN = "–";
export const NAMELESS = "''"; // stands for a group without a name, which Kafka takes

export function count(value) {
  return value === null || value === undefined ? UNKNOWN : wholeNumber.format(value);
}

/** Return "12.5/s". */
export function rate(value) {
  if (value === null || value === undefined) {
    return UNKNOWN;
  }
  const format = value < 1_000 ? rateNumber : wholeNumber;
  return `${format.format(value)}/s`;
}

/** Return a duration in its two largest units, "2 h 5 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) {
    return UNKNOWN;
  }
  let left = Math.max(0, Math.round(seconds));
  const first = UNITS.findIndex(([, size]) => left >= size);
  if (first < 0) {
    return "0 s";
  }
  const parts = [];
  for (const [unit, size] of UNITS.slice(first, first + 2)) {
    const number = Math.floor(left / size);
    left -= number * size;
    if (number > 0) {
      parts.push(`${number} ${unit}`);
    }
  }
  return parts.join(" ");
}

/** Return how long ago a time (seconds since 1970) is. */
export function ago(at) {
  if (at === null || at === undefined) {
    return UNKNOWN;
  }
  return `${duration(now() - at)} ago`;
}

/** Return a message of others with a full stop, unless it ends like a sentence. */
export function sentence(text) {
  return /[.?!]$/.test(text) ? text : `${text}.`;
}

/** Return a time (seconds since 1970) as the commands print it, in UTC. */
export function clock(at) {
  if (at === null || at === undefined) {
    return UNKNOWN;
  }
  const [day, time] = new Date(at * 1000).toISOString().split("T");
  const today = new Date().toISOString().startsWith(day);
  return today ? time.slice(0, 8) : `${day} ${time.slice(0, 8)}`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// Burrow's words and one of our own, what they mean, and how they look.
const STATUS = {
  OK: ["good", "the lag is 0, or falls"],
  WARN: ["warn", "it commits, and falls further behind"],
  ERR: ["bad", "a partition is stuck or went back"],
  STOP: ["bad", "nothing has been committed for some time, although records wait"],
  STALL: ["bad", "the same offset is committed again and again, although records wait"],
  REWIND: ["bad", "the offset went back, and has not caught up"],
  "OUT OF RANGE": ["bad", "the committed offset lies outside its log"],
};

export function meaning(status) {
  return STATUS[status]?.[1] ?? "";
}

/** Return the look of a status: "good", "warn", "bad", or "" where nothing is known. */
export function tone(status) {
  return STATUS[status]?.[0] ?? "";
}

/** Return how urgent a tone is, for sorting. */
export function urgency(look) {
  return ["", "good", "warn", "bad"].indexOf(look);
}

/** Return the address of a group's view. */
export function groupLink(name, tab = "") {
  return `#/groups/${encodeURIComponent(name)}${tab && `/${tab}`}`;
}
