"use strict";
const PERIOD_MS = 1000, LISTED = 500, HELD_BY = 4, TASKS_LISTED = 100, SAMPLES_MAX = 900;
const at = id => document.getElementById(id);

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit++ }
  return `${unit && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}
const number = count => count.toLocaleString("en");
const percent = part => `${(100 * part).toFixed(1)} %`;
function ago(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}

// Everything that comes from the daemon is set as text, never as markup.
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text instanceof Node) made.append(text); else if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function bar(part) {
  const outer = element("div", undefined, "bar"), inner = element("i");
  inner.style.width = `${Math.min(100, 100 * part)}%`;
  outer.append(inner);
  return outer;
}

// Columns are [title, text or element of a row, class, value to sort by]. A column with such a value has a button that sorts.
const sorted = {tensors: {column: "Size", descending: true}};
function table(id, columns, rows, empty) {
  const target = at(id), order = sorted[id];
  if (!rows.length) return target.replaceChildren(element("div", empty, "empty"));
  const value = columns.find(([title]) => title === order?.column)?.[3], sign = order?.descending ? -1 : 1;
  if (value) rows = rows.toSorted((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  // The head stays, so that a button is not replaced while it is pressed.
  if (!target.querySelector("table")) target.replaceChildren(emptyTable(id, columns));
  for (const cell of target.querySelectorAll("th")) {
    if (cell.textContent === order?.column) cell.ariaSort = order.descending ? "descending" : "ascending";
    else cell.removeAttribute("aria-sort");
  }
  target.querySelector("tbody").replaceChildren(...rows.map(row => {
    const line = element("tr");
    for (const [, text, className] of columns) line.append(element("td", text(row), className));
    return line;
  }));
}
function emptyTable(id, columns) {
  const head = element("tr"), made = element("table");
  for (const [title, , className, value] of columns) {
    const cell = element("th", value ? element("button", title) : title, className);
    cell.scope = "col";
    if (value) cell.firstChild.addEventListener("click", () => {
      const descending = sorted[id].column === title ? !sorted[id].descending : Boolean(className?.includes("number"));
      sorted[id] = {column: title, descending};
      step();
    });
    head.append(cell);
  }
  made.append(element("thead", head), element("tbody"));
  return made;
}

function figure([name, value, className, part, below]) {
  const made = element("div", element("span", name), `figure ${className ?? ""}`);
  made.append(element("b", value));
  if (part !== undefined) made.append(bar(part));
  if (below) made.append(element("span", below));
  return made;
}

// The bytes that sharing saves come first.
function showSavings({stats, leases, sessions}) {
  const held = stats.unshared_bytes - stats.saved_bytes, share = stats.unshared_bytes ? stats.saved_bytes / stats.unshared_bytes : 0;
  const used = stats.memory_usage_bytes + stats.metadata_bytes, budget = stats.max_memory_bytes;
  at("savings").replaceChildren(...[
    ["saved by sharing", bytes(stats.saved_bytes), "saved", share, `${percent(share)} of the bytes without sharing`],
    ["without sharing", bytes(stats.unshared_bytes)], ["held", bytes(held)],
    budget === null ? ["budget used", bytes(used), "", undefined, "of no budget"]
      : ["budget used", bytes(used), "", used / (budget || 1), `of ${bytes(budget)}`],
    ["hits", number(stats.cache_hits), "", undefined, `${percent(stats.hit_rate)} of lookups`],
  ].map(figure));
  at("figures").replaceChildren(...[
    ["tensors", number(stats.total_tensors)], ["leases", number(leases)], ["sessions", number(sessions.length)],
    ["in use", bytes(stats.memory_usage_bytes)], ["at most, so far", bytes(stats.peak_memory_bytes)],
    ["evictions", number(stats.evictions)],
  ].map(figure));
}

// Memory since this page was opened.
const samples = [];
function sample({stats}) {
  samples.push({at: Date.now(), held: stats.unshared_bytes - stats.saved_bytes, unshared: stats.unshared_bytes});
  if (samples.length > SAMPLES_MAX) samples.shift();
}
// The next larger number of bytes that is 1, 2 or 5 times ten, or a power of two, of a unit.
function ceiling(count) {
  let unit = 1;
  while (count / unit > 1000 && unit < 1024 ** 4) unit *= 1024;
  for (let size = 1; ; size *= 10) for (const step of [1, 2, 5]) if (size * step * unit >= count) return size * step * unit;
}
function showChart() {
  const width = at("chart").clientWidth, height = 180, left = 64, right = width - 8, top = 10, bottom = height - 22;
  const first = samples[0].at, seconds = Math.max(10, (samples.at(-1).at - first) / 1000);
  const most = ceiling(Math.max(1024, ...samples.map(({held, unshared}) => Math.max(held, unshared))));
  const x = ({at}) => left + (right - left) * (1 - (samples.at(-1).at - at) / 1000 / seconds), y = size => bottom - (bottom - top) * size / most;
  const chart = drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Bytes held, and bytes without sharing, since the page was opened"});
  for (const part of [0, 0.5, 1]) {
    chart.append(drawn("line", {class: "grid", x1: left, x2: right, y1: y(part * most), y2: y(part * most)}));
    chart.append(drawn("text", {x: left - 8, y: y(part * most) + 4, "text-anchor": "end"}, bytes(part * most)));
  }
  for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const label = part === 1 ? "now" : `${ago(seconds * (1 - part))} ago`;
    chart.append(drawn("text", {x: left + (right - left) * part, y: height - 4, "text-anchor": anchor}, label));
  }
  for (const line of ["unshared", "held"])
    chart.append(drawn("polyline", {class: line, points: samples.map(each => `${x(each).toFixed(1)},${y(each[line]).toFixed(1)}`).join(" ")}));
  at("chart").replaceChildren(chart);
}

function holders(row) {
  const all = Object.entries(row.holders);
  const named = all.slice(0, HELD_BY).map(([name, count]) => count > 1 ? `${name} × ${count}` : name);
  if (all.length > HELD_BY) named.push(`and ${all.length - HELD_BY} more`);
  return named.join(", ") || "no holder";
}

function showTensors(list) {
  const type = row => row.member_count ? `group of ${row.member_count}` : `${row.spec.dtype} [${row.spec.shape.join(", ")}]`;
  table("tensors", [
    ["Name", row => row.spec.name, "name", row => row.spec.name], ["Size", row => bytes(row.bytes), "number", row => row.bytes],
    ["Hits", row => number(row.hits), "number", row => row.hits], ["Held by", holders, "long"],
    ["Type", type, "wide"], ["Kind", row => row.spec.kind, "wide", row => row.spec.kind],
    ["Device", row => row.device, "wide", row => row.device], ["State", row => row.state, "wide"],
    ["Version", row => number(row.id.version), "number wide"], ["Age", row => ago(row.age_s), "number wide", row => row.age_s],
  ], list.tensors, at("filter").value ? "No name starts so." : "Nothing is published.");
  at("left-off").textContent = list.left_off ? `and ${number(list.left_off)} more` : "";
}

// What runs comes first; what has ended is there for a while.
const STATES = ["running", "pending", "failed", "cancelled", "completed"];
function showTasks(providers) {
  const rows = providers.flatMap(({provider, tasks, error}) => error
    ? [{function: "", state: "unknown", provider: provider.client, client: "", error}]
    : tasks.map(task => ({...task, provider: provider.client})));
  rows.sort((a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state));
  table("tasks", [
    ["Id", row => row.task === undefined ? "" : String(row.task), "number"],
    ["Function", row => row.function, "name"], ["State", row => row.state], ["Provider", row => row.provider, "wide"],
    ["Submitted by", row => row.client, "wide"], ["Age", row => row.age_ms === undefined ? "" : ago(row.age_ms / 1000), "number"],
    ["Error", row => row.error ?? "", "name"],
  ], rows, "No task is known.");
  const more = providers.reduce((sum, provider) => sum + provider.left_off, 0);
  at("tasks-left-off").textContent = more ? `and ${number(more)} more` : "";
}

function show(state) {
  const {stats, list, sessions, advice, providers, functions} = state;
  showSavings({...state, leases: sessions.reduce((sum, session) => sum + session.leases, 0)});
  sample(state);
  showChart();
  showTensors(list);
  showFunctions(functions);
  table("sessions", [
    ["Client", row => row.client, "name"], ["By", row => row.transport, "wide"], ["Leases", row => number(row.leases), "number"],
    ["Size", row => bytes(row.bytes), "number"], ["Age", row => ago(row.age_s), "number"],
  ], sessions, "No client is connected.");
  table("copies", [
    ["Reason", row => row.reason], ["Copies", row => number(row.count), "number"], ["Size", row => bytes(row.bytes), "number"],
  ], stats.copies, "Not a byte was copied.");
  showTasks(providers);
  const shared = Object.entries(advice.sharing_opportunities);
  table("advice", [["Kind", row => row[0]], ["Held by", row => row[1].join(", "), "name"]], shared, "Nothing more than is shared already.");
}

// Functions that run models are Cotensor's own; the others are those of users.
const OF_MODELS = "model.";
function showFunctions(functions) {
  const columns = [
    ["Name", row => row.function.name, "name"], ["Provider", row => row.provider.client, "long"],
    ["Answers with", row => row.function.task ? "a task" : row.function.managed ? "a reference" : "the result", "wide"],
  ];
  const ofModels = functions.filter(row => row.function.name.startsWith(OF_MODELS));
  const ofUsers = functions.filter(row => !row.function.name.startsWith(OF_MODELS));
  table("functions", columns, ofUsers.slice(0, LISTED), "No process offers functions.");
  table("model-functions", columns, ofModels.slice(0, LISTED), "");
  at("of-models").hidden = !ofModels.length;
}

// The counters sum up what would be long to list: lines such as cotensor_tensors{device="cpu",kind="weight"} 12.
function showMemory(counters) {
  const groups = new Map();
  for (const [, counter, device, kind, value] of counters.matchAll(/^cotensor_(tensors|tensor_bytes){device="(.*)",kind="(.*)"} (\d+)$/gm)) {
    const group = groups.get(`${device} ${kind}`) ?? {device, kind};
    groups.set(`${device} ${kind}`, {...group, [counter]: Number(value)});
  }
  const rows = [...groups.values()].sort((a, b) => b.tensor_bytes - a.tensor_bytes);
  const total = rows.reduce((sum, row) => sum + row.tensor_bytes, 0) || 1;
  table("memory", [
    ["Device", row => row.device], ["Kind", row => row.kind, "long"], ["Tensors", row => number(row.tensors), "number"],
    ["Size", row => bytes(row.tensor_bytes), "number"], ["Share", row => bar(row.tensor_bytes / total), "wide"],
  ], rows, "Nothing is published.");
}

// Asks the model process only while it runs: a request would start it.
async function showModels({models: pid}) {
  let loaded = [], empty = "No model process runs; a request below /v1 starts it.";
  if (pid !== null) {
    empty = `Process ${pid} has loaded no model.`;
    try { loaded = (await ask("/v1/models")).data } catch (error) { empty = `Process ${pid} does not answer: ${error.message}.` }
  }
  table("models", [
    ["Model", row => row.id, "name"], ["Process", () => String(pid), "number"],
    ["Loaded", row => ago(Math.max(0, Date.now() / 1000 - row.created)), "number"],
  ], loaded, empty);
}

// A page that was opened with a code has the token in it; the code was good once and need not stay in the history.
const given = document.querySelector("meta[name=cotensor-token]").content;
if (given) sessionStorage.setItem("cotensor-token", given);
if (location.search) history.replaceState(null, "", location.pathname);
let token = given || (sessionStorage.getItem("cotensor-token") ?? "");
async function ask(path, body) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body)});
  if (answer.status === 401) throw new Error("locked");
  if (!answer.ok) throw new Error(`the daemon answers ${answer.status}`);
  return answer.headers.get("content-type").startsWith("text/") ? answer.text() : answer.json();
}

async function refresh() {
  const order = sorted.tensors.column === "Size" && sorted.tensors.descending ? "size" : "name";
  const calls = [["store.stats", {}], ["tensor.list", {prefix: at("filter").value, limit: LISTED, order}], ["session.list", {}],
    ["store.recommendations", {}], ["function.tasks", {limit: TASKS_LISTED}], ["function.list", {}], ["daemon.status", {}]];
  const answers = await ask("/jsonrpc", calls.map(([method, params], id) => ({jsonrpc: "2.0", id, method, params})));
  const failed = answers.find(answer => answer.error);
  if (failed) throw new Error(failed.error.message);
  const [stats, list, {sessions}, advice, {providers}, {functions}, status] =
    answers.sort((a, b) => a.id - b.id).map(answer => answer.result);
  // The page's own session, which lasts for this one call, is nothing to see.
  show({stats, list, advice, providers, functions, sessions: sessions.filter(row => row.transport !== "http" || row.client !== "http")});
  showMemory(await ask("/metrics"));
  await showModels(status);
}

async function step() {
  const state = at("state");
  try {
    if (!document.hidden) {
      const health = await ask("/health");
      at("about").textContent = `${health.version}, ${health.socket}`;
      if (!token) throw new Error("locked");
      await refresh();
      state.textContent = "live"; state.className = ""; at("locked").hidden = true;
    }
  } catch (error) {
    at("locked").hidden = error.message !== "locked";
    state.textContent = error.message === "locked" ? "locked" : `no answer: ${error.message}`;
    state.className = "lost";
  }
}

document.querySelector("form").addEventListener("submit", event => {
  event.preventDefault();
  token = at("token").value.trim();
  sessionStorage.setItem("cotensor-token", token);
  step();
});
at("filter").addEventListener("input", step);
(async () => { for (;;) { await step(); await new Promise(done => setTimeout(done, PERIOD_MS)) } })();
