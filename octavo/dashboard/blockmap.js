// The block map: every KV block as a cell, on two canvases. The lower one has the blocks and is
// painted cell by cell as they change; the upper one has what is selected, and the cursor.

import { themeValue } from "./dom.js";

const SIZES = [18, 15, 13, 11, 9, 8, 7, 6, 5, 4, 3];
const TALLEST = 430;
const NUMBERED_FROM = 15;
const REVEAL_MS = 900;
export const FREE = 0;
export const CACHED = 1;
const SHARED = 5;
const THEME = ["--free", "--cached", "--used", "--findable", "--draft", "--shared"];
/** Seconds at which the colour of an age changes. */
export const AGES = [1, 5, 15, 60, 300];

export class BlockMap {
  /** `on.hover(block or null, event)`, `on.select(block or null)`, `on.cursor(block)` are told. */
  constructor(root, picture, on) {
    this.root = root;
    this.picture = picture;
    this.on = on;
    this.sheet = root.querySelector(".sheet");
    this.base = root.querySelector(".base");
    this.over = root.querySelector(".over");
    this.mode = "state";
    this.lit = [];
    /** Blocks to outline: {blocks, colour}, the colour a property of the theme. */
    this.marks = [];
    this.cursor = null;
    this.size = 0;
    this.columns = 1;
    this.owners = new Int32Array(0);
    new ResizeObserver(() => this.layout()).observe(root);
    this.#listen();
    this.readTheme();
  }

  /** Takes the colours of the theme in force. */
  readTheme() {
    this.palette = THEME.map(themeValue);
    this.ink = themeValue("--ink");
    this.veil = themeValue("--veil");
    this.accent = themeValue("--accent");
    const isDark = document.documentElement.dataset.theme === "dark";
    this.hues = Array.from(
      { length: 24 },
      (_, k) => `hsl(${(k * 137.5) % 360} 52% ${isDark ? 62 : 46}%)`,
    );
    this.ages = AGES.map(
      (_, k) => `hsl(${isDark ? 200 : 202} ${60 - 9 * k}% ${isDark ? 66 - 9 * k : 36 + 10 * k}%)`,
    );
    this.ages.push(themeValue("--cached"));
    this.paint();
  }

  /** Chooses a size of cells for this width and number of blocks, and paints. */
  layout() {
    const width = this.root.clientWidth;
    const count = this.picture.numBlocks;
    if (!width || !count) return;
    const rows = (size) => Math.ceil(count / Math.floor(width / size));
    this.size = SIZES.find((size) => rows(size) * size <= TALLEST) ?? SIZES.at(-1);
    this.columns = Math.floor(width / this.size);
    const height = rows(this.size) * this.size;
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.paint();
  }

  /** Paints blocks: those of `ids`, or all. */
  paint(ids = null) {
    if (!this.size || !this.picture.columns) return;
    const began = performance.now();
    if (this.mode === "request") this.#findOwners();
    const context = this.base.getContext("2d");
    const count = this.picture.numBlocks;
    if (ids === null || this.mode !== "state") {
      context.clearRect(0, 0, this.base.width, this.base.height);
      this.#fill(context, count, (k) => k);
    } else {
      this.#fill(context, ids.length, (k) => ids[k]);
    }
    this.paintOver();
    performance.measure(ids === null ? "octavo:map" : "octavo:cells", {
      start: began,
      end: performance.now(),
    });
    if (performance.getEntriesByType("measure").length > 400) performance.clearMeasures();
  }

  /** Lights up blocks in their order; nothing for an empty list. */
  light(blocks, isNew) {
    this.lit = blocks;
    if (isNew) {
      const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.litAt = isStill ? -REVEAL_MS : performance.now();
      this.#reveal();
    } else {
      this.paintOver();
    }
  }

  /** Moves the cursor to a block and shows it. */
  moveTo(block) {
    this.cursor = Math.max(0, Math.min(this.picture.numBlocks - 1, block));
    const top = Math.floor(this.cursor / this.columns) * this.size;
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    const bottom = top + this.size - this.root.clientHeight;
    if (bottom > this.root.scrollTop) this.root.scrollTop = bottom;
    this.paintOver();
    this.on.cursor(this.cursor);
  }

  paintOver() {
    if (!this.size) return;
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (this.lit.length) this.#paintLit(context);
    for (const { blocks, colour } of this.marks) {
      const value = themeValue(colour);
      for (const block of blocks) this.#outline(context, block, value);
    }
    if (this.cursor !== null) this.#outline(context, this.cursor, this.ink);
  }

