// The list that somebody looks through: columns and views of their own, and what is done with several
// traces at once. A trace's page leads to the next of the list, and back to its filters.

import { newKey, send } from "./api.js";
import { confirmed } from "./dialog.js";
import { say } from "./messages.js";
import { remember } from "./neighbours.js";

const COLUMNS = "thumbwheel.trace-columns";
const VIEWS = "thumbwheel.trace-views";
const HIDEABLE = ["time", "output", "version", "model", "latency", "tokens", "cost", "rating", "tags"];

const bar = document.querySelector(".list-bar");
const { agent, api, rater } = bar.dataset;
const table = document.querySelector(".traces");
const bulk = document.getElementById("bulk");
const links = document.querySelectorAll("#traces .what a");
remember(location.pathname + location.search, Array.from(links, (link) => link.getAttribute("href")));

function stored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    say("This browser stores nothing, so columns and views are lost when you leave.", "bad");
  }
}

// columns

let hidden = new Set(stored(COLUMNS, []));

function showColumns() {
  for (const name of HIDEABLE) table?.classList.toggle(`hide-${name}`, hidden.has(name));
}

function listColumns() {
  const boxes = HIDEABLE.map((name) => {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !hidden.has(name);
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(name);
      else hidden.add(name);
      store(COLUMNS, [...hidden]);
      showColumns();
    });
    const label = document.createElement("label");
    label.append(box, name[0].toUpperCase() + name.slice(1));
    return label;
  });
  document.getElementById("columns-list").replaceChildren(...boxes);
}

// views: {name: {query, hidden}} of this agent

function views() {
  return stored(VIEWS, {})[agent] || {};
}

function storeViews(mine) {
  store(VIEWS, { ...stored(VIEWS, {}), [agent]: mine });
  listViews();
}

function viewRow(name, view) {
  const link = document.createElement("a");
  link.href = `${location.pathname}${view.query}`;
  link.textContent = name;
  link.addEventListener("click", () => store(COLUMNS, view.hidden));
  const button = document.createElement("button");
  button.className = "plain";
  button.textContent = "Remove";
  button.setAttribute("aria-label", `Remove the view ${name}`);
  button.addEventListener("click", () => {
    const mine = views();
    delete mine[name];
    storeViews(mine);
  });
  const row = document.createElement("li");
  row.append(link, button);
  return row;
}

function listViews() {
  const rows = Object.entries(views()).map(([name, view]) => viewRow(name, view));
  document.getElementById("views-list").replaceChildren(...rows);
}

document.getElementById("views-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("view-name");
  const name = field.value.trim();
  if (!name) return;
  const query = new URLSearchParams(location.search);
  for (const place of ["after", "skip"]) query.delete(place);
  const text = query.toString();
  storeViews({ ...views(), [name]: { query: text && `?${text}`, hidden: [...hidden] } });
  field.value = "";
  say(`${name} is kept in this browser.`, "good");
});

// selection

const boxes = [...document.querySelectorAll("#traces .c-select input")];
const all = document.getElementById("select-all");
let last = null;

const chosen = () => boxes.filter((box) => box.checked).map((box) => box.value);

function showSelection() {
  const count = chosen().length;
  bulk.hidden = count === 0;
  document.getElementById("selected").textContent = `${count} selected`;
  all.checked = count > 0 && count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
}

// With Shift, everything between this row and the one that was chosen before.
function chooseTo(box, withShift) {
  if (withShift && last) {
    const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
    for (const between of boxes.slice(from, to + 1)) between.checked = box.checked;
  }
  last = box;
  showSelection();
}

function clear() {
  for (const box of boxes) box.checked = false;
  showSelection();
}

// what is done with the selected ones

// A queue that does not exist yet is created.
async function toQueue(ids) {
  const field = document.getElementById("bulk-queue");
  const queue = field.value.trim();
  if (!queue || !field.checkValidity()) {
    field.focus();
    throw new Error("Name a queue: lowercase letters, digits, - and _.");
  }
  const { value } = await send("POST", `${api}/queues/${encodeURIComponent(queue)}/items`, { traces: ids, create: true });
  const known = ids.length - value.added;
  return `${value.added} added to ${queue}${known ? `; ${known} were there already` : ""}.`;
}

async function tag(ids) {
  const field = document.getElementById("bulk-tag");
  const name = field.value.trim();
  if (!name) {
    field.focus();
    throw new Error("Type the tag first.");
  }
  for (const target of ids) {
    await send("POST", `${api}/feedback`, { target, label: `${name}=true`, rater }, { key: newKey() });
  }
  return `${ids.length} tagged ${name}.`;
}

async function exclude(ids) {
  const field = document.getElementById("bulk-reason");
  const reason = field.value.trim();
  if (!reason) {
    field.focus();
    throw new Error("Enter a reason first.");
  }
  await send("POST", `${api}/exclusions`, { traces: ids, reason, by: rater });
  return `${ids.length} are left out of datasets built from now on.`;
}

async function toGold(ids) {
  const count = ids.length === 1 ? "1 answer becomes a gold case" : `${ids.length} answers become gold cases`;
  const text = `${count}: the question, with the newest correction as the right answer, or without one the answer that `
    + "was given. You confirm that each is right. Gold cases judge every new version.";
  if (!(await confirmed(text, { title: "Make gold cases?", word: "I reviewed them" }))) return "";
  const { value } = await send("POST", `${api}/cases/traces`, { traces: ids, reviewer: rater });
  return value.ids.length === 1 ? "1 gold case stored." : `${value.ids.length} gold cases stored.`;
}

// A version answers traces again as a job, whose page leads to the answers.
async function replay(request) {
  const { value, status } = await send("POST", `${api}/replays`, request);
  const address = status === 202
    ? `/jobs/${encodeURIComponent(value.id)}`
    : `/agents/${encodeURIComponent(agent)}/replays/${encodeURIComponent(value.id)}`;
  location.assign(address);
}

async function replaySelected(ids) {
  await replay({ candidate: document.getElementById("bulk-version").value, trace: ids });
  return "";
}

document.getElementById("replay-form")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await replay({
      ...JSON.parse(form.dataset.filters),
      candidate: document.getElementById("replay-version").value,
      most: Number(document.getElementById("replay-most").value),
    });
  } catch (error) {
    say(error.message, "bad");
    button.disabled = false;
  }
});

function download(form, ids) {
  location.assign(`${location.pathname}/export.${form}?ids=${ids.join(",")}`);
}

const CHANGES = {
  queue: { act: toQueue, reloads: false },
  gold: { act: toGold, reloads: false },
  exclude: { act: exclude, reloads: false },
  replay: { act: replaySelected, reloads: false },
  tag: { act: tag, reloads: true },
};

async function change(button, { act, reloads }) {
  const ids = chosen();
  button.disabled = true;
  try {
    const words = await act(ids);
    if (!words) return;
    if (reloads) location.reload();
    else {
      say(words, "good");
      clear();
    }
  } catch (error) {
    say(error.message, "bad");
  } finally {
    button.disabled = false;
  }
}

function begin() {
  for (const box of boxes) box.addEventListener("click", (event) => chooseTo(box, event.shiftKey));
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    showSelection();
  });
  bulk.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-bulk]");
    if (!button) return;
    const name = button.dataset.bulk;
    if (name === "clear") clear();
    else if (name in CHANGES) change(button, CHANGES[name]);
    else download(name, chosen());
  });
  showSelection(); // a browser that goes back has the boxes as they were
}

showColumns();
listColumns();
listViews();
if (bulk) begin();
