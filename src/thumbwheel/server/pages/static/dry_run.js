// What something would do, before it is done: a form's [data-dry-run] button asks with `dry_run`, and
// shows the answer below, as a terminal would see it.

import { attribute, contentOf, refuse, withdrawAll } from "./actions.js";
import { send } from "./api.js";

const PAGE = "application/vnd.thumbwheel.page+json";

function element(name, text) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  return node;
}

function tableOf(part) {
  const box = element("div");
  box.className = "scroll";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", part.title);
  const table = element("table");
  table.append(element("caption", part.title));
  if (part.columns.some(Boolean)) {
    const head = element("tr");
    for (const column of part.columns) {
      const cell = element("th", column);
      cell.scope = "col";
      head.append(cell);
    }
    table.createTHead().append(head);
  }
  const body = table.createTBody();
  for (const cells of part.rows) {
    const row = body.insertRow();
    cells.forEach((text, index) => {
      const cell = element(index === 0 && !part.columns[0] ? "th" : "td", text);
      if (cell.tagName === "TH") cell.scope = "row";
      cell.dir = "auto";
      row.append(cell);
    });
  }
  box.append(table);
  return box;
}

function partOf(part) {
  if (part.kind === "table") return tableOf(part);
  const text = element("p", part.text);
  text.dir = "auto";
  return text;
}

async function estimate(button) {
  const form = button.form;
  const result = form.querySelector("[data-result]");
  if (!form.reportValidity() || form.getAttribute("aria-busy") === "true") return;
  withdrawAll(form);
  form.setAttribute("aria-busy", "true");
  button.disabled = true;
  result.replaceChildren(element("p", "Computing…"));
  try {
    const [method, path] = attribute(form, "api").split(" ");
    const body = { ...contentOf(form), dry_run: true };
    const answer = await send(method, path, body, { accept: PAGE });
    const panel = element("div");
    panel.className = "panel";
    panel.append(...answer.value.parts.map(partOf));
    result.replaceChildren(panel);
    for (const other of form.querySelectorAll("button:not([type=button])")) other.classList.add("primary");
    button.classList.remove("primary");
  } catch (error) {
    result.replaceChildren();
    refuse(form, error);
  } finally {
    form.setAttribute("aria-busy", "false");
    button.disabled = false;
  }
}

for (const button of document.querySelectorAll("button[data-dry-run]")) {
  button.addEventListener("click", () => estimate(button));
}
