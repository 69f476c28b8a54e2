// Numbers for people.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const NONE = "–";

const isMissing = (value) => value === undefined || value === null || Number.isNaN(value);

/** A count, with separators. */
export const count = (value) => (isMissing(value) ? NONE : whole.format(value));

/** A number with three significant digits at most. */
export function rough(value) {
  if (isMissing(value)) return NONE;
  if (value >= 1000) return whole.format(value);
  return String(Number(value.toPrecision(3)));
}

/** Seconds in the unit that suits them. */
export function duration(seconds) {
  if (isMissing(seconds)) return NONE;
  if (seconds < 0.9995) return `${rough(seconds * 1000)} ms`;
  if (seconds < 60) return `${rough(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A share of one as a percentage. */
export function percent(share, digits = 0) {
  return isMissing(share) ? NONE : `${(share * 100).toFixed(digits)} %`;
}

/** Bytes in binary units. */
export function bytes(size) {
  if (isMissing(size)) return NONE;
  for (const [unit, factor] of [
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
  ]) {
    if (Math.abs(size) >= factor) return `${(size / factor).toFixed(2)} ${unit}`;
  }
  return `${size} B`;
}

/** A noun with its number. */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A request's id, short enough for a table: its kind, eight characters, and which completion. */
export function shortId(id) {
  const found = /^([a-z]+-)?([0-9a-f]{8})[0-9a-f]{24}(.*)$/.exec(id);
  if (found) return `${found[2]}${found[3] === "-0" ? "" : found[3]}`;
  return id.length > 24 ? `${id.slice(0, 23)}…` : id;
}
