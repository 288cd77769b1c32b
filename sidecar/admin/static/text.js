// Everything that is shown is text that somebody else wrote: an agent, a model, a server, another
// person. It gets into the page as text nodes only, and what cannot be seen in it is made visible.

/** An element. Strings among the children are ours; what others wrote goes through `seen`. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// Controls, format characters (bidi among them), surrogates, private use and unassigned ones,
// separators, all that is drawn as nothing (the empty Braille pattern too), spaces that are not the
// space; and marks piled up.
const UNSEEN =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs}|\p{M}{4,}/u;
const PICTURE = /\p{Extended_Pictographic}$/u;
const ALL_UNSEEN = new RegExp(UNSEEN, "gu");

const NAMES = {
  0x09: "tab", 0x0d: "carriage return", 0x1b: "escape", 0x7f: "delete", 0xa0: "no-break space",
  0xad: "soft hyphen", 0x61c: "Arabic letter mark", 0x200b: "zero width space",
  0x200c: "zero width non-joiner", 0x200d: "zero width joiner", 0x200e: "left-to-right mark",
  0x200f: "right-to-left mark", 0x2028: "line separator", 0x2029: "paragraph separator",
  0x202a: "left-to-right embedding", 0x202b: "right-to-left embedding",
  0x202c: "pop directional formatting", 0x202d: "left-to-right override",
  0x202e: "right-to-left override", 0x2060: "word joiner", 0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate", 0x2068: "first strong isolate",
  0x2069: "pop directional isolate", 0xfeff: "byte order mark",
};

function chip(run) {
  const points = [...run];
  if (points.length > 3) return h("span", { class: "unseen" }, `${points.length} combining marks`);
  return points.map((point) => {
    const code = point.codePointAt(0);
    const hex = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    return h("span", { class: "unseen", title: NAMES[code] ?? "a character that is not drawn" }, hex);
  });
}

/** A text of others as nodes; `lines`: line ends are kept as such. */
export function nodes(text, lines = false) {
  const value = String(text);
  if (!UNSEEN.test(value)) return [value];
  const found = [];
  let from = 0;
  for (const match of value.matchAll(ALL_UNSEEN)) {
    if (lines && match[0] === "\n") continue;
    // An emoji's own presentation selector hides nothing.
    if (match[0] === "\ufe0f" && PICTURE.test(value.slice(0, match.index))) continue;
    found.push(value.slice(from, match.index), chip(match[0]));
    from = match.index + match[0].length;
  }
  found.push(value.slice(from));
  return found.flat().filter((part) => part !== "");
}

const LONG = 160;

/** A short text of others within a line: its direction stays its own, its length is bounded. */
export function seen(text, attributes = {}) {
  const value = String(text ?? "");
  const cut = clip(value, LONG);
  const element = h("bdi", { dir: "ltr", ...attributes }, nodes(cut));
  if (cut.length < value.length) element.append(h("span", { class: "more" }, `… ${count(value.length)} characters`));
  return element;
}

/**
 * A text of any length in a block. Where it is long it is folded, but for its two ends and for
 * what is marked: `mark` is [from, to], the part that differs from another text.
 */
export function block(text, mark = null, kind = "block") {
  const value = String(text ?? "");
  const element = h("span", { class: kind, dir: "ltr" });
  let at = 0;
  for (const [from, to] of shown(value, mark)) {
    if (from > at) element.append(fold(value, at, from));
    element.append(...marked(value, from, to, mark));
    at = to;
  }
  return element;
}

/** A sentence or two of others. */
export const prose = (text) => block(text, null, "prose");

const HEAD = 700;
const LINES = 14;
const TAIL = 120;
const AROUND = 120;

/** The ranges of a text that are in view at first, in order. */
function shown(value, mark) {
  const head = Math.min(HEAD, lineAt(value, LINES));
  if (head + TAIL >= value.length) return [[0, value.length]];
  const ranges = [[0, edge(value, head)]];
  if (mark) ranges.push([edge(value, mark[0] - AROUND), edge(value, Math.min(mark[1], mark[0] + HEAD) + AROUND)]);
  ranges.push([edge(value, value.length - TAIL), value.length]);
  const joined = [ranges[0]];
  for (const [from, to] of ranges.slice(1)) {
    const last = joined.at(-1);
    if (from <= last[1]) last[1] = Math.max(last[1], to);
    else joined.push([from, to]);
  }
  return joined;
}

