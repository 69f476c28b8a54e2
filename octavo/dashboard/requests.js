// The table of requests: rows are kept and changed in place, so that focus and selection stay.

import { el, setText } from "./dom.js";
import { NONE, count, duration, percent, plural, shortId } from "./format.js";

const acceptance = (row) =>
  row.num_drafted_tokens ? row.num_accepted_tokens / row.num_drafted_tokens : undefined;

/** Columns: heading, value to sort by, text, and whether it is left out where no row has any. */
const COLUMNS = [
  ["Request", (row, id) => id, null],
  ["Key", (row) => row.client ?? "", (value) => value || NONE, true],
  ["State", (row) => row.state, (value) => value],
  ["Priority", (row) => row.priority, count, true],
  ["Prompt", (row) => row.num_prompt_tokens, count],
  ["Cached", (row) => row.num_cached_tokens, count],
  ["Computed", (row) => row.num_computed_tokens, count],
  ["Generated", (row) => row.num_generated_tokens, count],
  ["Blocks", (row) => row.num_blocks, count],
  ["Empty slots", (row) => row.num_wasted_slots, count],
  ["Queued", (row) => row.queue_s, duration],
  ["First token", (row) => row.first_token_s, duration],
  ["Per token", (row) => row.inter_token_s, duration],
  ["Guesses right", acceptance, percent, true],
  ["Preempted", (row) => row.num_preemptions, count, true],
];
const TEXT_COLUMNS = 3;

export class Requests {
  /** `on.select(id)` and `on.abort(id)` are told of clicks. */
  constructor(root, none, filter, on) {
    this.root = root;
    this.none = none;
    this.filter = filter;
    this.on = on;
    this.body = root.querySelector("tbody");
    this.sort = { column: null, isDown: false };
    this.rows = new Map();
    this.#makeHead(root.querySelector("thead tr"));
    filter.addEventListener("input", () => this.show(this.shown ?? [], this.selected));
  }

  /** Shows rows, as [id, row]; `selected` is the id of one of them. */
  show(rows, selected) {
    this.shown = rows;
    this.selected = selected;
    const wanted = this.filter.value.trim().toLowerCase();
    const fits = ([id, row]) =>
      !wanted ||
      [id, row.client ?? "", row.state].some((text) => text.toLowerCase().includes(wanted));
    const visible = this.#sorted(rows.filter(fits));
    this.#hideColumns(rows);
    this.#dropOthers(new Set(visible.map(([id]) => id)));
    visible.forEach(([id, row], index) => {
      const line = this.rows.get(id) ?? this.#makeRow(id);
      this.#fill(line, id, row, id === selected);
      if (this.body.children[index] !== line.node) {
        this.body.insertBefore(line.node, this.body.children[index] ?? null);
      }
    });
    this.root.hidden = !visible.length;
    this.none.hidden = Boolean(visible.length);
    setText(
      this.none,
      rows.length
        ? `None of ${plural(rows.length, "request")} fits the filter.`
        : "No request runs or waits. Send one from the playground below.",
    );
  }

  #makeHead(head) {
    COLUMNS.forEach(([name], column) => {
      const button = el(
        "button",
        { type: "button", on: { click: () => this.#sortBy(column) } },
        name,
      );
      head.append(
        el("th", { scope: "col", className: column < TEXT_COLUMNS ? "left" : "" }, button),
      );
    });
    head.append(el("th", { scope: "col" }, el("span", { className: "sr" }, "Abort")));
    this.head = head;
  }

  #sortBy(column) {
    const isSame = this.sort.column === column;
    if (isSame && this.sort.isDown) this.sort = { column: null, isDown: false };
    else this.sort = { column, isDown: isSame };
    [...this.head.children].forEach((cell, k) => {
      if (k === this.sort.column) {
        cell.setAttribute("aria-sort", this.sort.isDown ? "descending" : "ascending");
      } else cell.removeAttribute("aria-sort");
    });
    this.show(this.shown ?? [], this.selected);
  }

  /** In order of arrival, or as a column says; what has no value comes last. */
  #sorted(rows) {
    const { column, isDown } = this.sort;
    if (column === null) return rows;
    const value = COLUMNS[column][1];
    const keyed = rows.map(([id, row]) => [value(row, id), id, row]);
    const sign = isDown ? -1 : 1;
    keyed.sort(([a], [b]) => {
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * (a < b ? -1 : Number(a > b));
    });
    return keyed.map(([, id, row]) => [id, row]);
  }

  #makeRow(id) {
    const name = el(
      "button",
      { type: "button", className: "link", title: id, on: { click: () => this.on.select(id) } },
      shortId(id),
    );
    const cells = COLUMNS.slice(1).map((_, k) =>
      el("td", { className: k + 1 < TEXT_COLUMNS ? "left" : "" }),
    );
    const abort = el(
      "button",
      {
        type: "button",
        className: "plain",
        aria: { label: `Abort ${shortId(id)}` },
        on: { click: () => this.on.abort(id, abort) },
      },
      "Abort",
    );
    const node = el("tr", {}, el("td", {}, name), ...cells, el("td", {}, abort));
    const line = { node, cells };
    this.rows.set(id, line);
    this.#hideCells(line);
    return line;
  }

  /** Leaves out columns that have nothing to tell. */
  #hideColumns(rows) {
    const hidden = COLUMNS.map(
      ([, value, , isOptional]) => Boolean(isOptional) && !rows.some(([id, row]) => value(row, id)),
    );
    if (hidden.join() === this.hidden?.join()) return;
    this.hidden = hidden;
    hidden.forEach((isHidden, k) => (this.head.children[k].hidden = isHidden));
    for (const line of this.rows.values()) this.#hideCells(line);
  }

  #hideCells(line) {
    line.cells.forEach((cell, k) => (cell.hidden = this.hidden[k + 1]));
  }

  #fill(line, id, row, isSelected) {
    line.node.dataset.selected = isSelected;
    line.cells.forEach((cell, k) => {
      const [, value, text] = COLUMNS[k + 1];
      setText(cell, text(value(row, id)));
    });
  }

  #dropOthers(ids) {
    for (const [id, line] of this.rows) {
      if (ids.has(id)) continue;
      const hadFocus = line.node.contains(document.activeElement);
      line.node.remove();
      this.rows.delete(id);
      if (hadFocus) this.root.focus();
    }
  }
}
