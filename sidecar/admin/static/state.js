// The other sections: what is connected, what it offers, who is there, and under which policies.

import * as api from "./api.js";
import { definitions } from "./args.js";
import { label } from "./call.js";
import { empty, renew } from "./list.js";
import { block, count, h, many, prose, seen, time } from "./text.js";

const PAGE = 200;
/** Milliseconds between two looks at what no event tells of (what expires, what idles), in view. */
const AGAIN = 30_000;

/**
 * A section that is fetched as a whole, and drawn into parts that stay. It looks again when one of
 * its `nouns` changes; while it is in view, also for those of `also`, and now and then (`again`).
 */
function section({ name, title, short, nouns, also = [], counts = false, optional = false, again = false, fetch, build, draw }) {
  let page = null;
  let parts = null;
  let timer = 0;
  let reading = null;
  let stale = false;

  /** Look again: at once, or when the look that is under way is done, so that none is overtaken. */
  function refresh() {
    stale = true;
    reading ??= looks();
    return reading;
  }

  async function looks() {
    try {
      while (stale) {
        stale = false;
        await look();
      }
    } finally {
      reading = null;
    }
  }

  async function look() {
    const mine = parts;
    let got;
    try {
      got = await fetch(page);
    } catch (failed) {
      if (mine && mine === parts && failed.status !== 401) mine.status.textContent = failed.message;
      return;
    }
    if (mine && mine === parts) {
      parts.status.textContent = "";
      draw(page, parts, got, refresh);
    }
  }

  return {
    name,
    title,
    short,
    counts,
    optional,
    enter(given) {
      page = given;
      const status = h("p", { class: "muted status", role: "status" });
      parts = Object.assign(build(given, () => refresh()), { status });
      page.main.replaceChildren(h("div", { class: "page" }, h("h1", {}, title), status, parts.body));
      refresh();
      if (again) timer = setInterval(() => document.hidden || refresh(), AGAIN);
    },
    leave() {
      parts = null;
      clearInterval(timer);
    },
    changed(given, changed, here) {
      page = given;
      const mine = here ? [...nouns, ...also] : counts ? nouns : [];
      if (mine.some((noun) => changed.has(noun))) refresh();
    },
  };
}

/** Do it, and say what went wrong; then look again. */
async function act(page, refresh, work, done) {
  try {
    await work();
    page.notice(done);
  } catch (failed) {
    if (failed.status !== 401) page.notice([prose(failed.message)], "bad");
  }
  await refresh();
}

const rowsOf = () => ({ body: h("ul", { class: "rows" }) });
const chip = (text, kind = "") => h("span", { class: `chip ${kind}` }, text);

// --------------------------------------------------------------------------------------- servers

const KINDS = { ready: "good", connecting: "", backoff: "warn", failed: "bad", shadowed: "warn" };

export const servers = section({
  name: "servers",
  again: true,
  title: "Servers",
  nouns: ["servers"],
  fetch: async () => (await api.get("/v1/servers")).servers,
  build: rowsOf,
  draw(page, parts, got, refresh) {
    if (!got.length) return parts.body.replaceChildren(h("li", {}, empty("No server is configured.")));
    return renew(
      parts.body,
      got,
      (server) => `${server.source} ${server.name}`,
      (server) =>
        h(
          "li",
          {},
          h("h2", {}, seen(server.name), " ", chip(server.state, KINDS[server.state] ?? "")),
          h(
            "p",
            { class: "muted" },
            `${server.transport}${server.era ? `, ${server.era} era` : ""} · ${many(server.tools, "tool")} · `,
            server.source === "runtime" ? "added at run time" : "configured",
            server.retry_in === undefined ? "" : ` · next attempt in ${Math.ceil(server.retry_in)} s`,
          ),
          server.error ? h("p", { class: "fault" }, prose(server.error)) : "",
          server.source === "runtime" && page.may("operator")
            ? h("p", {}, h("button", { type: "button", class: "quiet", onclick: () => remove(page, server.name, refresh) }, "Remove …"))
            : "",
        ),
    );
  },
});

async function remove(page, name, refresh) {
  const text = h("p", {}, "Every connection to ", seen(name, { class: "strong" }), " is closed, on every node; calls that wait for it are lost.");
  if (await page.ask("Remove this server?", text, "Remove")) {
    await act(page, refresh, () => api.change("DELETE", `/v1/servers/${encodeURIComponent(name)}`), ["Removed ", seen(name), "."]);
  }
}

// ----------------------------------------------------------------------------------------- tools

