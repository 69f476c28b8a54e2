// Puts the parts together: events come in, and a frame is drawn for all that came since the last.

import { BlockMap } from "./blockmap.js";
import { Charts } from "./charts.js";
import { Details, sentence, tip } from "./details.js";
import { byId, setText } from "./dom.js";
import { count, plural, shortId } from "./format.js";
import { Figures, WhatIf, ledger, legend } from "./panels.js";
import { Picture } from "./picture.js";
import { Playground } from "./playground.js";
import { Requests } from "./requests.js";
import { Follower, ask, keys } from "./stream.js";
import { askForKey } from "./key.js";
import { followTheme } from "./theme.js";

const STATUS = {
  ok: ["good", "Live"],
  draining: ["wait", "Draining"],
  restarting: ["wait", "Engine restarting"],
  dead: ["bad", "Engine gone"],
};

const picture = new Picture();
let selected = null;
let frame = 0;
let pending = { blocks: [], sample: false };

const map = new BlockMap(byId("map"), picture, {
  hover: showTip,
  select: (block) => select(block === null ? null : { kind: "block", block }),
  cursor: (block) => setText(byId("map-say"), sentence(picture, block)),
});
const details = new Details(byId("detail"), picture, {
  request: (id) => select({ kind: "request", id }),
  block: (block) => select({ kind: "block", block }),
});
const requests = new Requests(byId("table"), byId("requests-none"), byId("filter"), {
  select: (id) => select(selected?.id === id ? null : { kind: "request", id }),
  abort,
});
const charts = new Charts(document.querySelector(".charts"), picture);
const figures = new Figures(byId("figures"));
const whatIf = new WhatIf(byId("compare"), byId("what-if-line"));
new Playground(
  {
    sides: byId("sides"),
    form: byId("prompt"),
    words: byId("words"),
    send: byId("send"),
    stop: byId("stop"),
    fresh: byId("fresh"),
    two: byId("compare-two"),
  },
  () => picture.state.model_names?.[0],
  (message) => newKey("requests", message),
);

const follower = new Follower({
  event: (name, data) => {
    const news = picture.apply(name, data);
    pending.sample ||= news.sample;
    pending.blocks =
      news.blocks === null || pending.blocks === null
        ? null
        : pending.blocks.concat(Array.from(news.blocks));
    frame ||= requestAnimationFrame(draw);
  },
  status: showStatus,
  key: (message) => newKey("stats", message),
});

function draw() {
  frame = 0;
  const { blocks, sample } = pending;
  pending = { blocks: [], sample: false };
  const { state } = picture;
  showStatus(...(STATUS[state.status] ?? ["wait", state.status ?? ""]));
  byId("problem").hidden = !state.problem;
  setText(byId("problem"), state.problem ?? "");
  if (!state.kv_cache) return;
  if (blocks === null) map.layout();
  else if (blocks.length) map.paint(blocks);
  drawSelection(false);
  drawWords();
  legend(byId("legend"), picture, map);
  requests.show(picture.rows, selected?.id);
  figures.show(picture);
  whatIf.show(picture);
  ledger(byId("ledger"), picture);
  if (sample) charts.draw();
}

function drawWords() {
  const { kv_cache: cache, requests: all, model_names: names, version, engine } = picture.state;
  setText(byId("model"), names[0]);
  setText(byId("release"), `Octavo ${version}, ${engine.attention_backend}`);
  setText(
    byId("cache-line"),
    `${plural(cache.blocks.total, "block")} of ${cache.block_size} tokens`,
  );
  const left = all.left_out ? `; ${count(all.left_out)} more are not shown` : "";
  setText(
    byId("requests-line"),
    `${count(all.running)} running, ${count(all.waiting)} waiting${left}`,
  );
}

function select(what) {
  selected = what;
  drawSelection(true);
  requests.show(picture.rows, selected?.id);
  if (what?.kind === "request") {
    setText(byId("map-say"), `Request ${shortId(what.id)}: ${plural(map.lit.length, "block")} lit`);
  }
}

function drawSelection(isNew) {
  let lit = [];
  if (selected?.kind === "block") lit = [selected.block];
  else if (selected) lit = picture.tables.get(selected.id) ?? [];
  if (isNew || lit.length || map.lit.length) map.light(lit, isNew);
  details.show(selected);
}

function showTip(block, event) {
  const node = byId("tip");
  node.hidden = block === null || event.pointerType === "touch";
  if (node.hidden) return;
  node.replaceChildren(...tip(picture, block));
  const box = node.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 16;
  node.style.left = `${Math.max(8, left)}px`;
  const isBelow = below + box.height <= window.innerHeight;
  node.style.top = `${isBelow ? below : event.clientY - box.height - 10}px`;
}

function showStatus(kind, text) {
  const node = byId("status");
  node.dataset.kind = kind;
  setText(node, text);
}

async function abort(id, button) {
  button.disabled = true;
  try {
    await ask(`requests/${encodeURIComponent(id)}/abort`, "requests", { method: "POST" });
  } catch (error) {
    button.disabled = false;
    if (error.status === 404) return;
    if (error.status === 401) await newKey("requests", error.message);
    else {
      button.title = error.message;
      setText(byId("requests-line"), error.message);
    }
  }
}

async function newKey(kind, message) {
  const key = await askForKey(kind, message);
  if (key) keys.set(kind, key);
  if (kind === "stats") byId("unlock").hidden = Boolean(key);
  return Boolean(key);
}

for (const radio of document.querySelectorAll("[name=colour]")) {
  radio.addEventListener("change", () => {
    map.mode = radio.value;
    map.paint();
    legend(byId("legend"), picture, map);
  });
}
setInterval(() => {
  if (map.mode === "age" && document.visibilityState === "visible") map.paint();
}, 1000);
byId("unlock").addEventListener("click", () => follower.reconnect());
followTheme(byId("theme"), () => {
  map.readTheme();
  charts.draw();
  legend(byId("legend"), picture, map);
});
follower.run();
