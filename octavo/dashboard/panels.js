// Figures, legend, the comparison with contiguous memory, and where the memory goes.

import { el, setText } from "./dom.js";
import { bytes, count, duration, percent, plural, rough } from "./format.js";

const last = (column) => column?.findLast((value) => value !== null);

/** The row of figures at the top. */
export class Figures {
  constructor(root) {
    this.root = root;
    this.cells = new Map();
  }

  show(picture) {
    const { kv_cache: cache, requests, since_start: since } = picture.state;
    if (!cache) return;
    const history = picture.history;
    const counters = since.counters;
    const hits = counters.prefix_cache_hits_total / counters.prefix_cache_queries_total;
    this.#set(
      "Generating",
      `${rough(last(history.generated_tokens_per_s) ?? 0)}`,
      "tokens per second",
    );
    this.#set(
      "Reading prompts",
      `${rough(last(history.prompt_tokens_per_s) ?? 0)}`,
      "tokens per second",
    );
    this.#set("Requests", count(requests.running), `running, ${count(requests.waiting)} waiting`);
    this.#set(
      "KV cache in use",
      percent(cache.usage, cache.usage < 0.1 ? 1 : 0),
      `${count(cache.blocks.used)} of ${plural(cache.blocks.total, "block")}`,
    );
    this.#set("Prompts from the cache", percent(hits), "of all tokens since the start");
    this.#set(
      "First token",
      duration(last(history.first_token_s_p50)),
      `median; then ${duration(last(history.inter_token_s_p50))} each`,
    );
  }

  #set(name, value, note) {
    let cell = this.cells.get(name);
    if (!cell) {
      cell = [el("dd", {}), el("dd", {})];
      this.cells.set(name, cell);
      this.root.append(el("div", {}, el("dt", {}, name), ...cell));
    }
    setText(cell[0], value);
    setText(cell[1], note);
  }
}

/** Colours and counts of block states; `colours` are the map's. */
export function legend(root, picture, map) {
  const { kv_cache: cache } = picture.state;
  if (!cache) return;
  const entries = map.mode === "state" ? stateEntries(picture, map) : otherEntries(picture, map);
  const key = JSON.stringify(entries);
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  root.replaceChildren(
    ...entries.map(([colour, name, number]) => {
      const swatch = el("span", { className: "swatch" });
      swatch.style.background = colour;
      return el("li", {}, swatch, name, number === null ? "" : el("b", {}, ` ${number}`));
    }),
  );
}

function stateEntries(picture, map) {
  const { states, ref_counts: counts } = picture.columns;
  const found = new Array(map.palette.length).fill(0);
  for (let k = 0; k < states.length; k++) found[counts[k] > 1 ? found.length - 1 : states[k]]++;
  const names = ["Free", "Cached, evictable", "In use", "In use, findable", "Draft", "Shared"];
  return names.map((name, k) => [map.palette[k], name, count(found[k])]);
}

function otherEntries(picture, map) {
  const free = [map.palette[0], "Free", count(picture.state.kv_cache.blocks.free)];
  if (map.mode === "request") {
    return [
      free,
      [map.palette[1], "Cached", count(picture.state.kv_cache.blocks.cached)],
      [map.palette.at(-1), "Shared", count(picture.state.kv_cache.shared_blocks)],
      [map.hues[0], "One colour for each request", null],
    ];
  }
  const names = ["under 1 s", "5 s", "15 s", "1 min", "5 min", "older"];
  return [free, ...names.map((name, k) => [map.ages[k], name, null])];
}

function bar(name, value, share, colour) {
  const track = el("div", { className: "track" });
  const fill = el("i", {});
  fill.style.width = `${Math.min(100, share * 100)}%`;
  fill.style.background = `var(${colour})`;
  track.append(fill);
  return el(
    "div",
    { className: "bar" },
    el("p", {}, el("span", {}, name), el("b", {}, value)),
    track,
  );
}

/** What contiguous allocation would hold for exactly these requests, beside what paging holds. */
export class WhatIf {
  constructor(root, line) {
    this.root = root;
    this.line = line;
    this.kept = null;
  }

