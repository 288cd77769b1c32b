// Arguments as an approver reads them: every value with its place, and what differs from the
// call that was approved before.

import { Num, same } from "./exact.js";
import { block, difference, h, many, prose, seen } from "./text.js";

const AT_ONCE = 40;
const DEEPEST = 4;
const SHORT = 80;
/** Stands for "there is nothing to compare with". */
export const NOTHING = Symbol("nothing");

/** The arguments (a Map), compared with those of another call where `before` is one. */
export function args(now, before = NOTHING) {
  if (!(now instanceof Map)) return value(now, before, 0);
  if (!now.size && !(before instanceof Map && before.size)) return h("p", { class: "muted" }, "No arguments.");
  return members(now, before, 0);
}

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

function members(now, before, depth) {
  const compared = before instanceof Map;
  const rows = [...now].map(([key, item]) => () => {
    if (!compared) return row(key, value(item, NOTHING, depth + 1), "");
    if (!before.has(key)) return row(key, value(item, NOTHING, depth + 1), "new");
    const was = before.get(key);
    return row(key, value(item, was, depth + 1), same(item, was) ? "same" : "changed");
  });
  if (compared) {
    for (const [key, item] of before) {
      if (!now.has(key)) rows.push(() => row(key, value(item, NOTHING, depth + 1), "gone"));
    }
  }
  return piecewise(h("dl", { class: "args" }), rows, depth);
}

function items(now, before, depth) {
  const compared = Array.isArray(before);
  const rows = now.map((item, i) => () => {
    if (!compared) return row(i, value(item, NOTHING, depth + 1), "");
    if (i >= before.length) return row(i, value(item, NOTHING, depth + 1), "new");
    return row(i, value(item, before[i], depth + 1), same(item, before[i]) ? "same" : "changed");
  });
  if (compared) {
    for (let i = now.length; i < before.length; i += 1) {
      rows.push(() => row(i, value(before[i], NOTHING, depth + 1), "gone"));
    }
  }
  return piecewise(h("dl", { class: "args list" }), rows, depth);
}

const MARKS = { new: "new", changed: "changed", gone: "no longer sent", same: "", "": "" };

function row(key, content, mark) {
  const name = typeof key === "number" ? h("span", { class: "index" }, `${key + 1}.`) : key.length > SHORT ? prose(key) : seen(key);
  const term = h("dt", {}, name);
  if (MARKS[mark]) term.append(" ", h("span", { class: `mark ${mark}` }, MARKS[mark]));
  const short = content.matches(".string, .number, .word, .kind") && content.textContent.length <= SHORT;
  return h("div", { class: short ? `${mark} short` : mark }, term, h("dd", {}, content));
}

/** Rows, the first of them at once and the rest when asked for. */
function piecewise(list, rows, depth) {
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
  if (depth < DEEPEST) {
    show(0, AT_ONCE);
    more(AT_ONCE);
  } else more(0);
  return list;
}

function value(now, before, depth) {
  if (now instanceof Map) return now.size ? members(now, before, depth) : leaf("{ }", "kind");
  if (Array.isArray(now)) return now.length ? items(now, before, depth) : leaf("[ ]", "kind");
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
      texts ? string(before, difference(before, now)) : value(before, NOTHING, depth),
    ),
  );
}

function scalar(now) {
  if (typeof now === "string") return now === "" ? leaf("empty text", "kind") : string(now);
  if (now instanceof Num) return leaf(now.text, "number");
  return leaf(String(now), "word");
}

const string = (text, mark) => h("span", { class: "string" }, block(text, mark));
const leaf = (text, kind) => h("span", { class: kind }, text.length > 60 ? block(text) : text);
