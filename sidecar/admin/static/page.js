// The page: signing in, sections, keys, and being told of what changes.

import * as api from "./api.js";
import { history, waiting } from "./calls.js";
import { policy, servers, sessions, tools, works } from "./state.js";
import { h, seen, ticking } from "./text.js";

const SECTIONS = [waiting, history, sessions, servers, tools, policy, works];
const $ = (id) => document.getElementById(id);
const main = $("main");

/** What every section is given. */
const page = {
  me: null,
  main,
  notice,
  ask,
  go: (hash) => {
    location.hash = hash;
  },
  /** Whether whoever is signed in may do what this role may. */
  may: (role) => RANK[page.me?.role] >= RANK[role],
  badge,
  wide: matchMedia("(min-width: 60rem)"),
};
const RANK = { viewer: 1, approver: 2, operator: 3 };

let section = null;
let leaving = new AbortController();

// ------------------------------------------------------------------------------------ signing in

async function enter(token) {
  api.use(token);
  page.me = await api.get("/v1/me");
  $("who").replaceChildren(seen(page.me.name), ` · ${page.me.role}`);
  for (const id of ["nav", "help"]) $(id).hidden = false;
  // On a socket that is forwarded to here there is no token, and nothing to sign out of.
  $("leave").hidden = !token;
  listen();
  // Leaves the sign-in form, wherever it was opened.
  section = null;
  route();
  main.focus();
}

function signIn(text = "") {
  leaving.abort();
  api.use("");
  page.me = null;
  section?.leave?.();
  section = null;
  for (const id of ["nav", "help", "leave"]) $(id).hidden = true;
  if ($("dialog").open) $("dialog").close();
  $("who").replaceChildren();
  $("live").replaceChildren();
  document.title = "Sign in · sidecar";
  const error = h("p", { class: "error", id: "sign-error", role: "alert" });
  const input = h("input", {
    id: "token",
    type: "password",
    autocomplete: "current-password",
    spellcheck: "false",
    required: true,
    "aria-describedby": "sign-error sign-hint",
  });
  const button = h("button", { class: "primary" }, "Sign in");
  const form = h(
    "form",
    { class: "sign", "aria-labelledby": "sign-title" },
    h("h1", { id: "sign-title" }, "Sign in"),
    // For password managers, which keep a name beside each password.
    h("input", { type: "text", autocomplete: "username", value: "sidecar", hidden: true }),
    h("label", { for: "token" }, "Token"),
    input,
    error,
    button,
    h(
      "p",
      { id: "sign-hint", class: "muted" },
      "Your token of admin.approvers, or the one of admin.token_file. It stays in this tab's memory: reloading the page asks for it again.",
    ),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    error.textContent = "";
    try {
      await enter(input.value.trim());
    } catch (failed) {
      api.use("");
      error.textContent = failed.status === 401 ? "Nobody has this token." : failed.message;
      input.select();
      input.focus();
    } finally {
      button.disabled = false;
    }
  });
  error.textContent = text;
  main.replaceChildren(form);
  input.focus();
}

document.addEventListener("signed-out", () => {
  if (page.me) signIn("The token is no longer valid.");
});
$("leave").addEventListener("click", () => signIn());

async function begin() {
  let token = "";
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    token = decodeURIComponent(given[1]);
    // It must not stay in the address, nor in what the browser remembers of this tab.
    window.history.replaceState(null, "", "/#/waiting");
  }
  try {
    await enter(token);
  } catch (failed) {
    signIn(failed.status === 401 && !token ? "" : failed.message);
  }
}

// -------------------------------------------------------------------------------------- sections

function build() {
  $("nav").replaceChildren(
    h(
      "ul",
      {},
      SECTIONS.map((each) =>
        h(
          "li",
          { id: `nav-${each.name}`, hidden: each.optional },
          h("a", { href: `#/${each.name}` }, each.short ?? each.title, h("span", { class: "count", hidden: true })),
        ),
      ),
    ),
  );
}

function badge(name, number) {
  const entry = $(`nav-${name}`);
  const counter = entry.querySelector(".count");
  counter.hidden = !number;
  counter.textContent = number ? ` ${number}` : "";
  if (name === "works") entry.hidden = !number;
  if (name === "waiting") document.title = `${number ? `(${number}) ` : ""}sidecar`;
}

function route() {
  if (!page.me) return;
  const [, name, argument] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
  const wanted = SECTIONS.find((each) => each.name === name) ?? waiting;
  const inside = decodeURIComponent(argument ?? "");
  if (section !== wanted) {
    section?.leave?.();
    section = wanted;
    for (const link of $("nav").querySelectorAll("a")) {
      if (link.getAttribute("href") === `#/${wanted.name}`) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "center" });
      } else link.removeAttribute("aria-current");
    }
    main.replaceChildren();
    main.dataset.section = wanted.name;
    wanted.enter(page, inside);
  } else {
    wanted.show?.(inside);
  }
}