function marked(value, from, to, mark) {
  if (!mark || mark[1] <= from || mark[0] >= to) return nodes(value.slice(from, to), true);
  const [start, end] = [Math.max(from, mark[0]), Math.min(to, mark[1])];
  return [
    ...nodes(value.slice(from, start), true),
    h("mark", {}, nodes(value.slice(start, end), true)),
    ...nodes(value.slice(end, to), true),
  ];
}

const WORD = /[\p{L}\p{N}_]/u;

/** Where two texts differ: [from, to] of the first one; null where they have nothing in common. */
export function difference(text, other) {
  let from = 0;
  while (from < text.length && from < other.length && text[from] === other[from]) from += 1;
  let end = 0;
  const most = Math.min(text.length, other.length) - from;
  while (end < most && text[text.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  if (from + end === 0) return null;
  // Whole words: both texts are the same on either side, and so is how far this goes.
  while (from > 0 && WORD.test(text[from - 1])) from -= 1;
  while (end > 0 && WORD.test(text[text.length - end])) end -= 1;
  from = edge(text, from);
  return [from, Math.max(from, edge(text, text.length - end))];
}

const STEP = 20_000;

/** The button in place of value[from:to], which shows it piece by piece. */
function fold(value, from, to) {
  const button = h("button", { type: "button", class: "fold" }, `… ${count(to - from)} more characters, show …`);
  button.addEventListener("click", () => {
    const next = edge(value, Math.min(from + STEP, to));
    const rest = next < to ? fold(value, next, to) : null;
    button.before(...nodes(value.slice(from, next), true));
    if (rest) button.replaceWith(rest);
    else button.remove();
    rest?.focus();
    document.dispatchEvent(new CustomEvent("unfolded"));
  });
  return button;
}

/** A place in a text that is not within a surrogate pair. */
function edge(text, place) {
  const at = Math.min(Math.max(place, 0), text.length);
  const next = text.charCodeAt(at);
  const last = text.charCodeAt(at - 1);
  return next >= 0xdc00 && next < 0xe000 && last >= 0xd800 && last < 0xdc00 ? at - 1 : at;
}

const clip = (text, most) => text.slice(0, edge(text, most));

/** Where line number `lines` begins, counted from nought; the end where there are fewer. */
function lineAt(text, lines) {
  let at = -1;
  for (let line = 0; line < lines; line += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return text.length;
  }
  return at + 1;
}

export const count = (number) => number.toLocaleString("en-US");

export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

// ---------------------------------------------------------------------------------------- time

let skew = 0;

/** The server's clock, from the Date of an answer. */
export function clockOf(date) {
  const there = Date.parse(date ?? "");
  if (!Number.isNaN(there)) skew = there - Date.now();
}

export const now = () => Date.now() + skew;

/** Milliseconds of a time as the API tells it: RFC 3339, or seconds since 1970. */
export const moment = (value) => (typeof value === "number" ? value * 1000 : Date.parse(value));

export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 2 * 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A time that goes on being right: `ticking` renews all of them. */
export function time(value, before = "", after = "") {
  const at = moment(value);
  if (Number.isNaN(at)) return h("span", {}, "");
  const element = h("time", {
    datetime: new Date(at).toISOString(),
    title: new Date(at).toLocaleString(),
    "data-before": before,
    "data-after": after,
  });
  tick(element);
  return element;
}

function tick(element) {
  const left = Date.parse(element.dateTime) - now();
  const { before, after } = element.dataset;
  // The clock of the server is known to a second or so.
  const near = Math.abs(left) < 1500;
  const text = near ? "just now" : left > 0 ? `${after || "in "}${span(left)}` : `${before}${span(-left)} ago`;
  if (element.textContent !== text) element.textContent = text;
}

export function ticking() {
  setInterval(() => document.querySelectorAll("time").forEach(tick), 1000);
}
