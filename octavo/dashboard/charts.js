// Small charts of the last 15 minutes, on canvas: lines, or areas on top of each other.

import { el, setText, themeValue } from "./dom.js";
import { NONE, count, duration, percent, rough } from "./format.js";

/** Seconds that charts may span; the first that holds all samples is taken. */
const SPANS_S = [120, 300, 900];
const LEFT = 46;
const RIGHT = 4;
const TOP = 6;
const BOTTOM = 16;

/** The charts: title, format, series as [name, column, colour], and how to draw them. */
const CHARTS = [
  {
    title: "Tokens per second",
    format: rough,
    series: [
      ["generated", "generated_tokens_per_s", "--line-1"],
      ["prompt", "prompt_tokens_per_s", "--line-2"],
    ],
  },
  {
    title: "Requests",
    format: count,
    series: [
      ["running", "running", "--line-1"],
      ["waiting", "waiting", "--line-2"],
    ],
  },
  {
    title: "KV blocks",
    format: count,
    isStacked: true,
    series: [
      ["in use", "used_blocks", "--findable"],
      ["cached", "cached_blocks", "--cached"],
      ["free", "free_blocks", "--free"],
    ],
  },
  {
    title: "Prefix hit rate",
    format: percent,
    most: 1,
    series: [["found", "prefix_hit_rate", "--line-1"]],
  },
  {
    title: "First token",
    format: duration,
    series: [
      ["median", "first_token_s_p50", "--line-1"],
      ["99 %", "first_token_s_p99", "--line-2"],
    ],
  },
  {
    title: "Between tokens",
    format: duration,
    series: [
      ["median", "inter_token_s_p50", "--line-1"],
      ["99 %", "inter_token_s_p99", "--line-2"],
    ],
  },
  { title: "Guesses", format: rough, series: [["right per draft", "accepted_length", "--line-1"]] },
  {
    title: "Preemptions per second",
    format: rough,
    series: [["preempted", "preemptions_per_s", "--line-3"]],
  },
  {
    title: "Where a step's time goes",
    format: percent,
    isStacked: true,
    most: 1,
    series: [
      ["model", "forward_share", "--line-1"],
      ["sampling", "sample_share", "--line-2"],
      ["arrays", "prepare_share", "--line-3"],
      ["planning", "schedule_share", "--line-4"],
      ["results", "commit_share", "--line-5"],
    ],
  },
];

/** Round numbers for an axis that reaches `most`. */
export function ticks(most) {
  const step = 10 ** Math.floor(Math.log10(most || 1));
  const unit = [0.5, 1, 2, 5].map((k) => k * step).find((size) => most / size <= 3) ?? 5 * step;
  const top = Math.ceil(most / unit - 1e-9) * unit || unit;
  return Array.from({ length: Math.round(top / unit) + 1 }, (_, k) => k * unit);
}

