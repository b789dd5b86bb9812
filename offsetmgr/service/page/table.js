// A table of any length: only the rows in sight, and a few beside them, are elements.

import {
  button, count, el, groupLink, NAMELESS, setLink, setText, urgency, visible,
} from "./dom.js";

const ROW_PX = 28; // as in page.css
const SPARE_ROWS = 8;
const NARROW = matchMedia("(max-width: 640px)"); // as in page.css

/**
 * A sortable, filterable table.
 *
 * A column has a `title`, a `width` in characters, and one for a `narrow` screen, which leaves out
 * columns without it.  Of a row it has the `text(row)`, and maybe a `brief(row)` for there; if it
 * differs, the value to `sort(row)` by;
 * a `href(row)`, the `tone(row)` of a status, a longer `hint(row)`.  `draw(cell, row)` stands for
 * a text, `act(row)` makes it a button.  `right` is for numbers; `first`, the first order, may be
 * "desc".
 */
export class Table {
  #columns;
  #id;
  #search;
  #all = [];
  #rows = [];
  #elements = new Map();
  #sorted;
  #frame = 0;

  constructor({ label, columns, id, search, sorted, empty, tools = [] }) {
    this.#columns = columns;
    this.#id = id;
    this.#search = search;
    this.#sorted = sorted;
    this.filter = el("input", {
      type: "search",
      placeholder: "Filter  ( / )",
      ariaLabel: `Filter ${label}`,
      oninput: () => this.#arrange(),
    });
    this.counter = el("span.quiet");
    const narrow = columns.reduce((sum, column) => sum + (column.narrow ?? 0), 0);
    this.heads = columns.map((column, index) => this.#head(column, index, narrow));
    this.above = spacer();
    this.below = spacer();
    this.body = el("tbody", {}, this.above, this.below);
    this.table = el(
      "table", { ariaLabel: label },
      el("thead", {}, el("tr", {}, ...this.heads)),
      this.body,
    );
    const region = { hidden: true, tabIndex: 0, role: "region", ariaLabel: label };
    this.scroller = el("div.scroll", region, this.table);
    this.scroller.addEventListener("scroll", () => this.#later(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.#onKey(event));
    this.none = el("p.empty", { hidden: true }, empty);
    this.root = el(
      "section.table", {},
      el("div.tools", {}, this.filter, this.counter, ...tools),
      this.scroller,
      this.none,
    );
    new ResizeObserver(() => this.#later()).observe(this.scroller);
  }

  /** Show these rows. */
  set(rows) {
    this.#all = rows;
    this.#arrange();
  }

  #head(column, index, narrow) {
    const title = column.act ? column.title : button(column.title, () => this.#sortBy(index));
    const head = el("th", { scope: "col", className: classes(column) }, title);
    head.style.setProperty("--width", column.width);
    head.style.setProperty("--narrow", column.narrow / narrow);
    return head;
  }

  #sortBy(index) {
    const [now, order] = this.#sorted;
    const turned = order === "asc" ? "desc" : "asc";
    this.#sorted = [index, index === now ? turned : this.#columns[index].first ?? "asc"];
    this.#arrange();
  }

  #arrange() {
    const wanted = this.filter.value.trim().toLowerCase();
    const [index, order] = this.#sorted;
    const { sort, text } = this.#columns[index];
    const found = wanted
      ? this.#all.filter((row) => this.#search(row).toLowerCase().includes(wanted))
      : this.#all;
    this.#rows = inOrder(found, sort ?? text, order === "desc" ? -1 : 1);
    this.heads.forEach((head, each) => {
      head.ariaSort = each === index ? `${order}ending` : null;
    });
    const all = count(this.#all.length);
    setText(this.counter, wanted ? `${count(this.#rows.length)} of ${all}` : all);
    this.table.ariaRowCount = this.#rows.length + 1;
    this.none.hidden = this.#all.length > 0;
    this.scroller.hidden = this.#all.length === 0;
    this.#later();
  }

  #later() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render();
    });
  }

  #render() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / ROW_PX) - SPARE_ROWS);
    const last = Math.ceil((scrollTop + clientHeight) / ROW_PX) + SPARE_ROWS;
    const shown = this.#rows.slice(first, last);
    const kept = new Map();
    let place = this.above;
    shown.forEach((row, offset) => {
      let id = this.#id(row);
      while (kept.has(id)) { // such as an address that is named twice
        id += " again";
      }
      const element = this.#elements.get(id) ?? this.#newRow();
      kept.set(id, element);
      this.#fill(element, row, first + offset);
      if (place.nextSibling !== element) {
        place.after(element);
      }
      place = element;
    });
    for (const [id, element] of this.#elements) {
      if (!kept.has(id)) {
        const focused = element.contains(document.activeElement);
        element.remove();
        if (focused) {
          this.scroller.focus({ preventScroll: true });
        }
      }
    }
    this.#elements = kept;
    this.above.style.height = `${first * ROW_PX}px`;
    this.below.style.height = `${Math.max(0, this.#rows.length - first - shown.length) * ROW_PX}px`;
  }

  #newRow() {
    const row = el("tr", { tabIndex: -1 });
    for (const column of this.#columns) {
      const cell = el("td", { className: classes(column) });
      if (column.href) {
        cell.append(el("a"));
      } else if (column.act) {
        cell.append(button("", () => column.act(row.shown)));
      }
      row.append(cell);
    }
    return row;
  }

  #fill(element, row, index) {
    element.shown = row;
    element.ariaRowIndex = index + 2;
    this.#columns.forEach((column, each) => {
      const cell = element.cells[each];
      if (column.draw) {
        column.draw(cell, row);
        return;
      }
      const text = (NARROW.matches && column.brief ? column.brief : column.text)(row);
      setText(cell.firstElementChild ?? cell, text);
      if (column.href) {
        setLink(cell.firstElementChild, column.href(row));
      }
      if (column.tone) {
        cell.dataset.tone = column.tone(row);
      }
      cell.title = visible(column.hint?.(row) ?? column.text(row));
    });
  }

  /** Up and down go from row to row, Enter follows the row's link. */
  #onKey(event) {
    const row = event.target.closest("tbody tr");
    const now = row ? row.ariaRowIndex - 2 : Math.floor(this.scroller.scrollTop / ROW_PX) - 1;
    const last = this.#rows.length - 1;
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && event.target === row) {
      row.querySelector("a, button")?.click();
    } else if (to !== undefined) {
      event.preventDefault();
      this.#focus(Math.min(last, Math.max(0, to)));
    }
  }

  #focus(index) {
    const { scrollTop, clientHeight } = this.scroller;
    const top = index * ROW_PX;
    if (top < scrollTop) {
      this.scroller.scrollTop = top;
    } else if (top + 2 * ROW_PX > scrollTop + clientHeight) {
      this.scroller.scrollTop = top + 2 * ROW_PX - clientHeight; // below the head
    }
    this.#render();
    this.#elements.get(this.#id(this.#rows[index]))?.focus({ preventScroll: true });
  }
}

