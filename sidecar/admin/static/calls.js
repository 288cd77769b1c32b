// What waits for an answer, and what has been answered.

import * as api from "./api.js";
import { compared, facts, heading, reasons, redefined } from "./call.js";
import { exact, plain } from "./exact.js";
import { empty, renew } from "./list.js";
import { count, h, many, moment, now, seen, time } from "./text.js";

const PAGE = 50;
/** Calls that one request asks for at most. */
const MOST = 500;
/** Milliseconds for which a call that came up by itself cannot be answered: nobody has read it. */
const UNREAD = 600;
const SOON = 10 * 60_000;

export const waiting = section({
  name: "waiting",
  title: "Waiting",
  counts: true,
  query: "state=waiting&order=oldest",
  none: ["Nothing waits for an answer."],
});

export const history = section({
  name: "history",
  title: "History",
  query: "state=answered",
  none: ["Nothing has been answered yet."],
});

function section({ name, title, counts, query, none }) {
  let page = null;
  let parts = null;
  let rows = [];
  let more = false;
  let open = "";
  let shownAt = 0;
  let wanted = 1;
  let reading = null;
  let stale = false;

  // ------------------------------------------------------------------------------------- the list

  async function load() {
    const found = [];
    let next = "";
    let body;
    do {
      const limit = Math.min(wanted - found.length, MOST);
      body = await api.get(`/v1/calls?${query}&limit=${limit}${next && `&after=${encodeURIComponent(next)}`}`);
      found.push(...body.calls);
      next = body.next ?? "";
    } while (next && found.length < wanted);
    return { found, more: Boolean(next), counts: body.counts };
  }

  /** Look again: at once, or when the look that is under way is done. */
  function refresh() {
    if (reading) stale = true;
    else
      reading = look().finally(() => {
        reading = null;
        if (stale && page.me) refresh();
      });
    return reading;
  }

  async function look() {
    do {
      stale = false;
      const mine = parts;
      try {
        const got = await load();
        if (counts) page.badge(name, got.counts.waiting ?? 0);
        if (mine && mine === parts) {
          rows = got.found;
          ({ more } = got);
          draw(got.counts);
          if (!open && rows.length && page.wide.matches) choose(rows[0].id);
        }
      } catch (failed) {
        if (mine && mine === parts && failed.status !== 401) parts.status.textContent = failed.message;
      }
    } while (stale && page.me);
  }

  function draw(totals) {
    renew(parts.list, rows, (call) => call.id, line);
    mark();
    parts.none.hidden = rows.length > 0;
    parts.more.hidden = !more;
    const total = name === "waiting" ? totals?.waiting : undefined;
    parts.status.textContent = total > rows.length ? `The first ${count(rows.length)} of ${count(total)}` : "";
    parts.split.classList.toggle("bare", !rows.length && !open);
  }

  function line(call) {
    const link = h(
      "a",
      { href: `#/${name}/${encodeURIComponent(call.id)}` },
      h("span", { class: "tool" }, seen(call.tool)),
      h("span", { class: "by" }, seen(call.principal)),
      h("span", { class: "when" }, time(name === "waiting" ? call.asked_at : call.answered_at ?? call.ended_at ?? call.asked_at)),
    );
    if (name === "waiting") {
      const labels = (call.labels ?? []).map((each) => seen(each.label ?? each));
      if (labels.length) link.append(h("span", { class: "chip label" }, labels.map((each, i) => [i ? ", " : "", each])));
      if (moment(call.expires_at) - now() < SOON) link.append(h("span", { class: "chip warn" }, "expires ", time(call.expires_at)));
    } else link.append(h("span", { class: `chip ${call.state}` }, call.state));
    return h("li", {}, link);
  }

  function mark() {
    for (const item of parts.list.children) {
      const link = item.firstElementChild;
      if (item.dataset.key === open) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  // ----------------------------------------------------------------------------------- one of them

  function choose(id, { focus = false } = {}) {
    const hash = `#/${name}/${encodeURIComponent(id)}`;
    // The address follows without an entry for each call that was looked at.
    if (page.wide.matches) window.history.replaceState(null, "", hash);
    else location.hash = hash;
    show(id);
    if (focus) [...parts.list.children].find((each) => each.dataset.key === id)?.firstElementChild.focus();
  }

  async function show(id) {
    if (!parts) return;
    if (!id) {
      open = "";
      parts.detail.replaceChildren();
      parts.split.classList.remove("open");
      mark();
      if (page.wide.matches && rows.length) choose(rows[0].id);
      return;
    }
    const another = id !== open;
    open = id;
    parts.split.classList.add("open");
    parts.split.classList.remove("bare");
    mark();
    if (another) parts.detail.replaceChildren(empty("Loading …"));
    await fill(id, another);
  }

  async function fill(id, another) {
    const mine = parts;
    let call;
    try {
      call = exact(await api.text(`/v1/calls/${encodeURIComponent(id)}`));
    } catch (failed) {
      if (parts === mine && open === id) parts.detail.replaceChildren(empty(failed.status === 404 ? "There is no such call (any more)." : failed.message));
      return;
    }
    if (parts !== mine || open !== id) return;
    const state = call.get("state");
    const had = parts.detail.firstElementChild;
    // A reason that is being written stays, as long as it can still be given.
    if (!another && had?.dataset.state === state && had.dataset.key === id) return;
    if (another) shownAt = performance.now();
    parts.detail.replaceChildren(detail(call));
    folded();
  }

  function detail(call) {
    const about = plain(call);
    const element = h("div", { class: "call", "data-state": about.state, "data-key": about.id });
    const back = h("a", { class: "back", href: `#/${name}` }, "‹ all calls");
    element.append(
      h("div", { class: "read" }, back, heading(about), redefined(about), compared(call), reasons(about), facts(about)),
    );
    if (about.state === "waiting") {
      const role = h("p", { class: "foot muted" }, `You are signed in as a ${page.me.role}: you can look, and an approver answers.`);
      element.append(page.may("approver") ? form(about) : role);
    }
    return element;
  }

  function folded() {
    const left = parts?.detail.querySelectorAll(".fold").length ?? 0;
    const told = parts?.detail.querySelector(".folded");
    if (told) told.textContent = left ? `${many(left, "part")} of this call ${left === 1 ? "is" : "are"} folded. ` : "";
  }

  // ------------------------------------------------------------------------------------ answering

  function form(about) {
    const why = h("input", { id: "why", type: "text", maxlength: "2000", autocomplete: "off", "aria-describedby": "why-hint" });
    const hint = h("p", { id: "why-hint", class: "muted hint", role: "status" });
    const told = h("span", { class: "folded" });
    const element = h("form", { class: "answer", "aria-label": "Answer" });
    let armed = "";
    let sending = false;

    const arm = (what) => {
      armed = what;
      element.dataset.armed = what;
      hint.textContent = what ? `Enter to ${what}, Esc to leave it.` : "";
    };
    const send = async (what) => {
      if (sending) return;
      if (performance.now() - shownAt < UNREAD) {
        hint.textContent = "This call has just come up: look at it first.";
        return;
      }
      const busy = (is) => {
        sending = is;
        for (const each of buttons) each.disabled = is;
      };
      busy(true);
      try {
        await api.change("POST", `/v1/calls/${encodeURIComponent(about.id)}/${what}`, why.value ? { why: why.value } : {});
        page.notice([what === "approve" ? "Approved " : "Denied ", seen(about.tool), " of ", seen(about.principal), "."]);
        answered(about.id);
      } catch (failed) {
        busy(false);
        if (failed.status === 401) return;
        page.notice([seen(failed.message)], "bad");
        if (failed.status === 409 || failed.status === 404) {
          parts?.detail.replaceChildren(empty("Loading …"));
          await Promise.all([fill(about.id, true), refresh()]);
        }
      }
    };
    const button = (what, key) => h(
      "button",
      { type: "button", class: what, onclick: () => send(what), "aria-keyshortcuts": key },
      what === "approve" ? "Approve" : "Deny",
    );
    const buttons = [button("deny", "d"), button("approve", "a")];

    // Enter in the only field of a form submits it, also without a button of that kind.
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (armed) send(armed);
      else hint.textContent = "Choose Approve or Deny.";
    });
    why.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.repeat) event.preventDefault();
    });
    why.addEventListener("blur", () => arm(""));
    element.arm = (what) => {
      why.focus();
      arm(what);
    };
    element.append(
      h("label", { for: "why" }, "Reason ", h("span", { class: "muted" }, "(optional; the agent is told when denied)")),
      why,
      h("div", { class: "buttons" }, h("p", { class: "muted" }, told, hint), ...buttons),
    );
    return element;
  }

  function answered(id) {
    if (!parts) return;
    const at = rows.findIndex((call) => call.id === id);
    rows = rows.filter((call) => call.id !== id);
    draw();
    const next = rows[at] ?? rows[at - 1];
    open = "";
    parts.detail.replaceChildren();
    if (next && page.wide.matches) choose(next.id, { focus: true });
    else {
      parts.split.classList.remove("open");
      window.history.replaceState(null, "", `#/${name}`);
      draw();
      page.main.focus();
    }
  }

  function step(by) {
    const at = rows.findIndex((call) => call.id === open);
    const next = at < 0 ? rows[by > 0 ? 0 : rows.length - 1] : rows[at + by];
    if (next) choose(next.id, { focus: true });
    else if (by > 0 && more) {
      wanted += PAGE;
      refresh().then(() => rows[at + 1] && choose(rows[at + 1].id, { focus: true }));
    }
  }

  // ------------------------------------------------------------------------------ what page.js uses

  document.addEventListener("unfolded", folded);

  return {
    name,
    title,
    counts,
    enter(given, id) {
      page = given;
      open = "";
      rows = [];
      const list = h("ul", { class: "calls" });
      const nothing = h("div", { hidden: true }, empty(...none));
      const status = h("p", { class: "muted status", role: "status" });
      const button = h("button", { type: "button", hidden: true, class: "quiet" }, `Show ${PAGE} more`);
      button.addEventListener("click", () => {
        wanted += PAGE;
        refresh();
      });
      const detailed = h("section", { class: "detail", "aria-label": "The call" });
      const split = h(
        "div",
        { class: "split" },
        h("section", { class: "overview", "aria-labelledby": "list-title" }, h("h1", { id: "list-title" }, title), nothing, list, status, button),
        detailed,
      );
      parts = { list, none: nothing, status, more: button, detail: detailed, split };
      page.main.replaceChildren(split);
      wanted = PAGE;
      if (id) show(id);
      refresh();
    },
    show,
    leave() {
      parts = null;
      // What is counted from elsewhere needs no rows.
      wanted = 1;
    },
    changed(given, nouns, here) {
      page = given;
      if (!nouns.has("calls")) return;
      refresh();
      if (here && open) fill(open, false);
    },
    key(key) {
      const answer = parts?.detail.querySelector(".answer");
      switch (key) {
        case "j":
          step(1);
          return true;
        case "k":
          step(-1);
          return true;
        case "a":
          answer?.arm("approve");
          return Boolean(answer);
        case "d":
          answer?.arm("deny");
          return Boolean(answer);
        case "e":
          for (let round = 0; round < 20; round += 1) parts?.detail.querySelectorAll(".fold").forEach((button) => button.click());
          return true;
        case "Escape":
          if (document.activeElement?.id === "why") {
            document.activeElement.blur();
            [...parts.list.children].find((each) => each.dataset.key === open)?.firstElementChild.focus();
          } else if (open && !page.wide.matches) page.go(`#/${name}`);
          else return false;
          return true;
        default:
          return false;
      }
    },
  };
}
