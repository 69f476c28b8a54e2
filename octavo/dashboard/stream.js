// Keys, requests to the server, and server-sent events read from them.

const BASE = new URL("../", import.meta.url);
const SILENCE_MS = 25_000;
const WAITS_MS = [500, 1000, 2000, 4000, 8000];
const HIDDEN_MS = 60_000;

const stored = (kind) => sessionStorage.getItem(`octavo.key.${kind}`);

/** Keys of this tab, by what they are for: "stats" or "requests". Where there is one alone, it
 * serves for both. */
export const keys = {
  get: (kind) => stored(kind) ?? stored("stats") ?? stored("requests"),
  set: (kind, key) => sessionStorage.setItem(`octavo.key.${kind}`, key),
};

/** An answer that is no success, with the server's own words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks the server; throws `Refused` if it declines. */
export async function ask(path, kind, options = {}) {
  const headers = new Headers(options.headers);
  const key = keys.get(kind);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const answer = await fetch(new URL(path, BASE), { cache: "no-store", ...options, headers });
  if (answer.ok) return answer;
  let message = `the server answered with status ${answer.status}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // It was no error of Octavo's: a proxy's, perhaps.
  }
  throw new Refused(answer.status, message);
}

/** Server-sent events of an answer, as {event, data}; `onBytes` is told that bytes have come. */
export async function* eventsOf(answer, onBytes = () => {}) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      onBytes();
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const found = { event: "message", data: "" };
        for (const line of frame.split("\n")) {
          if (line.startsWith("event: ")) found.event = line.slice(7);
          else if (line.startsWith("data: ")) found.data += line.slice(6);
        }
        if (found.data) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const sleep = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/**
 * Follows /stats/stream for as long as the page is there. A connection that breaks, or is silent,
 * is made again; a page that nobody sees lets go of it, and takes it up when it is seen.
 *
 * `on.event(name, data)` gets every event, `on.status(kind, text)` what becomes of the connection,
 * and `on.key(message)` must find a key, and resolves to whether there is one; without, nothing is
 * tried until `reconnect`.
 */
export class Follower {
  constructor(on) {
    this.on = on;
    this.wake = new AbortController();
    this.connection = null;
    document.addEventListener("visibilitychange", () => this.#seen());
    window.addEventListener("online", () => this.reconnect());
  }

  /** Begins anew, at once. */
  reconnect() {
    this.connection?.abort();
    this.wake.abort();
  }

  async run() {
    let failures = 0;
    for (;;) {
      if (this.isResting) {
        this.on.status("wait", "Resting");
        await this.#pause(2 ** 30);
        continue;
      }
      try {
        await this.#follow(() => (failures = 0));
        this.on.status("wait", "Reconnecting");
      } catch (error) {
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.on.status("bad", "Needs a key");
          if (!(await this.on.key(error.message))) await this.#pause(2 ** 30);
          continue;
        }
        if (!this.isResting) this.on.status("bad", "Offline");
      }
      await this.#pause(WAITS_MS[Math.min(failures++, WAITS_MS.length - 1)]);
    }
  }

  async #follow(onOpen) {
    const connection = (this.connection = new AbortController());
    let timer = 0;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => connection.abort(), SILENCE_MS);
    };
    alive();
    try {
      const answer = await ask("stats/stream", "stats", { signal: connection.signal });
      for await (const { event, data } of eventsOf(answer, alive)) {
        onOpen();
        this.on.event(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(timer);
      connection.abort();
    }
  }

  async #pause(ms) {
    this.wake = new AbortController();
    await sleep(Math.min(ms, 2 ** 30), this.wake.signal);
  }

  #seen() {
    clearTimeout(this.hiding);
    if (document.visibilityState === "hidden") {
      this.hiding = setTimeout(() => {
        this.isResting = true;
        this.connection?.abort();
      }, HIDDEN_MS);
    } else if (this.isResting) {
      this.isResting = false;
      this.reconnect();
    }
  }
}