  /** The colour of a block as the map shows it. */
  colour(block) {
    const { states, ref_counts: counts } = this.picture.columns;
    const state = states[block];
    if (state === FREE) return this.palette[FREE];
    if (this.mode === "age") return this.ages[this.#ageStep(block)];
    if (this.mode === "request") {
      const owner = this.owners[block];
      if (counts[block] > 1) return this.palette[SHARED];
      return owner < 0 ? this.palette[CACHED] : this.hues[owner % this.hues.length];
    }
    return this.palette[counts[block] > 1 ? SHARED : state];
  }

  #ageStep(block) {
    const age = this.picture.clock - this.picture.columns.changed_s[block];
    const found = AGES.findIndex((limit) => age < limit);
    return found < 0 ? AGES.length : found;
  }

  #findOwners() {
    if (this.owners.length !== this.picture.numBlocks) {
      this.owners = new Int32Array(this.picture.numBlocks);
    }
    this.owners.fill(-1);
    for (const [id, table] of this.picture.tables) {
      let hash = 0;
      for (let k = 0; k < id.length; k++) hash = (hash * 31 + id.charCodeAt(k)) | 0;
      for (const block of table) this.owners[block] = hash >>> 1;
    }
  }

  /** Paints `count` cells, colour by colour: changing it is what costs. */
  #fill(context, count, blockAt) {
    const byColour = new Map();
    for (let k = 0; k < count; k++) {
      const block = blockAt(k);
      const colour = this.colour(block);
      const cells = byColour.get(colour);
      if (cells) cells.push(block);
      else byColour.set(colour, [block]);
    }
    const side = this.size - (this.size > 4 ? 2 : 1);
    for (const [colour, blocks] of byColour) {
      context.fillStyle = colour;
      for (const block of blocks) {
        const row = Math.floor(block / this.columns);
        context.fillRect((block - row * this.columns) * this.size, row * this.size, side, side);
      }
    }
  }

  #paintLit(context) {
    const side = this.size - (this.size > 4 ? 2 : 1);
    const total = this.lit.length;
    const shown = Math.ceil(total * Math.min(1, (performance.now() - this.litAt) / REVEAL_MS));
    context.fillStyle = this.veil;
    context.fillRect(0, 0, this.over.width, this.over.height);
    this.#fill(context, shown, (k) => this.lit[k]);
    context.strokeStyle = this.ink;
    context.lineWidth = 1;
    context.font = `${Math.round(this.size * 0.5)}px ui-monospace, monospace`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let k = 0; k < shown; k++) {
      const [x, y] = this.#place(this.lit[k]);
      if (this.size >= 6) context.strokeRect(x - 0.5, y - 0.5, side + 1, side + 1);
      if (this.size >= NUMBERED_FROM && total <= 1000) {
        context.fillStyle = this.ink;
        context.fillText(String(k), x + side / 2, y + side / 2 + 0.5);
      }
    }
  }

  #outline(context, block, colour) {
    const [x, y] = this.#place(block);
    const side = this.size - (this.size > 4 ? 2 : 1);
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, side + 2, side + 2);
  }

  #place(block) {
    const row = Math.floor(block / this.columns);
    return [(block - row * this.columns) * this.size, row * this.size];
  }

  #reveal() {
    this.paintOver();
    if (this.lit.length && performance.now() - this.litAt < REVEAL_MS) {
      requestAnimationFrame(() => this.#reveal());
    }
  }

  #blockAt(event) {
    const box = this.base.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.size);
    const row = Math.floor((event.clientY - box.top) / this.size);
    const block = row * this.columns + column;
    const isInside = column >= 0 && column < this.columns && row >= 0;
    return isInside && block < this.picture.numBlocks ? block : null;
  }

  #listen() {
    this.root.addEventListener("pointermove", (event) => {
      this.on.hover(this.size ? this.#blockAt(event) : null, event);
    });
    this.root.addEventListener("pointerleave", (event) => this.on.hover(null, event));
    this.root.addEventListener("click", (event) => {
      const block = this.size ? this.#blockAt(event) : null;
      if (block !== null) this.cursor = block;
      this.on.select(block);
    });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("blur", () => {
      this.cursor = null;
      this.paintOver();
    });
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.size) return;
    const at = this.cursor ?? 0;
    const page = this.columns * Math.max(1, Math.floor(this.root.clientHeight / this.size) - 1);
    const moves = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - this.columns,
      ArrowDown: at + this.columns,
      Home: 0,
      End: this.picture.numBlocks - 1,
      PageUp: at - page,
      PageDown: at + page,
    };
    const isStep = this.cursor !== null || event.key === "End";
    if (Object.hasOwn(moves, event.key)) this.moveTo(isStep ? moves[event.key] : 0);
    else if (event.key === "Enter" || event.key === " ") this.on.select(at);
    else if (event.key === "Escape") this.on.select(null);
    else return;
    event.preventDefault();
  }
}