export const tools = section({
  name: "tools",
  title: "Tools",
  nouns: ["tools"],
  async fetch() {
    const [listed, pinned] = await Promise.all([api.get("/v1/tools"), api.get("/v1/pins")]);
    const pins = new Map(pinned.pins.map((pin) => [pin.name, pin]));
    const all = listed.tools.map((tool) => ({ ...tool, pin: pins.get(tool.name) }));
    // What has changed asks for somebody's eyes: it comes first.
    return [...all.filter((tool) => tool.pin?.changed), ...all.filter((tool) => !tool.pin?.changed)];
  },
  build(page, refresh) {
    const filter = h("input", { id: "filter", type: "search", autocomplete: "off", spellcheck: "false" });
    const list = h("ul", { class: "rows" });
    const more = h("button", { type: "button", class: "quiet", hidden: true }, `Show ${PAGE} more`);
    const parts = { list, filter, more, most: PAGE };
    filter.addEventListener("input", refresh);
    more.addEventListener("click", () => {
      parts.most += PAGE;
      refresh();
    });
    parts.body = h("div", {}, h("p", { class: "filter" }, h("label", { for: "filter" }, "Filter"), filter), list, more);
    return parts;
  },
  draw(page, parts, got, refresh) {
    const text = parts.filter.value.trim().toLowerCase();
    const found = text ? got.filter((tool) => tool.name.toLowerCase().includes(text)) : got;
    const { most } = parts;
    parts.more.hidden = found.length <= most;
    parts.status.textContent = `${many(found.length, "tool")}${found.length > most ? `, the first ${count(most)} shown` : ""}`;
    renew(parts.list, found.slice(0, most), (tool) => tool.name, (tool) => toolRow(page, tool, refresh));
  },
});

function toolRow(page, tool, refresh) {
  const { hints, pin } = tool;
  const row = h(
    "li",
    {},
    h(
      "h2",
      {},
      seen(tool.name, { class: "mono" }),
      " ",
      tool.gated ? chip("needs approval", "warn") : "",
      pin?.changed ? chip("changed since it was pinned", "bad") : "",
    ),
    h(
      "p",
      { class: "muted" },
      hints.read_only ? "only reads" : hints.destructive ? "changes something, may destroy" : "changes something",
      hints.open_world ? ", reaches the outside" : "",
      " · ",
      tool.trusted ? "trusted server" : "server not trusted",
      pin?.at ? [" · pinned ", time(pin.at)] : " · not pinned yet",
    ),
  );
  if (pin?.changed) row.append(whatChanged(tool), ...accepting(page, tool, refresh));
  return row;
}

function whatChanged(tool) {
  const holder = h("div", {});
  const details = h("details", {}, h("summary", {}, "What changed"), holder);
  details.addEventListener("toggle", async () => {
    if (!details.open || holder.childElementCount) return;
    try {
      const found = await api.get(`/v1/pins/${encodeURIComponent(tool.name)}`);
      holder.replaceChildren(...changes(found));
    } catch (failed) {
      holder.replaceChildren(empty(failed.message));
    }
  });
  return details;
}

function changes({ pinned, definition }) {
  if (pinned) return [definitions(pinned, definition)];
  return [empty("The pinned definition was too long to keep; this is the one of now."), block(JSON.stringify(definition, null, 2))];
}

function accepting(page, tool, refresh) {
  if (!page.may("operator")) return [h("p", { class: "muted" }, "An operator can accept the new definition.")];
  const accept = async () => {
    const text = h("p", {}, "From now on ", seen(tool.name, { class: "strong" }), " counts as what its server says of it now.");
    if (await page.ask("Accept this definition?", text, "Accept")) {
      await act(page, refresh, () => api.change("POST", "/v1/pins", { names: [tool.name] }), ["Pinned ", seen(tool.name), "."]);
    }
  };
  return [h("p", {}, h("button", { type: "button", onclick: accept }, "Accept this definition …"))];
}

// -------------------------------------------------------------------------------------- sessions

export const sessions = section({
  name: "sessions",
  again: true,
  title: "Sessions and labels",
  short: "Sessions",
  nouns: ["sessions", "calls"],
  fetch: () => api.get("/v1/sessions"),
  build() {
    const labels = h("ul", { class: "rows" });
    const open = h("ul", { class: "rows" });
    return { labels, open, body: h("div", {}, h("h2", { class: "part" }, "Labels"), labels, h("h2", { class: "part" }, "Open sessions"), open) };
  },
  draw(page, parts, got, refresh) {
    if (got.labels.length) renew(parts.labels, got.labels, (each) => each.principal, (each) => labelled(page, each, refresh));
    else parts.labels.replaceChildren(h("li", {}, empty("Nobody has read anything from outside.")));
    if (got.sessions.length) {
      // How long one has been idle is another number at every look.
      const lasting = got.sessions.map(({ idle, ...rest }) => rest);
      renew(parts.open, lasting, (each) => each.id, sessionRow);
    } else parts.open.replaceChildren(h("li", {}, empty("No session is open. Clients of the stateless era have none.")));
  },
});

