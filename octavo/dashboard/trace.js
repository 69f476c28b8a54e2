// A recorded trace: read with suspicion, since a file may hold anything, and followed step by step.

const FORMAT = 1;
const MAX_BLOCKS = 1 << 22;
const KEY_EVERY = 64;
export const STATES = ["free", "cached", "used", "findable"];

/** A file that cannot be replayed, and why. */
export class Unreadable extends Error {}

const isObject = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value);
const listOf = (value) => (Array.isArray(value) ? value : []);
const whole = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : 0);
const text = (value) => (typeof value === "string" ? value : "");

/** Reads the text of a file; throws `Unreadable`. */
export function readTrace(source) {
  let data;
  try {
    data = JSON.parse(source);
  } catch (error) {
    throw new Unreadable(`It is no JSON: ${error.message}.`);
  }
  const first = isObject(data) && isObject(data.otherData) ? data.otherData.octavo : null;
  if (!isObject(first) || !Array.isArray(data.traceEvents)) {
    throw new Unreadable("It was not written by octavo trace: it holds no scheduling decisions.");
  }
  if (first.format !== FORMAT) {
    throw new Unreadable(`This page reads format ${FORMAT}, and it has another: record it again.`);
  }
  const size = whole(first.num_blocks);
  if (!size || size > MAX_BLOCKS) throw new Unreadable(`It tells of ${size} KV blocks.`);
  const steps = data.traceEvents
    .filter((event) => isObject(event) && isObject(event.args) && isObject(event.args.decision))
    .map((event) => readStep(event, size));
  if (!steps.length) throw new Unreadable("It has no step.");
  steps.sort((a, b) => a.time - b.time);
  return new Trace(first, size, steps);
}

const blocksOf = (value, size) =>
  listOf(value).filter((block) => Number.isSafeInteger(block) && block >= 0 && block < size);

function statesOf(value, size) {
  const found = isObject(value) ? value : {};
  return STATES.map((name) => blocksOf(found[name], size));
}

const items = (value, read) => listOf(value).filter(isObject).map(read);

function readStep(event, size) {
  const found = event.args.decision;
  return {
    number: whole(Number(text(event.name).replace("step ", ""))),
    time: whole(event.ts) / 1e6,
    took: whole(event.dur) / 1e6,
    rows: items(found.rows, (row) => ({
      id: text(row.id),
      start: whole(row.start),
      tokens: whole(row.tokens),
      known: whole(row.known),
      prompt: whole(row.prompt),
      sampled: whole(row.sampled),
      drafts: Math.min(whole(row.drafts), whole(row.tokens)),
      accepted: Math.min(whole(row.accepted), whole(row.drafts)),
      blocks: blocksOf(row.new_blocks, size),
    })),
    admitted: items(found.admitted, (item) => ({
      id: text(item.id),
      cached: whole(item.cached),
      blocks: blocksOf(item.blocks, size),
      isResumed: item.resumed === true,
    })),
    preempted: items(found.preempted, (item) => ({
      id: text(item.id),
      for: text(item.for),
      blocks: whole(item.blocks),
    })),
    copied: items(found.copied, (item) => ({
      id: text(item.id),
      index: whole(item.index),
      source: whole(item.source),
      target: Math.min(whole(item.target), size - 1),
    })),
    left: listOf(found.left).map(text),
    ended: items(found.ended, (item) => ({
      id: text(item.id),
      reason: text(item.reason),
      blocks: whole(item.blocks),
    })),
    trimmed: items(found.trimmed, (item) => ({ id: text(item.id), kept: whole(item.kept) })),
    line: listOf(found.line).map(text),
    inLine: whole(found.in_line),
    stopped: text(found.stopped),
    states: statesOf(found.states, size),
  };
}

/** Steps, and the block map and the block tables as they are after one of them. Offers the block
 * map what it reads of a picture: `numBlocks`, `columns`, `tables`. */
