// How numbers, times and names are written.

/** A number of the protocol: 64-bit integers come as texts, and zeros are left out. */
export const number = (value) => Number(value ?? 0);

const digits = new Intl.NumberFormat("en");
export const count = (value) => digits.format(number(value));

export function bytes(value) {
  let size = number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024 || unit === "GiB") return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
}

/** A duration in milliseconds. */
export function duration(ms) {
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms < 60_000 ? ms / 1000 : Math.round(ms / 1000);
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** A rate a second. */
export function rate(value) {
  if (value === undefined) return "…";
  return value < 10 ? value.toFixed(1) : count(Math.round(value));
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A time in milliseconds since 1970; without the day if it is today's. */
export function time(ms) {
  const date = new Date(number(ms));
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : day.format(date);
}

/** The name of a value of an enumeration: `NODE_STATUS_LIVE` becomes `live`. */
export function named(value, prefix) {
  return value ? value.slice(prefix.length).toLowerCase().replaceAll("_", "-") : "unknown";
}

export const nodeStatus = (node) => named(node.status, "NODE_STATUS_");
export const shardState = (shard) => named(shard.state, "SHARD_STATE_");
export const kindOf = (method) => named(method.kind, "MESSAGE_KIND_");

/** The text of bytes in base64, or their number if they are none. */
export function textOfBase64(base64) {
  const binary = atob(base64 ?? "");
  const raw = Uint8Array.from(binary, (it) => it.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    return Array.from(raw.slice(0, 64), (it) => it.toString(16).padStart(2, "0")).join(" ") + (raw.length > 64 ? " …" : "");
  }
}
