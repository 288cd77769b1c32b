// Arguments as an approver reads them: every value with its place, and what differs from the
// call that was approved before.

import { Num, same } from "./exact.js";
import { block, difference, h, many, prose, seen } from "./text.js";

const AT_ONCE = 40;
const DEEPEST = 4;
const SHORT = 80;
/** Stands for "there is nothing to compare with". */
export const NOTHING = Symbol("nothing");

/**
 * The arguments (a Map), compared with those of another call where `before` is one. `folded` are
 * the JSON pointers (RFC 6901) of values that are shown only to who asks to see them.
 */
export function args(now, before = NOTHING, folded = new Set()) {
  if (!(now instanceof Map)) return value(now, before, at("", folded));
  if (!now.size && !(before instanceof Map && before.size)) return h("p", { class: "muted" }, "No arguments.");
  return members(now, before, at("", folded));
}

/** A place in the arguments: its pointer, and how deep it is. */
const at = (path, folded, depth = 0) => ({ path, folded, depth });
const below = (place, key) =>
  at(`${place.path}/${String(key).replaceAll("~", "~0").replaceAll("/", "~1")}`, place.folded, place.depth + 1);

/** How many of the top-level arguments are new, changed, gone and the same. */
export function tally(now, before) {
  const found = { new: 0, changed: 0, gone: 0, same: 0 };
  for (const [key, item] of now) {
    if (!before.has(key)) found.new += 1;
    else if (same(item, before.get(key))) found.same += 1;
    else found.changed += 1;
  }
  for (const key of before.keys()) if (!now.has(key)) found.gone += 1;
  return found;
}

function members(now, before, place) {
  const compared = before instanceof Map;
  const rows = [...now].map(([key, item]) => () => compare(key, item, compared, compared && before.has(key), compared && before.get(key), place));
  if (compared) {
    for (const [key, item] of before) if (!now.has(key)) rows.push(() => gone(key, item, place));
  }
  return piecewise(h("dl", { class: "args" }), rows, place);
}

function items(now, before, place) {
  const compared = Array.isArray(before);
  const rows = now.map((item, i) => () => compare(i, item, compared, compared && i < before.length, compared && before[i], place));
  if (compared) {
    for (let i = now.length; i < before.length; i += 1) rows.push(() => gone(i, before[i], place));
  }
  return piecewise(h("dl", { class: "args list" }), rows, place);
}

/** A row for what is there now; `had`: it was there before, as `was`. */
function compare(key, item, compared, had, was, place) {
  const inside = below(place, key);
  if (had) return row(key, value(item, was, inside), same(item, was) ? "same" : "changed");
  return row(key, value(item, NOTHING, inside), compared ? "new" : "");
}

const gone = (key, item, place) => row(key, value(item, NOTHING, below(place, key)), "gone");

const MARKS = { new: "new", changed: "changed", gone: "no longer sent", same: "", "": "" };

function row(key, content, mark) {
  const name = typeof key === "number" ? h("span", { class: "index" }, `${key + 1}.`) : key.length > SHORT ? prose(key) : seen(key);
  const term = h("dt", {}, name);
  if (MARKS[mark]) term.append(" ", h("span", { class: `mark ${mark}` }, MARKS[mark]));
  const short = content.matches(".string, .number, .word, .kind") && content.textContent.length <= SHORT;
  return h("div", { class: short ? `${mark} short` : mark }, term, h("dd", {}, content));
}

/** Rows, the first of them at once and the rest when asked for. */
function piecewise(list, rows, place) {
  const show = (from, to) => list.append(...rows.slice(from, to).map((make) => make()));
  const more = (from) => {
    const left = rows.length - from;
    if (left <= 0) return;
    const button = h("button", { type: "button", class: "fold" }, `… ${many(left, "more entry", "more entries")}, show …`);
    const holder = h("div", {}, h("dt", {}, ""), h("dd", {}, button));
    button.addEventListener("click", () => {
      holder.remove();
      show(from, from + AT_ONCE * 5);
      more(from + AT_ONCE * 5);
      document.dispatchEvent(new CustomEvent("unfolded"));
    });
    list.append(holder);
  };
  if (place.depth < DEEPEST) {
    show(0, AT_ONCE);
    more(AT_ONCE);
  } else more(0);
  return list;
}

function value(now, before, place) {
  if (place.folded.has(place.path)) {
    return asked(h("button", { type: "button", class: "fold" }, "write-only, show …"), () => value(now, before, { ...place, folded: new Set() }));
  }
  if (now instanceof Map) return now.size ? members(now, before, place) : leaf("{ }", "kind");
  if (Array.isArray(now)) return now.length ? items(now, before, place) : leaf("[ ]", "kind");
  if (before === NOTHING || same(now, before)) return scalar(now);
  const texts = typeof now === "string" && typeof before === "string" && now && before;
  return h(
    "div",
    {},
    texts ? string(now, difference(now, before)) : scalar(now),
    h(
      "div",
      { class: "was" },
      h("span", { class: "label" }, "was "),
      texts ? string(before, difference(before, now)) : value(before, NOTHING, place),
    ),
  );
}

/** A button that makes way for what it stands for. */
function asked(button, make) {
  button.addEventListener("click", () => {
    button.replaceWith(make());
    document.dispatchEvent(new CustomEvent("unfolded"));
  });
  return h("span", {}, button);
}

function scalar(now) {
  if (typeof now === "string") return now === "" ? leaf("empty text", "kind") : string(now);
  if (now instanceof Num) return leaf(now.text, "number");
  return leaf(String(now), "word");
}

const string = (text, mark) => h("span", { class: "string" }, block(text, mark));
const leaf = (text, kind) => h("span", { class: kind }, text.length > 60 ? block(text) : text);

// ------------------------------------------------------------------------------- definitions

/** How a tool's definition differs from the one before: rows of paths, or that it does not. */
export function definitions(before, now) {
  const old = leaves(before);
  const rows = [];
  for (const [path, text] of leaves(now)) {
    if (!old.has(path)) rows.push([path, "new", text, null]);
    else if (old.get(path) !== text) rows.push([path, "changed", text, old.get(path)]);
    old.delete(path);
  }
  for (const [path, text] of old) rows.push([path, "gone", text, null]);
  if (!rows.length) return h("p", { class: "muted" }, "Only the order of its keys.");
  return h(
    "dl",
    { class: "args" },
    rows.map(([path, mark, text, was]) =>
      h(
        "div",
        { class: mark },
        h("dt", {}, prose(path), " ", h("span", { class: `mark ${mark}` }, mark === "gone" ? "not any more" : mark)),
        h("dd", {}, block(text, was === null ? null : difference(text, was)), was === null ? "" : h("div", { class: "was" }, h("span", { class: "label" }, "was "), block(was, difference(was, text)))),
      ),
    ),
  );
}

/** Every leaf of a JSON value as a text, by its path. */
function leaves(value, path = "", found = new Map()) {
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    for (const [key, item] of Object.entries(value)) leaves(item, path ? `${path}.${key}` : key, found);
  } else found.set(path, typeof value === "string" ? value : JSON.stringify(value) ?? "");
  return found;
}
