// A step as it is drawn: rows, the line, block tables, sentences.

import { el } from "./dom.js";
import { count, plural, shortId } from "./format.js";

const MAX_CHIPS = 300;
const MAX_TABLES = 60;

const label = (id) => el("span", { className: "mono who", title: id }, shortId(id));

function bar(parts) {
  const track = el("div", { className: "track", aria: { hidden: "true" } });
  for (const [kind, size] of parts) {
    if (!size) continue;
    const part = el("i", { className: kind });
    part.style.flexGrow = String(size);
    track.append(part);
  }
  return track;
}

/** A row's tokens by kind: [guesses that were right, wrong guesses, prompt, decode]. */
function split(row) {
  const certain = row.tokens - row.drafts;
  const isChunk = row.start < row.prompt || certain > 1;
  const kind = isChunk ? "chunk" : "decode";
  return [
    [kind, certain],
    ["right", row.accepted],
    ["wrong", row.drafts - row.accepted],
  ];
}

function inWords(row) {
  const end = row.start + row.tokens - row.drafts;
  if (row.drafts) {
    const right = `${count(row.accepted)} of ${count(row.drafts)} guesses right`;
    return `decode at ${count(row.start)}, ${right}`;
  }
  if (row.start < row.prompt || row.tokens > 1) {
    return `prompt ${count(row.start)} to ${count(end)} of ${count(row.known)}`;
  }
  return `decode at ${count(row.start)}`;
}

/** The step's tokens in one bar, as far as a step may have them. */
export function drawBudget(root, line, trace) {
  const { rows } = trace.step;
  const total = rows.reduce((sum, row) => sum + row.tokens, 0);
  const limit = Math.max(trace.maxTokens, total);
  root.replaceChildren(bar([...rows.flatMap(split), ["rest", limit - total]]));
  const drafts = rows.reduce((sum, row) => sum + row.drafts, 0);
  const guessed = drafts ? `, ${count(drafts)} of them guessed` : "";
  line.textContent = `${count(total)} of ${plural(limit, "token")}${guessed}, in ${plural(
    rows.length,
    "row",
  )}`;
}

/** One line for each row: what is computed, what this step adds, what is left. */
export function drawRows(root, trace, on) {
  const { rows } = trace.step;
  const longest = Math.max(1, ...rows.map((row) => Math.max(row.known, row.start + row.tokens)));
  root.replaceChildren(
    ...rows.map((row) => {
      const end = row.start + row.tokens;
      const rest = Math.max(0, row.known - end);
      const open = longest - Math.max(row.known, end);
      const parts = [["done", row.start], ...split(row), ["rest", rest], ["none", open]];
      const button = el("button", {
        className: "link",
        type: "button",
        title: row.id,
        on: { click: () => on(row.id) },
      });
      button.textContent = shortId(row.id);
      return el("li", {}, button, bar(parts), el("span", { className: "quiet" }, inWords(row)));
    }),
  );
}

/** Who waits, in order. */
export function drawLine(root, none, trace) {
  const { line, inLine } = trace.step;
  root.replaceChildren(...line.map((id) => el("li", {}, label(id))));
  if (inLine > line.length) {
    root.append(el("li", { className: "quiet" }, `and ${count(inLine - line.length)} more`));
  }
  none.hidden = line.length > 0;
}

/** Block tables, logical → physical, with what is new in them. */
export function drawTables(root, trace, lit, on) {
  const { given, copied } = trace.marks();
  const fresh = new Set([...given, ...copied]);
  const found = new Map(trace.step.admitted.map(({ id, blocks }) => [id, new Set(blocks)]));
  const kindOf = (id, block) =>
    fresh.has(block) ? "given" : found.get(id)?.has(block) ? "hit" : "";
  const shown = [...trace.tables].slice(0, MAX_TABLES);
  root.replaceChildren(
    ...shown.map(([id, table]) => {
      const button = el("button", {
        className: "link",
        type: "button",
        title: id,
        aria: { pressed: String(id === lit) },
        on: { click: () => on(id) },
      });
      button.textContent = shortId(id);
      const chips = table
        .slice(0, MAX_CHIPS)
        .map((block) => el("li", { className: kindOf(id, block) }, String(block)));
      const more = table.length - chips.length;
      if (more) chips.push(el("li", {}, `and ${count(more)} more`));
      const head = el("p", {}, button, ` ${plural(table.length, "block")}`);
      return el("div", { className: "table" }, head, el("ol", { className: "cells" }, ...chips));
    }),
  );
  const left = trace.tables.size - shown.length;
  if (left > 0) root.append(el("p", { className: "quiet" }, `${count(left)} more are not shown`));
  if (!trace.tables.size) root.append(el("p", { className: "quiet" }, "Nobody holds a block."));
}

/** The sentences of `explain`. */
export function drawWords(root, sentences) {
  root.replaceChildren(
    ...sentences.map(({ kind, parts }) =>
      el(
        "li",
        { data: { kind } },
        ...parts.map((part) => (typeof part === "string" ? part : label(part.id))),
      ),
    ),
  );
}

/** Blocks by state and by what the step did to them; a list of the latter for the block map. */
export function drawLegend(root, trace) {
  const [free, cached, used, findable] = trace.totals();
  const { given, copied, hits, freed } = trace.marks();
  const shared = trace.columns.ref_counts.reduce((sum, held) => sum + (held > 1), 0);
  const entries = [
    ["free", "Free", free],
    ["cached", "Cached, evictable", cached],
    ["used", "In use", used],
    ["findable", "In use, findable", findable],
    ["shared", "Shared, of those", shared],
    ["is-given", "Given in this step", given.length + copied.length],
    ["is-hit", "Found in the cache", hits.length],
    ["is-freed", "Given back", freed.length],
  ];
  root.replaceChildren(
    ...entries.map(([kind, words, value]) =>
      el(
        "li",
        {},
        el("span", { className: `swatch ${kind}`, aria: { hidden: "true" } }),
        `${words} `,
        el("b", {}, count(value)),
      ),
    ),
  );
  return [
    { blocks: freed, colour: "--bad" },
    { blocks: hits, colour: "--accent" },
    { blocks: [...given, ...copied], colour: "--good" },
  ];
}