export class Trace {
  constructor(first, numBlocks, steps) {
    this.steps = steps;
    this.numBlocks = numBlocks;
    this.blockSize = whole(first.block_size);
    this.maxSeqs = whole(first.max_num_seqs);
    this.maxTokens = whole(first.max_num_batched_tokens);
    this.targetMs = typeof first.target_itl_ms === "number" ? first.target_itl_ms : null;
    this.columns = {
      states: new Uint8Array(numBlocks),
      ref_counts: new Uint16Array(numBlocks),
      changed_s: new Float64Array(numBlocks),
    };
    this.tables = new Map();
    this.before = new Uint8Array(numBlocks);
    this.tablesBefore = new Map();
    for (const item of items(first.running, (found) => found)) {
      this.tables.set(text(item.id), blocksOf(item.blocks, numBlocks));
    }
    this.#change(statesOf(first.states, numBlocks), 0);
    this.keys = [this.#copy()];
    this.at = -1;
    this.seek(0);
  }

  get step() {
    return this.steps[this.at];
  }

  get clock() {
    return this.step.time + this.step.took;
  }

  /** Goes to the state after the step with this index; `before` is how it was ahead of it. */
  seek(index) {
    const target = Math.max(0, Math.min(this.steps.length - 1, index));
    if (target !== this.at) {
      const key = Math.min(Math.floor(target / KEY_EVERY), this.keys.length - 1);
      if (target <= this.at || key * KEY_EVERY > this.at) this.#restore(key);
      while (this.at < target) this.#forward();
      this.#count();
    }
    return this.step;
  }

  /** Blocks of the current step by what became of them. */
  marks() {
    const { step, before } = this;
    const given = step.rows.flatMap((row) => row.blocks);
    const copied = step.copied.map((copy) => copy.target);
    const hits = step.admitted.flatMap((item) => item.blocks);
    const freed = [...step.states[0], ...step.states[1]].filter((block) => before[block] > 1);
    return { given, copied, hits, freed };
  }

  /** How many blocks are in each state, in the order of `STATES`. */
  totals() {
    const totals = STATES.map(() => 0);
    for (const state of this.columns.states) totals[state]++;
    return totals;
  }

  #forward() {
    const index = this.at + 1;
    if (index % KEY_EVERY === 0 && index / KEY_EVERY === this.keys.length) {
      this.keys.push(this.#copy());
    }
    const step = this.steps[index];
    const { tables } = this;
    this.before.set(this.columns.states);
    this.tablesBefore = new Map(tables);
    for (const { id } of step.preempted) tables.delete(id);
    for (const id of step.left) tables.delete(id);
    for (const { id, blocks } of step.admitted) tables.set(id, blocks);
    for (const { id, blocks } of step.rows) {
      if (blocks.length) tables.set(id, (tables.get(id) ?? []).concat(blocks));
    }
    for (const { id, index: place, target } of step.copied) {
      const table = [...(tables.get(id) ?? [])];
      if (place < table.length) table[place] = target;
      tables.set(id, table);
    }
    for (const { id } of step.ended) tables.delete(id);
    for (const { id, kept } of step.trimmed) {
      if (tables.has(id)) tables.set(id, tables.get(id).slice(0, kept));
    }
    this.#change(step.states, step.time);
    this.at = index;
  }

  #change(states, time) {
    states.forEach((blocks, code) => {
      for (const block of blocks) {
        this.columns.states[block] = code;
        this.columns.changed_s[block] = time;
      }
    });
  }

  #count() {
    const counts = this.columns.ref_counts.fill(0);
    for (const table of this.tables.values()) {
      for (const block of table) if (counts[block] < 65535) counts[block]++;
    }
  }

  // Tables are replaced, never changed, so that copies of the map may share them.
  #copy() {
    const { states, changed_s: changed } = this.columns;
    return { states: states.slice(), changed: changed.slice(), tables: new Map(this.tables) };
  }

  #restore(key) {
    const { states, changed, tables } = this.keys[key];
    this.columns.states.set(states);
    this.columns.changed_s.set(changed);
    this.tables = new Map(tables);
    this.at = key * KEY_EVERY - 1;
  }
}