  show(picture) {
    const { kv_cache: cache, requests, engine, time } = picture.state;
    if (!cache) return;
    if (requests.running) {
      this.kept = {
        running: requests.running,
        used: cache.tokens.used,
        wasted: cache.tokens.wasted,
        asked: cache.contiguous_slots,
        whole: requests.running * engine.max_model_len,
        total: cache.tokens.total,
        limit: engine.max_model_len,
        shared: cache.shared_blocks,
        time,
      };
    }
    const now = this.kept;
    if (!now) {
      setText(this.line, "It shows when requests run.");
      return;
    }
    const when = requests.running ? "now" : `at ${new Date(now.time * 1000).toLocaleTimeString()}`;
    setText(this.line, `For exactly the ${plural(now.running, "request")} running ${when}.`);
    const key = JSON.stringify(now);
    if (key === this.key) return;
    this.key = key;
    this.#draw(now);
  }

  #draw(now) {
    const most = Math.max(now.whole, now.asked, now.used, 1);
    const slots = (value) => `${count(value)} slots`;
    const fit = Math.floor(now.total / now.limit);
    const held = now.used - now.wasted;
    const verdict =
      now.whole > now.total
        ? `Of these ${plural(now.running, "request")}, ${count(Math.min(fit, now.running))} ` +
          `would fit: the cache has ${slots(now.total)}.`
        : `Paging holds ${rough(now.whole / Math.max(1, now.used))} times less.`;
    this.root.replaceChildren(
      bar(
        `Contiguous, ${count(now.limit)} tokens reserved for each`,
        slots(now.whole),
        now.whole / most,
        "--line-2",
      ),
      bar(
        "Contiguous, prompt and max_tokens reserved",
        slots(now.asked),
        now.asked / most,
        "--line-2",
      ),
      bar("Paged, what is held now", slots(now.used), now.used / most, "--findable"),
      bar("Tokens really there", slots(held), held / most, "--findable"),
      el("p", {}, verdict),
      el(
        "p",
        { className: "quiet small" },
        `${slots(now.wasted)} of the paged ones are empty, all of them ` +
          `in last blocks; ${plural(now.shared, "block")} shared between requests ` +
          `${now.shared === 1 ? "counts" : "count"} once.`,
      ),
    );
  }
}

/** The plan of the memory. */
export function ledger(root, picture) {
  const { memory, engine, kv_cache: cache } = picture.state;
  if (!memory) return;
  const key = JSON.stringify([memory, engine.resident_bytes >> 24]);
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  const parts = [
    ["KV cache", memory.kv_cache, "--findable"],
    ["Weights", memory.weights, "--line-2"],
    ["Activations", memory.activations, "--line-3"],
    ["Other", memory.other, "--line-5"],
  ];
  const planned = parts.reduce((sum, [, size]) => sum + size, 0);
  const total = Math.max(memory.total, planned);
  const track = el("div", { className: "track" });
  const rows = [...parts, ["Left to the machine", total - planned, "--free"]].map(
    ([name, size, colour]) => {
      const part = el("i", { title: `${name}: ${bytes(size)}` });
      part.style.width = `${(100 * size) / total}%`;
      part.style.background = `var(${colour})`;
      track.append(part);
      const swatch = el("span", { className: "swatch" });
      swatch.style.background = `var(${colour})`;
      return el(
        "tr",
        {},
        el("td", {}, swatch, name),
        el("td", {}, bytes(size)),
        el("td", { className: "quiet" }, percent(size / total, 1)),
      );
    },
  );
  root.replaceChildren(
    el("h3", {}, `Memory: ${bytes(memory.total)}, ${engine.device}`),
    track,
    el("table", {}, el("tbody", {}, ...rows)),
    el(
      "p",
      { className: "quiet small" },
      `${plural(cache.blocks.total, "block")} of ` +
        `${bytes(memory.kv_block)} hold ${count(cache.tokens.total)} tokens. ` +
        `The engine's process has ${bytes(engine.resident_bytes)} now.`,
    ),
  );
}
