// A file is sent to be looked at; what its columns mean can be changed, which sends it again. Only
// the last button stores anything.

import { objectAt, withdrawAll } from "./actions.js";
import { send } from "./api.js";
import { say } from "./messages.js";

const form = document.getElementById("import");
const preview = document.getElementById("preview");
const MEANINGS = JSON.parse(form.dataset.meanings);
const MARKS = ["thumb", "rating", "score", "against"];
const WORST = "Worst", BEST = "Best";
let looked = null; // what is shown: its file, its choices, and the query it was looked at with
let ticket = 0; // of the newest look; the answer to an earlier one comes too late

function element(name, text, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// A name as the API takes it as a plain name of a file.
function plainName(name) {
  return name.replace(/[^\p{L}\p{N} .()+-]/gu, "-").replace(/^[^\p{L}\p{N}]+/u, "").slice(-200) || "file";
}

// What is imported, as {name, content, origin}; null where nothing was chosen.
function chosenFile() {
  const [file] = form.elements.file.files;
  if (file) return { name: plainName(file.name), content: file, origin: file };
  const text = form.elements.text.value;
  if (!text.trim()) return null;
  const name = /^\s*[[{]/.test(text) ? "pasted.jsonl" : "pasted.csv";
  return { name, content: new Blob([text]), origin: text };
}

// What is said of the file as a whole.
function choices() {
  const parameters = new URLSearchParams();
  for (const name of ["source", "timezone"]) {
    const value = form.elements[name].value.trim();
    if (value) parameters.set(name, value);
  }
  if (form.elements.gold?.checked) parameters.set("gold", "true");
  return parameters;
}

// The same with the name of the file, and with what is said of its columns once they are shown.
function query(file) {
  const parameters = choices();
  parameters.set("path", file.name);
  if (looked?.origin !== file.origin) return parameters;
  const meanings = {};
  for (const select of preview.querySelectorAll("select[data-column]")) {
    const isNothing = select.value === "";
    if (isNothing && select.dataset.guess === "") continue;
    meanings[select.value] = select.dataset.column;
    parameters.append("column", `${isNothing ? "metadata" : select.value}=${select.dataset.column}`);
  }
  for (const field of preview.querySelectorAll("[data-mark]")) {
    const scale = meanings[field.dataset.mark] === field.dataset.of ? scaleOf(field) : "";
    if (scale) parameters.append("scale", `${field.dataset.mark}=${scale}`);
  }
  return parameters;
}

// The scale that a person chose for a mark, empty where they left it as it was read.
function scaleOf(field) {
  if (field.dataset.changed !== "yes") return "";
  const values = [...field.querySelectorAll("input, select")].map((input) => input.value.trim());
  if (field.dataset.form === "good") {
    const [good] = values;
    const bad = JSON.parse(field.dataset.values).find((value) => value !== good);
    return good ? `${bad}:${good}` : "";
  }
  if (field.dataset.form === "words") {
    return field.querySelector("textarea").value.split("\n").map((line) => line.trim()).filter(Boolean).join(":");
  }
  return values.every(Boolean) ? values.join(":") : "";
}

async function look() {
  withdrawAll(form);
  const file = chosenFile();
  if (!file) {
    objectAt(form, "file", "Choose a file, or paste rows.");
    return;
  }
  if (!form.reportValidity()) return;
  const parameters = query(file);
  const current = (ticket += 1);
  setBusy(true);
  try {
    const agent = encodeURIComponent(form.elements.agent.value);
    const { value } = await send("POST", `/api/agents/${agent}/imports/previews?${parameters}`, file.content, { key: null });
    if (current !== ticket) return;
    const isFirst = preview.hidden;
    looked = { ...file, choices: choices().toString(), parameters };
    show(value);
    if (isFirst) preview.focus();
  } catch (error) {
    if (current === ticket) refused(error);
  } finally {
    if (current === ticket) setBusy(false);
  }
}

// While the server looks at the rows nothing can be imported: a click would be lost.
function setBusy(isBusy) {
  preview.setAttribute("aria-busy", String(isBusy));
  for (const id of ["look", "take"]) document.getElementById(id).disabled = isBusy;
}

// Says at its field what the server refused.
function refused(error) {
  const { field, why, what } = error.content || {};
  const zone = /timezone/.test(what || "") ? "timezone" : null;
  const scale = /--(scale|column)/.test(what || "");
  if (scale) object(`${why}.`);
  else if (!objectAt(form, zone || field, `${why}.`)) say(error.message, "bad");
}

function object(text) {
  const box = document.getElementById("objection");
  box.hidden = !text;
  box.replaceChildren(...(text ? [element("p", text)] : []));
}

function show(result) {
  preview.hidden = false;
  const { problem } = result;
  const unread = result.marks.find((mark) => mark.problem);
  object("");
  const isReadable = result.columns.length > 0 || result.rows.length > 0;
  if (problem) {
    const text = `${problem.why[0].toUpperCase()}${problem.why.slice(1)}.`;
    if (problem.field === "source") objectAt(form, "source", `${text} Choose which it is.`);
    else if (unread) object(`Say how ${unread.column} is read.`);
    else if (problem.field === "columns") object(`${text} Choose above each column what it holds.`);
    else objectAt(form, form.elements.file.files.length ? "file" : "text", problem.fix ? `${text} ${problem.fix}.` : text);
  }
  preview.hidden = !isReadable;
  showCounts(result);
  const format = document.getElementById("format");
  format.textContent = result.source ? `Read as ${result.source}: ${result.why}.` : "";
  document.getElementById("marks").replaceChildren(...result.marks.map((mark) => markField(mark, result)));
  showRows(result, unread);
  document.getElementById("notes").replaceChildren(...result.notes.map((note) => element("li", note)));
  showRefusals(result);
  const take = document.getElementById("take");
  take.textContent = `Import ${result.importable.toLocaleString("en")} ${result.importable === 1 ? "row" : "rows"}`;
  take.hidden = Boolean(problem) || !result.importable;
  document.getElementById("stale").hidden = true;
}

function showCounts(result) {
  const counts = [
    ["good", "good", result.good],
    ["bad", "bad", result.bad],
    ["neither", "neither good nor bad", result.neither],
    ["refused", "refused", result.refused],
  ];
  if (result.records.case) counts.push(["cases", "test cases", result.records.case]);
  if (result.left_out) counts.push(["left-out", "left out", result.left_out]);
  const figures = counts.map(([name, label, count]) => {
    const figure = element("span", undefined, { "data-count": name });
    figure.append(element("b", count.toLocaleString("en")), ` ${label}`);
    return figure;
  });
  const box = document.getElementById("counts");
  box.replaceChildren(...figures);
  box.hidden = result.read === 0;
}

// The fields that say how a mark is read: two ends, which of two values is good, or an order.
function markField(mark, result) {
  const column = result.columns.find((each) => each.name === mark.column);
  const values = column?.values || [];
  const box = element("fieldset", undefined, { "data-mark": mark.meaning, "data-of": mark.column });
  box.append(element("legend", `How ${mark.column} is read`));
  const isNumeric = values.every((value) => /^[+-]?[\d.,]+$/.test(value));
  if (isNumeric && (values.length !== 2 || mark.worst !== null || mark.problem)) {
    box.dataset.form = "ends";
    for (const [label, value] of [[WORST, mark.worst], [BEST, mark.best]]) box.append(numberField(mark, label, value));
  } else if (values.length <= 2) {
    box.dataset.form = "good";
    box.dataset.values = JSON.stringify(values);
    box.append(goodField(mark, values));
  } else {
    box.dataset.form = "words";
    box.append(wordsField(mark, values));
  }
  if (mark.problem) box.append(element("p", `${mark.problem}.`, { class: "objection" }));
  const isStated = looked.parameters.getAll("scale").some((text) => text.startsWith(`${mark.meaning}=`));
  if (isStated) box.dataset.changed = "yes";
  box.addEventListener("change", () => {
    box.dataset.changed = "yes";
    look();
  });
  return box;
}

function labelled(id, label, field, help) {
  const box = element("div", undefined, { class: "field" });
  box.append(element("label", label, { for: id }), field);
  if (help) {
    box.append(element("p", help, { class: "help", id: `${id}-help` }));
    field.setAttribute("aria-describedby", `${id}-help`);
  }
  return box;
}

function numberField(mark, label, value) {
  const id = `mark-${mark.meaning}-${label}`;
  const field = element("input", undefined, { id, type: "number", step: "any" });
  if (value !== null) field.value = value;
  return labelled(id, `${label} value`, field);
}

function goodField(mark, values) {
  const id = `mark-${mark.meaning}-good`;
  const field = element("select", undefined, { id });
  field.append(element("option", "as usual", { value: "" }));
  for (const value of values) field.append(element("option", value, { value }));
  field.value = mark.words.length === 2 ? values.find((value) => plain(value) === plain(mark.words[1])) || "" : "";
  const help = mark.words.length ? "" : "Words such as yes, up and true are good as usual.";
  return labelled(id, "Good is", field, help);
}

function wordsField(mark, values) {
  const id = `mark-${mark.meaning}-order`;
  const field = element("textarea", undefined, { id, rows: String(Math.min(8, values.length)), spellcheck: "false" });
  field.value = (mark.words.length ? mark.words : values).join("\n");
  return labelled(id, "Values from the worst to the best", field, "One a line; delete the ones that say nothing.");
}

function plain(text) {
  return text.trim().toLowerCase().replace(/[\s_-]+/g, "-");
}

function columnHead(column, index) {
  const head = element("th", undefined, { scope: "col" });
  const id = `column-${index}`;
  const select = element("select", undefined, { id, "data-column": column.name, "data-guess": column.meaning || "" });
  select.append(element("option", "nothing of these", { value: "" }));
  for (const [meaning, name] of Object.entries(MEANINGS)) {
    if (meaning !== "metadata") select.append(element("option", name, { value: meaning }));
  }
  select.value = column.meaning && column.meaning !== "metadata" ? column.meaning : "";
  // one column for each meaning: the other one gives it up
  select.addEventListener("change", () => {
    for (const other of preview.querySelectorAll("select[data-column]")) {
      if (other !== select && select.value && other.value === select.value) other.value = "";
    }
    look();
  });
  head.append(element("label", column.name, { for: id, dir: "auto" }), select);
  return head;
}

function showRows(result, unread) {
  const table = document.getElementById("rows");
  const head = element("tr");
  const isTable = result.columns.length > 0;
  head.append(element("th", "Line", { scope: "col", class: "n" }));
  if (isTable) head.append(...result.columns.map(columnHead));
  else head.append(element("th", "Question", { scope: "col" }), element("th", "Answer", { scope: "col" }));
  head.append(element("th", "Read as", { scope: "col" }));
  table.tHead.replaceChildren(head);
  const rows = result.rows.map((row) => {
    const line = element("tr");
    line.append(element("td", row.number, { class: "n" }));
    const cells = isTable ? row.cells : [row.question, row.answer];
    for (const text of cells) line.append(cell(text));
    while (line.cells.length < result.columns.length + 1) line.append(cell(null));
    line.append(reading(row, unread?.problem));
    return line;
  });
  table.tBodies[0].replaceChildren(...rows);
  const shown = document.getElementById("shown");
  shown.textContent = result.read > rows.length ? `The first ${rows.length} of ${result.read.toLocaleString("en")} rows.` : "";
}

function cell(text) {
  if (text === null || text === "") {
    const empty = element("td");
    empty.append(element("span", "–", { class: "soft" }));
    return empty;
  }
  return element("td", text, { dir: "auto" });
}

// What a row becomes. A reason that all rows share is said once, above the table.
function reading(row, shared) {
  const box = element("td", undefined, { dir: "auto" });
  if (row.refused !== null) {
    box.append(element("span", "refused", { class: "badge bad" }));
    if (row.refused !== shared) box.append(` ${row.refused}`);
    return box;
  }
  if (row.good !== null) {
    box.append(element("span", row.good ? "good" : "bad", { class: `badge ${row.good ? "good" : "bad"}` }), " ");
  }
  box.append(element("span", row.records.join("; "), { class: "soft" }));
  return box;
}

function showRefusals(result) {
  const box = document.getElementById("refused");
  box.hidden = !result.refused;
  box.querySelector("summary").textContent = `Why ${result.refused.toLocaleString("en")} ${result.refused === 1 ? "row is" : "rows are"} refused`;
  const rows = result.refusals.map(({ number, reason }) => {
    const line = element("tr");
    line.append(element("td", number, { class: "n" }), element("td", reason, { dir: "auto" }));
    return line;
  });
  box.querySelector("tbody").replaceChildren(...rows);
}

// Imports what was looked at, as it was looked at.
async function take() {
  const button = document.getElementById("take");
  if (chosenFile()?.origin !== looked.origin || choices().toString() !== looked.choices) {
    document.getElementById("stale").hidden = false;
    look();
    return;
  }
  button.disabled = true;
  try {
    const agent = form.elements.agent.value;
    const parameters = new URLSearchParams(looked.parameters);
    if (parameters.has("gold")) parameters.set("reviewer", form.dataset.rater);
    const path = `/api/agents/${encodeURIComponent(agent)}/imports?${parameters}`;
    const answer = await send("POST", path, looked.content);
    if (answer.status === 202) location.assign(`/jobs/${encodeURIComponent(answer.value.id)}`);
    else location.assign(next(agent, answer.value));
  } catch (error) {
    refused(error);
  } finally {
    button.disabled = false;
  }
}

// Where to go on: to the test cases, or to the answers.
function next(agent, report) {
  const pages = `/agents/${encodeURIComponent(agent)}`;
  return report.cases && report.cases === report.read ? `${pages}/cases` : `${pages}/traces`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  look();
});
form.elements.file.addEventListener("change", () => {
  if (form.elements.file.files.length && form.elements.agent.value) look();
});
document.getElementById("take").addEventListener("click", take);
