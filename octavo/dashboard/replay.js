// The replay of a recorded trace: loads a file, and goes through its steps.

import { BlockMap } from "./blockmap.js";
import { byId, setText } from "./dom.js";
import { explain } from "./explain.js";
import { count, duration, plural, shortId } from "./format.js";
import { drawBudget, drawLegend, drawLine, drawRows, drawTables, drawWords } from "./scene.js";
import { followTheme } from "./theme.js";
import { STATES, Unreadable, readTrace } from "./trace.js";

const MAX_BYTES = 256 * 2 ** 20;
const WORDS = { free: "free", cached: "cached", used: "in use", findable: "in use, findable" };
const EMPTY = { numBlocks: 0, columns: null, tables: new Map() };

let trace = null;
let lit = null;
let timer = 0;
let loads = 0;

const map = new BlockMap(byId("map"), EMPTY, {
  hover: () => {},
  select: (block) => (block === null ? light(null) : sayBlock(block)),
  cursor: sayBlock,
});

function sayBlock(block) {
  if (!trace) return;
  const state = WORDS[STATES[trace.columns.states[block]]];
  const holders = [...trace.tables].filter(([, table]) => table.includes(block));
  const held = holders
    .slice(0, 4)
    .map(([id, table]) => `${shortId(id)} [${table.indexOf(block)}]`)
    .join(", ");
  const more = holders.length > 4 ? ` and ${holders.length - 4} more` : "";
  const by = held ? `, in the block table of ${held}${more}` : "";
  setText(byId("map-say"), `Block ${block}: ${state}${by}`);
}

function light(id) {
  lit = id === lit ? null : id;
  map.light(trace?.tables.get(lit) ?? [], true);
  draw();
}

function draw() {
  if (!trace) return;
  const { step } = trace;
  const last = trace.steps.length - 1;
  setText(byId("where"), `Step ${count(step.number)}, ${trace.at + 1} of ${last + 1}`);
  setText(byId("when"), `at ${duration(step.time)}, took ${duration(step.took)}`);
  byId("slider").value = String(trace.at);
  byId("slider").setAttribute("aria-valuetext", byId("where").textContent);
  for (const id of ["first", "back"]) byId(id).disabled = trace.at === 0;
  for (const id of ["next", "last"]) byId(id).disabled = trace.at === last;
  drawWords(byId("words"), explain(trace));
  drawBudget(byId("budget"), byId("budget-line"), trace);
  drawRows(byId("rows"), trace, light);
  drawLine(byId("line"), byId("line-none"), trace);
  drawTables(byId("tables"), trace, lit, light);
  map.marks = drawLegend(byId("legend"), trace);
  map.lit = trace.tables.get(lit) ?? [];
  map.paint();
}

function go(index) {
  if (!trace) return;
  trace.seek(index);
  draw();
  if (trace.at === trace.steps.length - 1) pause();
}

function pause() {
  clearInterval(timer);
  timer = 0;
  setText(byId("play"), "Play");
  byId("words").setAttribute("aria-live", "polite");
}

function play() {
  if (!trace) return;
  if (trace.at === trace.steps.length - 1) go(0);
  setText(byId("play"), "Pause");
  byId("words").setAttribute("aria-live", "off");
  clearInterval(timer);
  timer = setInterval(() => go(trace.at + 1), 1000 / Number(byId("speed").value));
}

const toggle = () => (timer ? pause() : play());

function show(found, name) {
  pause();
  trace = found;
  lit = null;
  map.picture = trace;
  map.cursor = null;
  map.light([], false);
  byId("slider").max = String(trace.steps.length - 1);
  byId("stage").hidden = false;
  setText(byId("source"), name);
  setText(
    byId("limits"),
    `${plural(trace.steps.length, "step")}; at most ${plural(trace.maxTokens, "token")} a step, ` +
      `${plural(trace.maxSeqs, "request")} at once; ${plural(trace.numBlocks, "block")} of ` +
      plural(trace.blockSize, "token"),
  );
  map.layout();
  draw();
}

/** Shows what `read` brings, unless something else was loaded meanwhile. */
async function load(name, read) {
  const number = ++loads;
  const problem = byId("problem");
  try {
    const source = await read();
    if (number !== loads) return;
    show(readTrace(source), name);
    problem.hidden = true;
  } catch (error) {
    if (number !== loads) return;
    const isKnown = error instanceof Unreadable;
    setText(problem, `${name} cannot be replayed. ${isKnown ? error.message : String(error)}`);
    problem.hidden = false;
  }
}

function loadFile(file) {
  load(file.name, () => {
    if (file.size > MAX_BYTES) throw new Unreadable("It has more than 256 MiB: record less.");
    return file.text();
  });
}

function loadSample() {
  load("The sample", async () => {
    const answer = await fetch(new URL("sample.json", import.meta.url));
    if (!answer.ok) throw new Unreadable(`The server answered with status ${answer.status}.`);
    return answer.text();
  });
}

const KEYS = {
  ArrowLeft: () => go(trace.at - 1),
  ArrowRight: () => go(trace.at + 1),
  Home: () => go(0),
  End: () => go(trace.steps.length - 1),
  " ": toggle,
};

document.addEventListener("keydown", (event) => {
  if (!trace || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = event.target;
  if (at.matches("input, select, textarea")) {
    if (at.id !== "slider" || event.key !== " ") return;
  }
  if (event.key === " " && at.matches("button, a, summary, label")) return;
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

byId("first").addEventListener("click", () => go(0));
byId("back").addEventListener("click", () => go(trace.at - 1));
byId("play").addEventListener("click", toggle);
byId("next").addEventListener("click", () => go(trace.at + 1));
byId("last").addEventListener("click", () => go(trace.steps.length - 1));
byId("slider").addEventListener("input", () => go(Number(byId("slider").value)));
byId("speed").addEventListener("change", () => timer && play());
byId("sample").addEventListener("click", loadSample);
byId("file").addEventListener("change", () => {
  const [file] = byId("file").files;
  if (file) loadFile(file);
  byId("file").value = "";
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.dataset.drop = "true";
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) delete document.body.dataset.drop;
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  delete document.body.dataset.drop;
  const [file] = event.dataTransfer.files;
  if (file) loadFile(file);
});

followTheme(byId("theme"), () => map.readTheme());
loadSample();
