// What is selected: a block and who shares it, or a request and its block table.

import { el } from "./dom.js";
import { count, duration, percent, plural, shortId } from "./format.js";

const MAX_CHIPS = 400;

/** The state of a block in words. */
export function stateOf(picture, block) {
  const { states, ref_counts: counts } = picture.columns;
  const name = picture.stateNames[states[block]] ?? "";
  if (counts[block] > 1) return `shared by ${counts[block]}`;
  return (
    {
      cached: "cached, evictable",
      used: "in use",
      "used, findable": "in use, findable",
      "used, draft": "draft",
    }[name] ?? name
  );
}

function pairs(entries) {
  const list = el("dl", { className: "pairs" });
  for (const [name, value] of entries) list.append(el("dt", {}, name), el("dd", {}, value));
  return list;
}

function blockPairs(picture, block) {
  const { states, tokens, changed_s: changed, ref_counts: counts } = picture.columns;
  const size = picture.state.kv_cache?.block_size ?? 0;
  const entries = [["State", stateOf(picture, block)]];
  if (states[block] || counts[block]) {
    entries.push(["Tokens", `${tokens[block]} of ${size}`]);
    entries.push(["References", count(counts[block])]);
    entries.push(["Hash", picture.hash(block) ? `${picture.hash(block)}…` : "not full yet"]);
  }
  if (changed[block]) {
    const verb = counts[block] ? "Taken" : "Given back";
    entries.push([verb, `${duration(Math.max(0, picture.clock - changed[block]))} ago`]);
  }
  return entries;
}

/** A block in one sentence, for screen readers. */
export function sentence(picture, block) {
  const text = blockPairs(picture, block).map(([name, value]) => `${name.toLowerCase()} ${value}`);
  const holders = picture.holders(block).map(shortId);
  const held = holders.length ? `; held by ${holders.join(", ")}` : "";
  return `Block ${block}: ${text.join(", ")}${held}`;
}

/** What hovering shows. */
export function tip(picture, block) {
  const holders = picture.holders(block);
  const entries = blockPairs(picture, block);
  if (holders.length) {
    const names = holders.slice(0, 3).map(shortId).join(", ");
    entries.push([
      holders.length > 1 ? "Requests" : "Request",
      holders.length > 3 ? `${names} and ${holders.length - 3} more` : names,
    ]);
  }
  return [el("b", {}, `Block ${count(block)}`), pairs(entries)];
}

/** The panel beside the map. `on.request(id)` and `on.block(n)` are told of clicks. */
export class Details {
  constructor(root, picture, on) {
    this.root = root;
    this.picture = picture;
    this.on = on;
    this.shown = "";
  }

  show(selected) {
    const content = this.#content(selected);
    const key = content.key;
    if (key === this.shown) return;
    this.shown = key;
    const focus = document.activeElement;
    const place = this.root.contains(focus) ? focus.dataset.place : undefined;
    this.root.replaceChildren(...content.nodes());
    if (place) this.root.querySelector(`[data-place="${CSS.escape(place)}"]`)?.focus();
  }

  #content(selected) {
    if (selected?.kind === "block" && selected.block < this.picture.numBlocks) {
      return this.#block(selected.block);
    }
    if (selected?.kind === "request") return this.#request(selected.id);
    return {
      key: "none",
      nodes: () => [
        el("h3", {}, "Nothing selected"),
        el(
          "p",
          { className: "quiet" },
          "Click a block to see who shares it, or a request to see its ",
          "block table: which block holds its first tokens, which the next, and so on.",
        ),
      ],
    };
  }

  #block(block) {
    const holders = this.picture.holders(block);
    const entries = blockPairs(this.picture, block);
    return {
      key: JSON.stringify(["block", block, entries, holders]),
      nodes: () => [
        el("h3", {}, `Block ${count(block)}`),
        pairs(entries),
        el(
          "p",
          { className: "quiet" },
          holders.length
            ? `In the block ${holders.length > 1 ? "tables" : "table"} of`
            : "In no request's block table.",
        ),
        el(
          "ul",
          { className: "chips" },
          ...holders.slice(0, MAX_CHIPS).map((id) => {
            const index = this.picture.tables.get(id).indexOf(block);
            return el(
              "li",
              {},
              this.#chip(
                `${shortId(id)} [${index}]`,
                id,
                () => this.on.request(id),
                `Request ${id}, entry ${index} of its table`,
              ),
            );
          }),
        ),
      ],
    };
  }

  #request(id) {
    const row = this.picture.state.requests?.rows?.[id];
    if (!row) {
      return {
        key: `gone ${id}`,
        nodes: () => [
          el("h3", {}, shortId(id)),
          el(
            "p",
            { className: "quiet" },
            "This request has ended. Its full blocks stay findable until ",
            "their room is needed.",
          ),
        ],
      };
    }
    const table = this.picture.tables.get(id) ?? [];
    const share = row.num_cached_tokens / row.num_prompt_tokens;
    const entries = [
      ["State", row.state],
      ["Known tokens", `${count(row.num_prompt_tokens)} + ${count(row.num_generated_tokens)}`],
      ["Computed", count(row.num_computed_tokens)],
      [
        "From the cache",
        row.num_cached_tokens === undefined
          ? "–"
          : `${count(row.num_cached_tokens)} (${percent(share)})`,
      ],
      ["Empty slots", `${row.num_wasted_slots} in ${plural(table.length, "block")}`],
    ];
    const texts = [row.prompt_head, row.output_tail];
    const states = table.map((block) => stateOf(this.picture, block));
    return {
      key: JSON.stringify([id, entries, texts, table, states]),
      nodes: () => [
        el("h3", { title: id }, shortId(id)),
        pairs(entries),
        ...texts.filter(Boolean).map((text) => el("p", { className: "text small" }, text)),
        el(
          "p",
          { className: "quiet" },
          table.length ? "Block table, logical → physical" : "No blocks.",
        ),
        el(
          "ol",
          { className: "chips" },
          ...table.slice(0, MAX_CHIPS).map((block, k) =>
            el(
              "li",
              {},
              this.#chip(
                `${k}→${block}`,
                block,
                () => this.on.block(block),
                `Entry ${k}: block ${block}, ${states[k]}`,
              ),
            ),
          ),
        ),
        table.length > MAX_CHIPS
          ? el("p", { className: "quiet" }, `and ${table.length - MAX_CHIPS} more`)
          : "",
      ],
    };
  }

  #chip(text, place, act, title) {
    return el(
      "button",
      { type: "button", title, data: { place: String(place) }, on: { click: act } },
      text,
    );
  }
}