class Chart {
  constructor(config, onPoint) {
    this.config = config;
    this.canvas = el("canvas", { role: "img" });
    this.values = config.series.map(() => el("span", { className: "quiet" }, NONE));
    const keys = config.series.map(([name, , colour], k) => {
      const swatch = el("span", { className: "swatch" });
      swatch.style.background = `var(${colour})`;
      return el("li", {}, swatch, `${name} `, this.values[k]);
    });
    this.node = el(
      "figure",
      { className: "chart" },
      el("figcaption", {}, el("h3", {}, config.title), el("ul", { className: "keys" }, ...keys)),
      this.canvas,
    );
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      onPoint(share >= 0 && share <= 1 ? share : null);
    });
    this.canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  draw(history, point) {
    const now = history.time?.at(-1) ?? 0;
    const kept = now - (history.time?.[0] ?? now);
    const span = SPANS_S.find((seconds) => kept <= seconds) ?? SPANS_S.at(-1);
    const times = history.time ?? [];
    const columns = this.config.series.map(([, name]) => history[name] ?? []);
    this.#say(times, columns, point === null ? Infinity : now - span * (1 - point));
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const marks = ticks(this.config.most ?? this.#most(columns));
    const x = (time) => LEFT + (width - LEFT - RIGHT) * (1 - (now - time) / span);
    const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / marks.at(-1));
    this.#axes(context, width, height, marks, y, span);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT - RIGHT, height);
    context.clip();
    if (this.config.isStacked) this.#areas(context, times, columns, x, y);
    else this.#lines(context, times, columns, x, y);
    if (point !== null) this.#cross(context, x(now - span * (1 - point)), height);
    context.restore();
  }

  #most(columns) {
    if (!this.config.isStacked) return Math.max(0, ...columns.flat().map((value) => value ?? 0));
    return Math.max(
      0,
      ...columns[0].map((_, k) => columns.reduce((sum, c) => sum + (c[k] ?? 0), 0)),
    );
  }

  #axes(context, width, height, marks, y, span) {
    context.strokeStyle = themeValue("--rule");
    context.fillStyle = themeValue("--quiet");
    context.font = `11px ${themeValue("--sans")}`;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const mark of marks) {
      const line = Math.round(y(mark)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, line);
      context.lineTo(width - RIGHT, line);
      context.stroke();
      context.fillText(this.config.format(mark), LEFT - 6, line);
    }
    context.textBaseline = "alphabetic";
    for (const share of [0, 0.5]) {
      const minutes = rough((span * (1 - share)) / 60);
      context.textAlign = share ? "center" : "left";
      context.fillText(`−${minutes} min`, LEFT + (width - LEFT - RIGHT) * share, height - 3);
    }
    context.textAlign = "right";
    context.fillText("now", width - RIGHT, height - 3);
  }

  #lines(context, times, columns, x, y) {
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    columns.forEach((column, k) => {
      context.strokeStyle = context.fillStyle = themeValue(this.config.series[k][2]);
      context.beginPath();
      let isDown = false;
      column.forEach((value, index) => {
        if (value === null) return void (isDown = false);
        if (isDown) context.lineTo(x(times[index]), y(value));
        else context.moveTo(x(times[index]), y(value));
        const isAlone = !isDown && (column[index + 1] ?? null) === null;
        if (isAlone) context.fillRect(x(times[index]) - 1, y(value) - 1, 2, 2);
        isDown = true;
      });
      context.stroke();
    });
  }

  #areas(context, times, columns, x, y) {
    const base = new Array(times.length).fill(0);
    columns.forEach((column, k) => {
      context.fillStyle = themeValue(this.config.series[k][2]);
      for (let first = 0; first < times.length; first++) {
        let last = first;
        while (last + 1 < times.length && (column[last + 1] ?? null) !== null) last++;
        if ((column[first] ?? null) === null || last === first) continue;
        context.beginPath();
        for (let i = first; i <= last; i++) context.lineTo(x(times[i]), y(base[i] + column[i]));
        for (let i = last; i >= first; i--) context.lineTo(x(times[i]), y(base[i]));
        context.fill();
        first = last;
      }
      column.forEach((value, index) => (base[index] += value ?? 0));
    });
  }

  #cross(context, at, height) {
    context.strokeStyle = themeValue("--edge");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(at) + 0.5, TOP);
    context.lineTo(Math.round(at) + 0.5, height - BOTTOM);
    context.stroke();
  }

  /** Writes the numbers of a moment: the last one, or that under the pointer. */
  #say(times, columns, wanted) {
    let index = times.length - 1;
    while (index > 0 && times[index] > wanted) index--;
    const texts = columns.map((column) => this.config.format(column[index] ?? undefined));
    texts.forEach((text, k) => setText(this.values[k], text));
    const said = this.config.series.map(([name], k) => `${name} ${texts[k]}`).join(", ");
    this.canvas.setAttribute("aria-label", `${this.config.title}: ${said}`);
  }
}

export class Charts {
  constructor(root, picture) {
    this.picture = picture;
    this.point = null;
    const onPoint = (point) => {
      this.point = point;
      this.draw();
    };
    this.all = CHARTS.map((config) => new Chart(config, onPoint));
    root.append(...this.all.map((chart) => chart.node));
    new ResizeObserver(() => this.draw()).observe(root);
  }

  draw() {
    for (const chart of this.all) chart.draw(this.picture.history, this.point);
  }
}
