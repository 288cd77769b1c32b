// Drives an MCP server through one of the TypeScript SDKs, as a test says, and prints what came.
//
//   node drive.mjs NODE_MODULES '{"sdk": "v1" | "v2", "url" | "command", "steps": [...]}'
//
// A step is {"do": METHOD OF THE CLIENT, "params": …, "progress": true?}, or
// {"do": "until", "heard": NOTIFICATION METHOD}, or {"do": "callOn", "params": …}, which calls a
// tool again for as long as it is told that the call waits. With "elicit" the client declares
// that it can be asked, and gives each question the next of these answers; the last is null for
// one that is never given. The output is one JSON object: {"server", "outcomes": [{"result"} |
// {"error"}], "notifications": [{"method", "params"}], "asked": [params], "withdrawn"}.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, text] = process.argv.slice(2);
const spec = JSON.parse(text);
const require = createRequire(pathToFileURL(`${modules}/`));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const UNTIL_MS = 10_000;

const options = { capabilities: spec.elicit ? { elicitation: {} } : {} };
let Client, Http, Stdio, asks;
if (spec.sdk === "v1") {
  ({ Client } = await load("@modelcontextprotocol/sdk/client/index.js"));
  ({ StreamableHTTPClientTransport: Http } = await load(
    "@modelcontextprotocol/sdk/client/streamableHttp.js",
  ));
  ({ StdioClientTransport: Stdio } = await load("@modelcontextprotocol/sdk/client/stdio.js"));
  ({ ElicitRequestSchema: asks } = await load("@modelcontextprotocol/sdk/types.js"));
} else {
  ({ Client, StreamableHTTPClientTransport: Http } = await load("@modelcontextprotocol/client"));
  ({ StdioClientTransport: Stdio } = await load("@modelcontextprotocol/client/stdio"));
  options.versionNegotiation = { mode: spec.mode ?? "auto" };
  asks = "elicitation/create";
}

const notifications = [];
const client = new Client({ name: "drive", version: "1" }, options);
client.fallbackNotificationHandler = async ({ method, params }) => {
  notifications.push({ method, params });
};

const asked = [];
let withdrawn = 0;
if (spec.elicit) {
  client.setRequestHandler(asks, async ({ params }, extra) => {
    asked.push(params);
    const answer = spec.elicit[Math.min(asked.length, spec.elicit.length) - 1];
    if (answer) return answer;
    const signal = extra.signal ?? extra.mcpReq?.signal;
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    withdrawn += 1;
    throw new Error("withdrawn");
  });
}

async function callOn(step) {
  for (let tries = 0; tries < 30; tries += 1) {
    const result = await run({ ...step, do: "callTool" });
    if (!result._meta?.["sidecar/parked"]) return { ...result, tries };
  }
  throw new Error("it waits on and on");
}

async function until(method) {
  const end = Date.now() + UNTIL_MS;
  while (!notifications.some((n) => n.method === method)) {
    if (Date.now() > end) throw new Error(`no ${method} within ${UNTIL_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return method;
}

async function run(step) {
  if (step.do === "until") return until(step.heard);
  if (step.do === "callOn") return callOn(step);
  const requestOptions = step.progress
    ? { onprogress: (params) => notifications.push({ method: "progress", params }) }
    : {};
  // In v1 the schema of a tool's result stands between its params and the options.
  const between = step.do === "callTool" && spec.sdk === "v1" ? [undefined] : [];
  if (step.do === "setLoggingLevel") return client[step.do](step.params);
  return step.params === undefined
    ? client[step.do]()
    : client[step.do](step.params, ...between, requestOptions);
}

await client.connect(
  spec.url
    ? new Http(new URL(spec.url))
    : new Stdio({ command: spec.command[0], args: spec.command.slice(1), env: spec.env }),
);
const outcomes = [];
for (const step of spec.steps) {
  try {
    outcomes.push({ result: (await run(step)) ?? null });
  } catch (error) {
    outcomes.push({ error: { code: error.code ?? null, message: error.message } });
  }
}
const server = client.getServerVersion() ?? null;
await client.close();
console.log(JSON.stringify({ server, outcomes, notifications, asked, withdrawn }));
