// What a step decided, in words. A sentence is a list of texts and of {id}, which are shown as
// names of requests.

import { count, plural } from "./format.js";

const NAMED = 3;
const REASONS = {
  stop: "it came to its end",
  length: "it has all the tokens that it may have",
  abort: "it was aborted",
  error: "it failed",
};

const name = (id) => ({ id });
const isPrompt = (row) => row.start < row.prompt;
const isDecode = (row) => !row.drafts && row.known - row.start === 1 && !isPrompt(row);

/** Names as in "a, b and 3 more". */
function names(ids) {
  const parts = ids.slice(0, NAMED).flatMap((id, k) => (k ? [", ", name(id)] : [name(id)]));
  if (ids.length > NAMED) parts.push(` and ${ids.length - NAMED} more`);
  else if (ids.length > 1) parts[parts.length - 2] = " and ";
  return parts;
}

/** Sentences about the current step of a trace, as {kind, parts}. */
export function explain(trace) {
  const { step } = trace;
  const found = [];
  const say = (kind, ...parts) => found.push({ kind, parts });
  for (const id of step.left) {
    say("end", name(id), " was ended before this step, by an abort for instance.");
  }
  for (const item of step.preempted) say("preempt", ...preemption(item));
  for (const item of step.admitted) say("begin", ...admission(trace, item));
  for (const { id, source, target } of step.copied) {
    say("copy", name(id), ` writes into a block that it shares: block ${source} was copied `);
    found.at(-1).parts.push(`to block ${target} first.`);
  }
  decodes(step, say);
  for (const row of step.rows) {
    if (row.drafts) say("draft", ...guesses(row));
    else if (!isDecode(row)) say("prompt", ...prompt(trace, row));
  }
  newBlocks(step, say);
  for (const { id, kept } of step.trimmed) {
    say("end", name(id), ` gave back the blocks of wrong guesses and keeps ${count(kept)}.`);
  }
  for (const { id, reason, blocks } of step.ended) {
    const why = Object.hasOwn(REASONS, reason) ? REASONS[reason] : reason;
    say("end", name(id), ` has ended: ${why}. It gave back ${plural(blocks, "block")}.`);
  }
  if (step.line.length) say("wait", ...waiting(trace));
  return found;
}

function preemption({ id, for: other, blocks }) {
  const gave = ` gave back ${plural(blocks, "block")}`;
  if (id === other) return [name(id), `${gave} and waits: nobody ranks behind it.`];
  return [name(id), `${gave} so that `, name(other), " can go on."];
}

function admission(trace, { id, cached, blocks, isResumed }) {
  const row = trace.step.rows.find((item) => item.id === id);
  const known = row ? row.known : 0;
  const verb = isResumed ? " comes back" : " begins";
  if (!cached) {
    const again = isResumed ? " to be computed again" : "";
    return [name(id), `${verb}: nothing of its ${plural(known, "token")} is cached${again}.`];
  }
  const base = id.replace(/#\d+$/, "");
  const table = new Set(trace.tablesBefore.get(base));
  if (base !== id && blocks.every((block) => table.has(block))) {
    return [name(id), `${verb} with ${plural(cached, "token")} of `, name(base), "."];
  }
  const held = ` in ${plural(blocks.length, "block")}`;
  return [name(id), `${verb} with ${plural(cached, "cached token")}${held}, of ${count(known)}.`];
}

function decodes(step, say) {
  const ids = step.rows.filter(isDecode).map((row) => row.id);
  if (ids.length === 1) say("decode", name(ids[0]), " decodes one token.");
  else if (ids.length) say("decode", ...names(ids), " decode one token each.");
}

function guesses({ id, drafts, accepted, sampled }) {
  const right = accepted === 0 ? "none was" : accepted === 1 ? "1 was" : `${accepted} were`;
  const gain = `it has ${plural(sampled, "token")} more after one step`;
  return [name(id), ` was guessed ${plural(drafts, "token")} ahead: ${right} right, so ${gain}.`];
}

function prompt(trace, row) {
  const left = row.known - row.start;
  const what = row.known > row.prompt ? "s tokens" : "s prompt";
  if (row.tokens >= left) {
    const rest = row.start ? `the last ${count(left)}` : `all ${count(left)}`;
    const of = row.start ? ` of ${count(row.known)}` : "";
    const then = row.sampled ? ", so its next token is known" : "";
    const is = what === "s prompt" ? "is" : "are";
    return [name(row.id), `'${what} ${is} complete: ${rest}${of} fit${then}.`];
  }
  const before = trace.step.rows.indexOf(row);
  const others = trace.step.rows.slice(0, before);
  const numDecodes = others.filter((item) => isDecode(item) || item.drafts).length;
  const after = numDecodes ? ` after ${plural(numDecodes, "decode")}` : "";
  const was = what === "s prompt" ? "was" : "were";
  const fit = `'${what} ${was} cut: ${count(row.tokens)} of ${plural(left, "token")} fit${after}`;
  return [name(row.id), `${fit}${limit(trace)}.`];
}

function limit(trace) {
  const total = trace.step.rows.reduce((sum, row) => sum + row.tokens, 0);
  if (total >= trace.maxTokens) return `, since a step has ${count(trace.maxTokens)}`;
  if (trace.targetMs !== null) return `, or others would wait longer than ${trace.targetMs} ms`;
  return ", and the rest is left to short prompts that wait";
}

function newBlocks(step, say) {
  const given = step.rows.filter((row) => row.blocks.length);
  for (const { id, blocks } of given.slice(0, NAMED)) {
    const some = blocks.slice(0, 6).join(", ");
    const more = blocks.length > 6 ? ` and ${blocks.length - 6} more` : "";
    const noun = blocks.length === 1 ? "block" : `${blocks.length} blocks:`;
    say("block", name(id), ` got ${noun} ${some}${more}.`);
  }
  const others = given.slice(NAMED);
  const total = others.reduce((sum, row) => sum + row.blocks.length, 0);
  if (total) say("block", `${plural(others.length, "other")} got ${plural(total, "block")}.`);
}

function waiting(trace) {
  const { line, inLine, stopped } = trace.step;
  const verb = inLine > 1 ? " wait: " : " waits: ";
  const more = Math.max(0, inLine - 1);
  const who = [name(line[0]), more ? ` and ${count(more)} more` : "", verb];
  const whys = {
    tokens: `the ${count(trace.maxTokens)} tokens of the step are spent.`,
    time: `more work would make others wait longer than ${trace.targetMs} ms for a token.`,
    blocks: "too few KV blocks are free.",
    max_num_seqs: `${plural(trace.maxSeqs, "request")} run, as many as may.`,
    long_prompts: "only long prompts are left in line, and enough of them are in progress.",
    whole_prompt: "the whole prompt does not fit into what is left of the step.",
    preempted: "nobody is let in while others give back blocks.",
  };
  return [...who, Object.hasOwn(whys, stopped) ? whys[stopped] : "it is not said why."];
}
