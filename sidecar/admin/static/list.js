// Lists that are renewed in place: what is the same stays the same element, with its focus.

import { h } from "./text.js";

/** Make the children of `parent` those of `items`; an element is built anew when its item is. */
export function renew(parent, items, keyOf, build) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const place = focused?.closest("[data-key]")?.dataset.key;
  const children = items.map((item) => {
    const key = keyOf(item);
    const print = JSON.stringify(item);
    const had = old.get(key);
    if (had && had.print === print) return had;
    const made = build(item);
    made.dataset.key = key;
    made.print = print;
    return made;
  });
  // Nothing is taken out and put in again: that would lose the focus and the place scrolled to.
  let at = parent.firstChild;
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) {
    if (child === at) at = at.nextSibling;
    child.remove();
  }
  at = parent.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  if (focused && !focused.isConnected && place !== undefined) {
    const again = [...parent.children].find((child) => child.dataset.key === place);
    again?.querySelector("a, button")?.focus();
  }
}

/** What stands in place of an empty list. */
export const empty = (...text) => h("p", { class: "empty" }, ...text);
