// A chat that streams, with one setting or two side by side.

import { el, setText } from "./dom.js";
import { count, duration, plural, rough } from "./format.js";
import { ask, eventsOf } from "./stream.js";

let numSides = 0;

/** One conversation with its settings. */
class Side {
  constructor(options) {
    const name = String.fromCharCode(65 + numSides++);
    this.messages = [];
    this.salt = crypto.getRandomValues(new Uint32Array(4)).join("-");
    this.temperature = el("input", {
      type: "number",
      min: 0,
      max: 2,
      step: 0.1,
      value: options.temperature,
    });
    this.limit = el("input", { type: "number", min: 1, step: 1, value: 256 });
    this.guesses = el("input", { type: "checkbox", checked: options.speculative });
    this.talk = el("div", {
      className: "talk",
      tabIndex: 0,
      role: "log",
      aria: { label: `Conversation ${name}` },
    });
    this.node = el(
      "div",
      { className: "side", role: "group", aria: { label: `Setting ${name}` } },
      el(
        "fieldset",
        { className: "settings" },
        el("legend", { className: "sr" }, `Setting ${name}`),
        el("label", {}, "Temperature", this.temperature),
        el("label", {}, "Tokens", this.limit),
        el("label", {}, this.guesses, "Speculation"),
      ),
      this.talk,
    );
    this.clear();
  }

  clear() {
    this.messages = [];
    this.talk.replaceChildren(el("p", { className: "quiet" }, "Nothing said yet."));
  }

  /** Answers a message as it comes; returns the text. */
  async send(words, { model, signal, isCompared }) {
    if (!this.messages.length) this.talk.replaceChildren();
    this.messages.push({ role: "user", content: words });
    this.#turn("You", words);
    const turn = this.#turn("Model", "");
    const began = performance.now();
    const seen = { text: "", first: null, last: null, usage: null, reason: null };
    try {
      const answer = await ask("v1/chat/completions", "requests", {
        method: "POST",
        signal,
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(this.#body(model, isCompared)),
      });
      for await (const { data } of eventsOf(answer)) {
        if (data === "[DONE]") break;
        this.#take(JSON.parse(data), seen, turn);
        this.#cost(turn, seen, began);
      }
      this.messages.push({ role: "assistant", content: seen.text });
    } catch (error) {
      if (signal.aborted) {
        this.messages.push({ role: "assistant", content: seen.text });
        turn.cost.append(" Stopped.");
      } else {
        this.messages.pop();
        turn.node.append(el("p", { className: "fault", role: "alert" }, error.message));
        throw error;
      }
    }
    return seen.text;
  }

  #body(model, isCompared) {
    return {
      model,
      messages: this.messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature: this.temperature.valueAsNumber || 0,
      max_tokens: this.limit.valueAsNumber || 256,
      speculative: this.guesses.checked,
      seed: 1,
      // Neither side may profit from what the other has computed.
      ...(isCompared ? { cache_salt: this.salt } : {}),
    };
  }

  #take(chunk, seen, turn) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) seen.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    const text = choice.delta.content ?? "";
    if (text) {
      seen.last = performance.now();
      seen.first ??= seen.last;
      seen.text += text;
      turn.words.append(text);
      this.talk.scrollTop = this.talk.scrollHeight;
    }
    if (choice.finish_reason) seen.reason = choice.finish_reason;
  }

  #cost(turn, { first, last, usage, reason }, began) {
    const parts = [];
    if (first !== null) parts.push(`first token ${duration((first - began) / 1000)}`);
    if (usage) {
      const cached = usage.prompt_tokens_details.cached_tokens;
      const seconds = (last - first) / 1000;
      parts.unshift(
        `${count(cached)} of ${plural(usage.prompt_tokens, "prompt token")} from the cache`,
      );
      parts.push(plural(usage.completion_tokens, "token"));
      if (seconds > 0) parts.push(`${rough((usage.completion_tokens - 1) / seconds)} tokens/s`);
      if (reason && reason !== "stop") parts.push(`ended by ${reason}`);
    }
    setText(turn.cost, parts.join(" · "));
  }

  #turn(who, words) {
    const turn = {
      words: el("div", { className: "words" }, words),
      cost: el("p", { className: "cost" }),
    };
    turn.node = el("div", { className: "turn" }, el("h4", {}, who), turn.words, turn.cost);
    this.talk.append(turn.node);
    this.talk.scrollTop = this.talk.scrollHeight;
    return turn;
  }
}

export class Playground {
  /** `model()` is the model's name; `onKey(message)` must find a key. */
  constructor({ sides, form, words, send, stop, fresh, two }, model, onKey) {
    Object.assign(this, {
      root: sides,
      words,
      sendButton: send,
      stopButton: stop,
      two,
      model,
      onKey,
    });
    this.sides = [
      new Side({ temperature: 0, speculative: true }),
      new Side({ temperature: 0, speculative: false }),
    ];
    this.verdict = el("p", { className: "quiet", role: "status" });
    sides.append(this.sides[0].node);
    sides.after(this.verdict);
    two.addEventListener("change", () => this.#arrange());
    fresh.addEventListener("click", () => this.#clear());
    stop.addEventListener("click", () => this.stopping?.abort());
    form.addEventListener("submit", (event) => (event.preventDefault(), this.#send()));
    words.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
  }

  #arrange() {
    if (this.two.checked) this.root.append(this.sides[1].node);
    else this.sides[1].node.remove();
    this.#clear();
  }

  #clear() {
    this.stopping?.abort();
    this.verdict.textContent = "";
    for (const side of this.sides) side.clear();
  }

  async #send() {
    const words = this.words.value.trim();
    if (!words || this.sendButton.disabled) return;
    this.words.value = "";
    this.verdict.textContent = "";
    this.sendButton.disabled = true;
    this.stopButton.disabled = false;
    this.stopping = new AbortController();
    try {
      await this.#sendToAll(words);
    } catch (error) {
      if (error.status === 401 || error.status === 403) await this.onKey(error.message);
      this.words.value ||= words;
    } finally {
      this.sendButton.disabled = false;
      this.stopButton.disabled = true;
    }
  }

  /** One after the other, so that neither slows the other down. */
  async #sendToAll(words) {
    const isCompared = this.two.checked;
    const options = { model: this.model(), signal: this.stopping.signal, isCompared };
    const texts = [];
    for (const side of isCompared ? this.sides : this.sides.slice(0, 1)) {
      if (options.signal.aborted) return;
      texts.push(await side.send(words, options));
    }
    if (isCompared && !options.signal.aborted) {
      setText(
        this.verdict,
        texts[0] === texts[1]
          ? "Both answers are the same, letter by letter."
          : "The answers differ.",
      );
    }
  }
}
