// Numbers and times as people read them.
import { since } from "./texts.ts";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const long = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium", hour12: false });

/** 1,234,567 as 1.2M. */
export const short = (count: number): string => (count < 1_000 ? String(count) : compact.format(count));
export const whole = (count: number): string => plain.format(count);

export function bytes(count: number): string {
  if (count < 1_024) return `${count} B`;
  return count < 1 << 20 ? `${(count / 1_024).toFixed(1)} KB` : `${(count / (1 << 20)).toFixed(1)} MB`;
}

/** Microseconds, as the log has them, or an ISO text. */
export const dateOf = (time: number | string): Date => new Date(typeof time === "number" ? time / 1_000 : time);

/** Today by the clock, this year by the day, else in full. */
export function when(time: number | string | null | undefined): string {
  if (!time) return "";
  const date = dateOf(time);
  const now = new Date();
  if (date.toDateString() === now.toDateString()) return clock.format(date);
  if (date.getFullYear() === now.getFullYear()) return day.format(date);
  return `${day.format(date)} ${date.getFullYear()}`;
}

export const exactly = (time: number | string | null | undefined): string => (time ? long.format(dateOf(time)) : "");

/** How long ago: 3 min, 2 h, 5 d, 2 y. */
export function ago(time: number | string | null | undefined, now = Date.now()): string {
  if (!time) return "";
  const seconds = Math.max(0, (now - dateOf(time).getTime()) / 1_000);
  if (seconds < 60) return since.now;
  if (seconds < 3_600) return since.minutes(Math.floor(seconds / 60));
  if (seconds < 86_400) return since.hours(Math.floor(seconds / 3_600));
  const days = Math.floor(seconds / 86_400);
  return days < 730 ? since.days(days) : since.years(Math.floor(days / 365));
}

/** Picodollars. */
export function dollars(cost: number | null | undefined): string {
  if (cost === null || cost === undefined) return "–";
  const amount = cost / 1e12;
  return `$${amount >= 1 || amount === 0 ? amount.toFixed(2) : amount.toPrecision(2)}`;
}
