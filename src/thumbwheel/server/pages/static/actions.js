// Forms and buttons that change something by a request to /api:
//
//   data-api="POST /api/..."   the request; `{name}` in it is the field of that name of the form
//   data-body="{...}"          its JSON (of a button)
//   data-confirm="text"        is asked before, data-word is what the button then says
//   data-next="/path"          where to go once it is done; empty: the same page anew; none: stay
//   data-done="text"           what to say once it is done
//   data-etag="..."            the state that is meant to change; another one is refused
//   data-form                  (of a button) the fields of its form are sent along
//   data-title="text"          the heading of the question
//   data-in-path               (of a field) it is a part of the path, and not sent in the body
//   data-changed               (of a form) only fields that somebody changed are sent
//
// A form sends its named fields; data-kind (number, checkbox, list, json) says what a text means, and
// `a.b` is the field b of a. Boxes of data-kind="many" send the values of those that are checked, as
// a list. Where the answer is a job, its page is opened. What the server refuses
// about a field is shown at that field.

import { newKey, send } from "./api.js";
import { confirmed } from "./dialog.js";
import { say } from "./messages.js";
import { withoutCommands } from "./words.js";

const keys = new WeakMap(); // element -> what it asked and got no answer to, with its key

// What an element says by an attribute of that name. A form is not asked by `dataset` or another
// property: a field called `dataset` would answer.
export function attribute(element, name) {
  return element.getAttribute(`data-${name}`) ?? undefined;
}

export function valueOf(field) {
  const kind = field.dataset.kind || field.type;
  if (kind === "checkbox") return field.checked;
  if (kind === "list") return field.value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (field.value === "") return undefined;
  if (kind === "number") return Number(field.value);
  if (kind === "json") return JSON.parse(field.value);
  return field.value;
}

function isChanged(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
  const options = [...field.options];
  const first = options.find((option) => option.defaultSelected) || options[0];
  return field.value !== first?.value;
}

export function contentOf(form) {
  const content = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || field.hasAttribute("data-in-path") || (field.type === "radio" && !field.checked)) continue;
    if (form.hasAttribute("data-changed") && !field.hasAttribute("data-always") && !isChanged(field)) continue;
    if (field.dataset.kind === "many") {
      if (field.checked) (content[field.name] ??= []).push(field.value);
      continue;
    }
    let value;
    try {
      value = valueOf(field);
    } catch {
      throw new Error(`${field.name} is no JSON.`);
    }
    if (value === undefined) continue;
    const path = field.name.split(".");
    let target = content;
    for (const part of path.slice(0, -1)) target = target[part] ??= {};
    target[path.at(-1)] = value;
  }
  return content;
}

function busy(element, isBusy) {
  const buttons = element.matches("form") ? element.querySelectorAll("button") : [element];
  for (const button of buttons) button.disabled = isBusy;
  element.setAttribute("aria-busy", String(isBusy));
}

// Shows what is wrong at its field; false where the form has none of that name.
export function objectAt(form, name, text) {
  const field = form.elements[name];
  if (!name || !(field instanceof HTMLElement)) return false;
  const details = field.closest("details");
  if (details) details.open = true;
  const objection = document.createElement("p");
  objection.className = "objection";
  objection.id = `${field.id}-objection`;
  objection.textContent = text;
  field.after(objection);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", objection.id);
  field.addEventListener("input", () => withdraw(field), { once: true });
  field.focus();
  return true;
}

function withdraw(field) {
  document.getElementById(`${field.id}-objection`)?.remove();
  field.removeAttribute("aria-invalid");
  field.removeAttribute("aria-errormessage");
}

export function withdrawAll(form) {
  for (const field of form.querySelectorAll("[aria-invalid]")) withdraw(field);
}

// Says why something was refused: at its field where the form has it, else as a message.
export function refuse(element, error) {
  const { field, why, fix } = error.content || {};
  const texts = [why, fix].map((text) => withoutCommands(text || "")).filter(Boolean);
  const isShown = element.matches("form") && objectAt(element, field, `${texts.join(". ")}.`);
  if (!isShown) say(error.message, "bad");
}

function go(next) {
  if (next === undefined) return;
  if (next) location.assign(next);
  else location.reload();
}

async function act(element, body) {
  const [question, title, word, done] = ["confirm", "title", "word", "done"].map((name) => attribute(element, name));
  if (element.getAttribute("aria-busy") === "true") return;
  if (question && !(await confirmed(question, { title, word: word || element.textContent.trim() }))) return;
  const [method, template] = attribute(element, "api").split(" ");
  const path = template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(element.elements[name].value));
  const content = JSON.stringify(body);
  const earlier = keys.get(element);
  const key = earlier?.content === content ? earlier.key : newKey();
  keys.set(element, { content, key });
  if (element.matches("form")) withdrawAll(element);
  busy(element, true);
  try {
    const inQuery = method === "GET" || method === "DELETE";
    const url = inQuery && Object.keys(body).length ? `${path}?${new URLSearchParams(body)}` : path;
    const answer = await send(method, url, inQuery ? undefined : body, { key, etag: attribute(element, "etag") });
    keys.delete(element);
    element.dispatchEvent(new CustomEvent("done", { bubbles: true, detail: answer }));
    if (done) say(done, "good");
    if (answer.status === 202 && answer.value?.id?.startsWith("job_")) {
      location.assign(`/jobs/${encodeURIComponent(answer.value.id)}`);
    } else {
      go(attribute(element, "next"));
    }
  } catch (error) {
    if (!error.isTransient) keys.delete(element);
    refuse(element, error);
  } finally {
    busy(element, false);
  }
}

export function listen() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.hasAttribute("data-api")) return;
    event.preventDefault();
    try {
      act(form, contentOf(form));
    } catch (error) {
      say(error.message, "bad");
    }
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-api]");
    if (!button) return;
    const fields = button.hasAttribute("data-form") ? contentOf(button.form) : {};
    act(button, { ...fields, ...(button.dataset.body ? JSON.parse(button.dataset.body) : {}) });
  });
}
