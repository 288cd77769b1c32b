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
// separators, all that is drawn as nothing, spaces that are not the space; and marks piled up.
const UNSEEN =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}|\p{M}{4,}/u;
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

/** A text of any length in a block: folded where it is long, its end shown as well. */
export function block(text) {
  const value = String(text);
  const element = h("span", { class: "block", dir: "ltr" });
  const head = clip(firstLines(value, 14), 700);
  if (head.length === value.length) {
    element.append(...nodes(value, true));
    return element;
  }
  const tail = clipStart(value, 120, head.length);
  const hidden = value.length - head.length - tail.length;
  element.append(...nodes(head, true));
  if (hidden <= 0) {
    element.append(...nodes(value.slice(head.length), true));
    return element;
  }
  element.append(fold(value, head.length, value.length - tail.length), ...nodes(tail, true));
  return element;
}

const STEP = 20_000;

/** The button in place of value[from:to], which shows it piece by piece. */
function fold(value, from, to) {
  const button = h("button", { type: "button", class: "fold" }, `… ${count(to - from)} more characters, show …`);
  button.addEventListener("click", () => {
    const piece = clip(value.slice(from, to), STEP);
    const next = from + piece.length;
    const rest = next < to ? fold(value, next, to) : null;
    button.before(...nodes(piece, true));
    if (rest) button.replaceWith(rest);
    else button.remove();
    rest?.focus();
    document.dispatchEvent(new CustomEvent("unfolded"));
  });
  return button;
}

// Cuts that leave no half of a surrogate pair.
function clip(text, most) {
  if (text.length <= most) return text;
  const last = text.charCodeAt(most - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? most - 1 : most);
}

function clipStart(text, most, least) {
  let from = Math.max(least, text.length - most);
  const first = text.charCodeAt(from);
  if (from > least && first >= 0xdc00 && first < 0xe000) from += 1;
  return text.slice(from);
}

function firstLines(text, lines) {
  let at = -1;
  for (let line = 0; line < lines; line += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return text;
  }
  return text.slice(0, at + 1);
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
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
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
  const text = left > 0 ? `${after || "in "}${span(left)}` : `${before}${span(-left)} ago`;
  if (element.textContent !== text) element.textContent = text;
}

export function ticking() {
  setInterval(() => document.querySelectorAll("time").forEach(tick), 1000);
}