/** Return a column that shows a status as a word with a colour and a mark. */
export function statusColumn(title, width, text, tone, more = {}) {
  return { title, width, text, tone, sort: (row) => urgency(tone(row)), first: "desc", ...more };
}

/** Return a column with the group that `name(row)` names, and a link to it; null is no group. */
export function groupColumn(width, narrow, name) {
  const text = (row) => (name(row) === null ? "" : name(row) || NAMELESS);
  const href = (row) => (name(row) === null ? null : groupLink(name(row)));
  return { title: "Group", width, narrow, text, href };
}

/** Return a column of numbers. */
export function numberColumn(title, width, sort, format = count, more = {}) {
  const text = (row) => format(sort(row));
  return { title, width, sort, text, right: true, first: "desc", ...more };
}

function inOrder(rows, value, sign) {
  const keyed = rows.map((row) => [value(row), row]);
  keyed.sort(([left], [right]) => {
    if (left === right) {
      return 0;
    }
    if (left === null || left === undefined) {
      return 1; // what is not known is last either way
    }
    if (right === null || right === undefined) {
      return -1;
    }
    return left < right ? -sign : sign;
  });
  return keyed.map(([, row]) => row);
}

function classes(column) {
  return [column.right && "right", !column.narrow && "wide", column.tone && "status"]
    .filter(Boolean)
    .join(" ");
}

function spacer() {
  return el("tr.spacer", { ariaHidden: "true" }, el("td"));
}