window.addEventListener("hashchange", () => (location.hash.startsWith("#token=") ? begin() : route()));

// -------------------------------------------------------------------------------- what changes

/** What to look at again, by the first word of an event's name; for any other, at everything. */
const NOUNS = {
  call: ["calls"],
  server: ["servers", "tools"],
  tools: ["servers", "tools"],
  session: ["sessions"],
  labels: ["sessions"],
  policy: ["policy", "tools"],
  work: ["works"],
};
const EVERYTHING = ["calls", "servers", "tools", "sessions", "policy", "works"];
const GAP = 400;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;

let changed = new Set();
let due = 0;

/** Let every section that shows one of these nouns look again, a few times a second at most. */
function look(nouns) {
  for (const noun of nouns) changed.add(noun);
  if (due) return;
  due = setTimeout(() => {
    due = 0;
    const all = changed;
    changed = new Set();
    if (!page.me) return;
    for (const each of SECTIONS) {
      if (each === section || each.counts) each.changed?.(page, all, each === section);
    }
  }, GAP);
}

function listen() {
  leaving.abort();
  leaving = new AbortController();
  follow(leaving.signal);
}

// A page that the browser keeps for going back must not keep a connection.
window.addEventListener("pagehide", () => leaving.abort());
window.addEventListener("pageshow", (event) => {
  if (event.persisted && page.me) listen();
});

async function follow(signal) {
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    try {
      await api.events(
        "/v1/events",
        (type) => look(NOUNS[type.split(".")[0]] ?? EVERYTHING),
        () => {
          wait = FIRST_WAIT;
          live("live", "Live");
          // What happened while nobody listened.
          look(EVERYTHING);
        },
        signal,
      );
    } catch (failed) {
      if (signal.aborted) return;
    }
    if (signal.aborted) return;
    live("lost", "Reconnecting …");
    await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

function live(state, text) {
  $("live").className = state;
  $("live").textContent = text;
}

// ---------------------------------------------------------------------------- notices, questions

function notice(children, kind = "") {
  const box = h("div", { class: `notice ${kind}` }, h("p", {}, children));
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Dismiss" }, "×");
  close.addEventListener("click", () => box.remove());
  box.append(close);
  $("notices").append(box);
  if (kind !== "bad") setTimeout(() => box.remove(), 8000);
}

/** A question in a dialog; whether the answer is yes. */
function ask(title, children, yes) {
  const dialog = $("dialog");
  return new Promise((resolve) => {
    dialog.replaceChildren(
      h("h2", { id: "dialog-title" }, title),
      h("div", {}, children),
      h(
        "p",
        { class: "buttons" },
        h("button", { type: "button", value: "", onclick: () => dialog.close("") }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, yes),
      ),
    );
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });
}

// ------------------------------------------------------------------------------------------ keys

const KEYS = [
  ["j  k", "the next call, the one before"],
  ["Enter", "open the call (on a narrow screen)"],
  ["a", "approve: write a reason if you like, then Enter"],
  ["d", "deny: write a reason if you like, then Enter"],
  ["e", "show everything that is folded"],
  ["Esc", "leave the reason; back to the list"],
  ["1 … 7", "the sections, in their order"],
  ["?", "this help"],
];
const OFF = "sidecar.keys";
let keys = true;
try {
  keys = localStorage.getItem(OFF) !== "off";
} catch {
  // Without storage the choice lasts as long as the page.
}

function help() {
  const dialog = $("dialog");
  const toggle = h("input", { type: "checkbox", id: "keys-on" });
  toggle.checked = keys;
  toggle.addEventListener("change", () => {
    keys = toggle.checked;
    try {
      localStorage.setItem(OFF, keys ? "on" : "off");
    } catch {
      // As above.
    }
  });
  dialog.replaceChildren(
    h("h2", { id: "dialog-title" }, "Keyboard"),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([key, what]) => [
        h("dt", {}, key.split("  ").map((each) => [h("kbd", {}, each), " "])),
        h("dd", {}, what),
      ]).flat(),
    ),
    h("p", {}, toggle, " ", h("label", { for: "keys-on" }, "Single keys do something")),
    h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
  );
  dialog.showModal();
}

$("help").addEventListener("click", help);

document.addEventListener("keydown", (event) => {
  if (!page.me || event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    if (section?.key?.("Escape", event)) event.preventDefault();
    return;
  }
  // A key that is held down is not one more decision.
  if (typing || !keys || event.repeat) return;
  if (event.key === "?") help();
  else if (/^[1-7]$/.test(event.key)) {
    const shown = SECTIONS.filter((each) => !$(`nav-${each.name}`).hidden);
    const wanted = shown[Number(event.key) - 1];
    if (wanted) page.go(`#/${wanted.name}`);
  } else if (!section?.key?.(event.key, event)) return;
  event.preventDefault();
});

build();
ticking();
begin();
