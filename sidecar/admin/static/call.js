// One call, as whoever answers it reads it.

import { args, definitions, NOTHING, tally } from "./args.js";
import { plain } from "./exact.js";
import { h, prose, seen, time } from "./text.js";

/** What became of a call, and what that means where it is not plain. */
const STATES = {
  waiting: ["Waits for an answer", ""],
  approved: ["Approved", "The agent has not called again yet."],
  taken: ["Approved", "It is running."],
  done: ["Approved", "It ran"],
  unknown: ["Approved", "How it ended is not known, and it is not run again"],
  void: ["Approved, then void", "It did not run"],
  denied: ["Denied", ""],
  expired: ["Expired", ""],
  cancelled: ["Cancelled", ""],
  lost: ["Lost", ""],
};

export function heading(about) {
  const hints = about.hints;
  const server = about.server
    ? h("span", { class: "chip" }, "server ", seen(about.server), about.trusted ? "" : ", not trusted")
    : "";
  const chips = hints
    ? [
        [hints.read_only, "only reads", "good"],
        [!hints.read_only, "changes something", "warn"],
        [!hints.read_only && hints.destructive, "may destroy", "bad"],
        [hints.open_world, "reaches the outside", ""],
        [!hints.read_only && hints.idempotent, "the same twice as once", ""],
      ].filter(([is]) => is)
    : [];
  return [
    h("h2", {}, seen(about.tool)),
    h(
      "p",
      { class: "asks" },
      seen(about.principal, { class: "strong" }),
      " asked ",
      time(about.asked_at),
      about.client ? [", with ", seen(about.client)] : "",
      about.state === "waiting" ? [" · expires ", time(about.expires_at)] : "",
      about.state === "waiting" && !about.held ? " · nobody waits on the line: the agent has to call again" : "",
    ),
    about.state === "waiting" ? "" : outcome(about),
    h("p", { class: "chips" }, server, chips.map(([, text, kind]) => h("span", { class: `chip ${kind}` }, text))),
    about.description ? h("p", { class: "about" }, prose(about.description)) : "",
  ];
}

function outcome(about) {
  const [what, then] = STATES[about.state] ?? [about.state, ""];
  const at = about.answered_at ?? about.ended_at;
  const who = about.answered_by ? [" by ", seen(about.answered_by, { class: "strong" })] : "";
  const way = about.way ? [" (", seen(about.way), ")"] : "";
  const ended = about.ended ? [then ? ": " : "", prose(about.ended)] : "";
  return h(
    "div",
    { class: `outcome ${about.state}` },
    h("p", {}, h("strong", {}, what), who, at ? [" ", time(at)] : "", way),
    about.why ? h("p", {}, "Reason: ", prose(about.why)) : "",
    then || ended ? h("p", {}, then, ended) : "",
  );
}

export function compared(call) {
  const given = call.get("args") ?? new Map();
  const before = call.get("compared");
  const title = h("h3", {}, "Arguments");
  if (call.get("args_dropped")) return [title, h("p", { class: "muted" }, "They were long, and are not kept.")];
  const hidden = call.get("hidden") ?? [];
  const folded = new Set(call.get("folded") ?? []);
  const note = hidden.length ? h("p", { class: "muted" }, "Hidden by parking.redact: ", hidden.map((each, i) => [i ? ", " : "", seen(each)])) : "";
  if (!(before instanceof Map) || !(before.get("args") instanceof Map) || !(given instanceof Map)) {
    const first = call.get("state") === "waiting" ? h("p", { class: "muted compare" }, "No earlier call of this tool has been approved: there is nothing to compare with.") : "";
    return [title, first, args(given, NOTHING, folded), note];
  }
  const was = before.get("args");
  const found = tally(given, was);
  const words = ["changed", "new", "gone", "same"].filter((word) => found[word]).map((word) => `${found[word]} ${word === "same" ? "the same" : word}`);
  const about = plain(before);
  return [
    title,
    h(
      "p",
      { class: "muted compare" },
      "Compared with the call approved ",
      time(about.answered_at),
      about.answered_by ? [" by ", seen(about.answered_by)] : "",
      ": ",
      words.join(", ") || "no arguments in either",
      ".",
    ),
    args(given, was, folded),
    note,
  ];
}

/** The tool is another one than when a call of it was approved last, or this call was asked. */
export function redefined(about) {
  if (!about.redefined) return [];
  const { before, now: after } = about.redefined;
  return [
    h("h3", {}, "The tool has changed"),
    h("p", { class: "muted compare" }, "What its server says of it is other than for the call before."),
    before && after ? definitions(before, after) : h("p", { class: "muted" }, "The definition before is not kept."),
  ];
}

export function reasons(about) {
  const reasons = about.reasons ?? (about.rules ?? []).map((rule) => ({ rule, message: "" }));
  const labels = about.labels ?? [];
  return [
    h("h3", {}, "Why it asks"),
    h(
      "ul",
      { class: "plain" },
      reasons.flatMap(({ rule, message }) => [
        h("li", {}, h("code", {}, seen(rule))),
        message ? h("li", {}, prose(message)) : "",
      ]),
      about.message && !about.reasons ? h("li", {}, prose(about.message)) : "",
    ),
    labels.length
      ? [
          h("h3", {}, "Labels of ", seen(about.principal)),
          h("ul", { class: "plain" }, labels.map(label)),
        ]
      : "",
  ].flat();
}

/** A label, and the results that brought it. */
export function label(each) {
  const about = typeof each === "string" ? { label: each, results: [] } : each;
  return h(
    "li",
    {},
    h("span", { class: "chip label" }, seen(about.label)),
    about.results?.length
      ? h("ul", { class: "sources" }, about.results.toReversed().map((source) => h("li", {}, seen(source.target), " ", h("span", { class: "muted" }, time(source.at), " · call ", h("code", { title: source.call }, String(source.call).slice(0, 8))))))
      : "",
  );
}

export function facts(about) {
  const pairs = [
    ["Kind", about.kind && about.kind !== "mcp" && seen(about.kind)],
    ["Session", about.session && seen(about.session)],
    ["Call", seen(about.id)],
    ["Ran as", about.ran_as && about.ran_as !== about.id && seen(about.ran_as)],
    ["Asked before", about.previous && h("a", { href: `#/history/${encodeURIComponent(about.previous.id)}` }, seen(about.previous.state), " ", time(about.previous.asked_at))],
    ["Policy revision", about.asked_revision && h("code", {}, about.asked_revision.slice(0, 12))],
    ["Definition", about.definition && h("code", {}, String(about.definition).slice(0, 12))],
  ].filter(([, what]) => what);
  return h("details", {}, h("summary", {}, "More"), h("dl", { class: "facts" }, pairs.map(([name, what]) => [h("dt", {}, name), h("dd", {}, what)]).flat()));
}
