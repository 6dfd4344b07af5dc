// Numbers and names as people read them. Pure.

/** Characters that cannot be seen, or that reorder what follows, as their escapes: somebody else chooses tables' names. As in cdc/terminal.py. */
export const visible = (text) =>
  String(text).replace(/(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (char) => "\\u" + char.codePointAt(0).toString(16).padStart(4, "0"));

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (n) => (n == null ? "–" : whole.format(n));

/** Three digits at most, with k, M, G: for what changes every second. */
export function compact(n) {
  if (n == null || !isFinite(n)) return "–";
  if (n < 0.05) return "0";
  if (n < 9.95) return n.toFixed(1);
  for (const [unit, size] of [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]]) {
    const value = n / size;
    if (value < 999.5 || unit === "T") return (value < 9.95 && unit ? value.toFixed(1) : value.toFixed(0)) + (unit && " " + unit);
  }
  return "–";
}

/** The same for what can only be whole. */
export const compactCount = (n) => (n != null && n < 1000 ? count(n) : compact(n));

export function bytes(n) {
  if (n == null) return "–";
  for (const [unit, size] of [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]) {
    const value = n / size;
    if (value < 999.5 || unit === "TB") return (value < 9.95 && size > 1 ? value.toFixed(1) : value.toFixed(0)) + " " + unit;
  }
  return "–";
}

export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return "–";
  if (seconds < 0.9995) return Math.round(seconds * 1000) + " ms";
  if (seconds < 9.95) return seconds.toFixed(1) + " s";
  if (seconds < 100) return Math.round(seconds) + " s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return minutes + " min";
  const hours = Math.round(seconds / 3600);
  return hours < 48 ? hours + " h" : Math.round(hours / 24) + " days";
}

/** Never 100 % before all is done. */
export const percent = (done, total) => Math.floor((100 * done) / Math.max(total, 1)) + " %";

export const ago = (seconds) => (seconds < 2 ? "just now" : duration(seconds) + " ago");

/** A round number at or above n that a chart's axis can end at, and its steps. */
export function axis(n) {
  const top = Math.max(n, 4);
  const size = 10 ** Math.floor(Math.log10(top));
  for (const [factor, steps] of [[1, 4], [2, 4], [4, 4], [5, 5], [10, 5]]) {
    if (factor * size >= top) return { top: factor * size, steps };
  }
  return { top, steps: 4 };
}
