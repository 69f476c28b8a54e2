// A server as of the last event of /stats/stream; see docs/api.md for what an event holds.

const COLUMNS = {
  states: Uint8Array,
  tokens: Uint8Array,
  ref_counts: Uint16Array,
  hashes: Uint32Array,
  changed_s: Float64Array,
};
const KEPT_SAMPLES = 450;

function unpack(text, Type) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  return new Type(bytes.buffer);
}

/** `old` with a JSON merge patch (RFC 7396) applied. */
export function merge(old, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const isObject = old !== null && typeof old === "object" && !Array.isArray(old);
  const merged = isObject ? old : Object.create(null);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = merge(merged[name], value);
  }
  return merged;
}

export class Picture {
  constructor() {
    this.state = Object.create(null);
    this.tables = new Map();
    this.history = Object.create(null);
    this.stateNames = [];
    this.columns = null;
    this.numBlocks = 0;
    this.receivedAt = 0;
  }

  /** Rows of requests, as [id, row]. */
  get rows() {
    return Object.entries(this.state.requests?.rows ?? {});
  }

  /** The engine's clock now. */
  get clock() {
    return (this.state.clock_s ?? 0) + (performance.now() - this.receivedAt) / 1000;
  }

  /** Takes in an event; returns which blocks changed (null for all), and what else is new. */
  apply(event, data) {
    const isWhole = event === "snapshot";
    this.receivedAt = performance.now();
    if (isWhole) this.#begin(data);
    this.state = merge(this.state, data.state);
    this.#takeTables(data.tables ?? {});
    const changed = data.blocks ? this.#takeBlocks(data.blocks) : [];
    if (data.sample) this.#takeSample(data.sample);
    return { blocks: isWhole ? null : changed, sample: isWhole || Boolean(data.sample) };
  }

  /** Ids of the requests that hold a block. */
  holders(block) {
    const found = [];
    for (const [id, table] of this.tables) if (table.includes(block)) found.push(id);
    return found;
  }

  /** The first digits of a block's hash; empty for one without. */
  hash(block) {
    const value = this.columns.hashes[block];
    return value ? value.toString(16).padStart(8, "0") : "";
  }

  #begin(data) {
    this.state = Object.create(null);
    this.tables = new Map();
    this.history = data.history;
    this.stateNames = data.blocks.state_names;
    this.numBlocks = data.blocks.num_blocks;
    this.columns = {};
    for (const [name, Type] of Object.entries(COLUMNS))
      this.columns[name] = new Type(this.numBlocks);
  }

  #takeTables(tables) {
    for (const [id, [first, blocks]] of Object.entries(tables)) {
      const table = this.tables.get(id) ?? [];
      table.length = first;
      for (const block of blocks) table.push(block);
      this.tables.set(id, table);
    }
    const rows = this.state.requests?.rows ?? {};
    for (const id of this.tables.keys()) if (!Object.hasOwn(rows, id)) this.tables.delete(id);
  }

  #takeBlocks(sent) {
    const ids = unpack(sent.ids, Uint32Array);
    for (const [name, Type] of Object.entries(COLUMNS)) {
      const column = this.columns[name];
      const values = unpack(sent[name], Type);
      for (let k = 0; k < ids.length; k++) column[ids[k]] = values[k];
    }
    return ids;
  }

  #takeSample(sample) {
    const length = this.history.time?.length ?? 0;
    for (const [name, value] of Object.entries(sample)) {
      this.history[name] ??= new Array(length).fill(null);
      this.history[name].push(value);
    }
    for (const column of Object.values(this.history)) {
      if (column.length <= length) column.push(null);
      if (column.length > KEPT_SAMPLES) column.shift();
    }
  }
}