function labelled(page, { principal, labels }, refresh) {
  const forget = async () => {
    const text = h("p", {}, "What ", seen(principal, { class: "strong" }), " has read from outside no longer counts. If it still remembers it, it is still tainted.");
    if (await page.ask("Forget these labels?", text, "Forget")) {
      await act(page, refresh, () => api.change("DELETE", `/v1/labels/${encodeURIComponent(principal)}`), ["Forgot the labels of ", seen(principal), "."]);
    }
  };
  return h(
    "li",
    {},
    h("h3", {}, seen(principal)),
    h("ul", { class: "plain" }, labels.map(label)),
    page.may("operator") ? h("p", {}, h("button", { type: "button", class: "quiet", onclick: forget }, "Forget …")) : "",
  );
}

function sessionRow(each) {
  const client = [each.client?.name, each.client?.version].filter(Boolean).join(" ");
  return h(
    "li",
    {},
    h("h3", {}, seen(each.principal)),
    h(
      "p",
      { class: "muted" },
      client ? [seen(client), " · "] : "",
      each.opened_at ? ["opened ", time(each.opened_at), " · "] : "",
      each.server ? ["server ", seen(each.server), " · "] : "",
      each.calls ? `${many(each.calls, "call")} running · ` : "",
      h("code", {}, seen(each.id)),
    ),
  );
}

// ---------------------------------------------------------------------------------------- policy

export const policy = section({
  name: "policy",
  title: "Policy",
  nouns: ["policy"],
  fetch: () => api.get("/v1/policy"),
  build: () => ({ body: h("div", {}) }),
  draw(page, parts, got) {
    const list = (items) => (items?.length ? h("ul", { class: "plain" }, items.map((item) => h("li", {}, h("code", {}, seen(item))))) : "none");
    const pairs = [
      ["Revision", got.revision ? h("code", { class: "digest" }, got.revision) : "none"],
      ["Loaded", got.loaded_at ? time(got.loaded_at) : "not yet"],
      ["When no rule says anything", got.default],
      ["Engine", got.engine],
      ["Shipped policies", list(got.shipped)],
      ["Your policies", list(got.paths)],
    ];
    const print = JSON.stringify(got);
    if (parts.print === print) return;
    parts.print = print;
    parts.body.replaceChildren(
      got.error
        ? h(
            "div",
            { class: "alert", role: "alert" },
            h("p", {}, h("strong", {}, "The files as they are now are not in force"), " (tried ", time(got.error.at), "). What is below still is."),
            h("ul", { class: "plain" }, got.error.faults.map((fault) => h("li", { class: "fault" }, block(fault)))),
          )
        : "",
      h("dl", { class: "facts" }, pairs.map(([name, what]) => [h("dt", {}, name), h("dd", {}, what)]).flat()),
      got.warnings?.length ? h("h2", { class: "part" }, "Warnings") : "",
      got.warnings?.length ? h("ul", { class: "plain" }, got.warnings.map((each) => h("li", {}, block(each)))) : "",
    );
  },
});

// ----------------------------------------------------------------------------------------- works

const DOING = {
  none: ["no agent", ""],
  idle: ["idle", ""],
  working: ["works", "good"],
  waiting: ["waits for a person", "warn"],
};

export const works = section({
  name: "works",
  again: true,
  title: "Works",
  nouns: ["works"],
  // An agent that asks waits for a person, until somebody answers.
  also: ["calls"],
  counts: true,
  optional: true,
  async fetch(page) {
    const found = (await api.get("/v1/works")).works;
    page.badge("works", found.length);
    return found;
  },
  build: rowsOf,
  draw(page, parts, got) {
    if (!got.length) return parts.body.replaceChildren(h("li", {}, empty("No coding agent has a work.")));
    return renew(parts.body, got, (each) => [each.harness, each.checkout, each.principal, each.work].join("/"), workRow);
  },
});

function workRow(each) {
  const [doing, kind] = DOING[each.state] ?? [seen(each.state), ""];
  return h(
    "li",
    {},
    h("h2", {}, seen(each.work), " ", chip(doing, kind)),
    h(
      "p",
      { class: "muted" },
      seen(each.harness),
      " in ",
      seen(each.checkout),
      " · asked by ",
      seen(each.principal),
      each.created === undefined ? "" : [" · begun ", time(new Date(each.created * 1000).toISOString())],
    ),
    h("p", {}, "Branch ", h("code", {}, seen(each.branch)), each.base_ref ? [", to land on ", h("code", {}, seen(each.base_ref))] : ""),
    h("p", { class: "muted" }, h("code", {}, seen(each.path))),
  );
}
