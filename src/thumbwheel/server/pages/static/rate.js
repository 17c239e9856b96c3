// The rating bench. Items come ahead of time, ratings go into the outbox and the next item is there at
// once. Everything that was done can be taken back, in the order in which it was done.

import { newKey, send } from "./api.js";
import { difference } from "./diff.js";
import { Keys, shown } from "./bench_keys.js";
import { say } from "./messages.js";
import { isForPage } from "./page_keys.js";
import { Outbox } from "./outbox.js";

const AHEAD = 30; // items that are fetched before they are needed
const MOST_TYPED = 10; // keys that wait for the next item
const CARDS = 24;
const REORDER = 50; // ratings after which what is left is put in order anew
const LONG_PAUSE = 600; // seconds after which nobody knows how long somebody looked

const root = document.getElementById("bench");
const bench = JSON.parse(root.dataset.bench);
const itemBox = document.getElementById("item");
const controls = document.getElementById("controls");
const live = document.getElementById("live");
const banner = document.getElementById("banner");
const undoButton = document.getElementById("undo");
const markdownButton = document.getElementById("markdown");
const MARKDOWN = "thumbwheel.markdown";
const FORMATTED_AHEAD = 3; // items that are formatted before they are shown

const isComparison = bench.kind === "comparison";
const isCase = bench.kind === "case";
const isCards = bench.layout === "cards" && bench.kind === "answer";

const waiting = []; // items that are here and not rated
const past = []; // what was done: {item, draft, name, path}
let current = null;
let draft = null;
let since = 0;
let fetching = null;
let isEmpty = false;
let done = bench.done;
let total = bench.total;
let rated = 0;
let skipped = 0; // items that this person skipped and could still rate
let sinceReorder = 0;
let editor = null;
let isWaiting = true; // whether the next item is on its way
let isFormatted = localStorage.getItem(MARKDOWN) === "1"; // whether answers are shown as Markdown
const formatted = new Map(); // text -> its HTML
let acts = 0; // everything that this person did here, also what was taken back
const settled = new Map(); // id of an item that is done -> the act that did it
const typed = []; // what was pressed meanwhile, for the items that come

// elements

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick") node.addEventListener("click", value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Characters that nobody sees, or that turn text around, are spelled out.
function legible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);
}

function text(content) {
  return element("div", { class: "text", dir: "auto" }, legible(content));
}

// An answer as it is, or as Markdown where that was chosen and the server has answered.
function answerText(content) {
  const html = isFormatted ? formatted.get(content) : undefined;
  if (html === undefined) return text(content);
  const box = element("div", { class: "said text formatted", dir: "auto" });
  box.innerHTML = html; // made by the server, without any HTML of the text (markdown.py)
  return box;
}

function textsOf(item) {
  const spoken = item.chat.filter((message) => message.role === "assistant").map((message) => message.text);
  return [...spoken, ...item.answers];
}

// Asks for the HTML of the answers that are shown now or next.
async function format() {
  if (!isFormatted || !current) return;
  const item = current;
  const texts = [item, ...waiting.slice(0, FORMATTED_AHEAD)].flatMap(textsOf);
  const missing = [...new Set(texts)].filter((content) => content && !formatted.has(content));
  if (!missing.length) return;
  try {
    const { value } = await send("POST", "/api/markdown", { texts: missing }, { key: null });
    missing.forEach((content, index) => formatted.set(content, value.html[index]));
  } catch (problem) {
    say(problem.message, "bad");
    return;
  }
  if (current === item && !editor) render();
}

function toggleMarkdown() {
  isFormatted = !isFormatted;
  localStorage.setItem(MARKDOWN, isFormatted ? "1" : "0");
  showMarkdown();
  announce(isFormatted ? "Markdown on" : "Markdown off");
  if (current && !editor) render();
  format();
}

function showMarkdown() {
  markdownButton.setAttribute("aria-pressed", String(isFormatted));
}

function announce(words) {
  live.textContent = "";
  setTimeout(() => { live.textContent = words; }, 20);
}

function clipped(words, most = 400) {
  return words.length > most ? `${words.slice(0, most)} …` : words;
}

// what can be pressed

const labels = bench.labels.flatMap((label) => {
  if (!label.values.length) return [{ action: `label:${label.name}`, label: label.name, name: label.name, value: "true" }];
  return label.values.map((value) => ({
    action: `label:${label.name}=${value}`, label: `${label.name}: ${value}`, name: label.name, value,
  }));
});
const tags = bench.tags.map((tag) => ({ action: `tag:${tag}`, label: `Tag ${tag}`, tag }));
const stars = [1, 2, 3, 4, 5].map((value) => ({ action: `rating:${value}`, label: `Rating ${value}`, key: String(value), value }));
const letters = [...bench.letters].map((letter, index) => ({
  action: `answer:${index}`, label: `Answer ${letter} is better`, key: letter.toLowerCase(), index,
}));
const asksThumb = !isComparison && !isCase && bench.ask.includes("thumb");
const asksRating = !isComparison && !isCase && bench.ask.includes("rating");

function actions() {
  const list = ["skip", "undo", "note", "submit", "help"];
  if (asksThumb) list.unshift("up", "down");
  if (isComparison) list.unshift("tie");
  else list.push("edit");
  if (bench.may_edit && !isComparison) list.push("gold");
  if (!isCards) list.push("markdown");
  return list;
}

function choices() {
  if (isComparison) return letters;
  if (isCase) return [];
  return [...(asksRating ? stars : []), ...labels, ...tags];
}

const keys = new Keys(actions(), choices());

// the outbox

const outbox = new Outbox(`${bench.agent}.${bench.queue}.${bench.rater}`, {
  refused(entry, problem) {
    say(problem.status === 404 ? `One item is gone: ${problem.message}` : problem.message, "bad");
  },
  taken(entry, value) {
    if (entry.kind === "rate" && !value?.replayed) sinceReorder += 1;
    reorder();
  },
});
outbox.addEventListener("change", showState);

function showState() {
  const size = outbox.size;
  const pending = document.getElementById("pending");
  pending.hidden = size === 0 || outbox.state === "sending" && size < 3;
  pending.dataset.count = String(size);
  pending.textContent = `${size} on the way`;
  const texts = {
    offline: `The server cannot be reached. You can continue: ${size} ratings are stored here and sent when it answers.`,
    loggedout: `You are logged out. ${size} ratings are stored here. They are sent when you log in.`,
    forbidden: `The server refuses: ${outbox.why || "you may not rate here."} ${size} ratings are stored here.`,
  };
  const words = texts[outbox.state] || "";
  if (banner.dataset.state === outbox.state + size) return;
  banner.dataset.state = outbox.state + size;
  banner.hidden = !words;
  banner.replaceChildren();
  if (!words) return;
  const buttons = element("p", { class: "buttons" },
    element("button", { onclick: () => { outbox.retry(); fetchMore(); } }, "Try again"));
  if (outbox.state === "loggedout") {
    buttons.prepend(element("a", { class: "button primary", href: location.pathname, target: "_blank" }, "Log in in a new tab"));
  }
  banner.append(element("p", {}, words), buttons);
}

async function reorder() {
  if (bench.order !== "active" || sinceReorder < REORDER) return;
  sinceReorder = 0;
  try {
    await send("POST", `${bench.api}/order`, {}, { key: null });
  } catch { /* the next fifty ratings ask again */ }
}

// items

async function fetchMore() {
  if (fetching) return fetching;
  fetching = (async () => {
    // what is on its way is still held, and would come again
    await outbox.flush();
    const ahead = (isCards ? CARDS : AHEAD) + outbox.size;
    const asked = acts; // the answer may not know what is done from here on
    try {
      const { value } = await send("POST", `${bench.api}/next`, { rater: bench.rater, limit: Math.min(100, ahead) }, { key: null });
      const busy = outbox.items;
      const here = new Set(waiting.map((item) => item.id));
      for (const item of value.items) {
        const isDone = busy.has(item.id) || settled.get(item.id) > asked;
        if (!here.has(item.id) && !isDone && item.id !== current?.id) waiting.push(item);
      }
      done = value.done;
      total = value.total;
      if (acts === asked) rated = value.rated;
      skipped = value.skipped;
      isEmpty = waiting.length === 0;
      if (outbox.state === "offline" && outbox.size === 0) outbox.set("idle");
      return true;
    } catch (problem) {
      if (problem.status === 401) outbox.set("loggedout");
      else if (problem.status === 403) { outbox.why = problem.message; outbox.set("forbidden"); }
      else if (problem.status === 409) { isEmpty = true; say(problem.message, "bad"); }
      else { outbox.set("offline"); setTimeout(() => { outbox.retry(); fetchMore().then(advanceIfIdle); }, 1500); }
      return false;
    } finally {
      fetching = null;
    }
  })();
  return fetching;
}

function advanceIfIdle() {
  if (!current && !isCards) advance();
  else showProgress();
}

function showProgress() {
  const bar = document.getElementById("progress");
  bar.max = Math.max(1, total);
  bar.value = done;
  document.getElementById("count").textContent =
    `${done.toLocaleString()} of ${total.toLocaleString()} done, ${rated.toLocaleString()} by you`;
  undoButton.disabled = past.length === 0;
}

async function advance(before = "") {
  current = waiting.shift() || null;
  draft = current ? loaded(current) : null;
  since = performance.now();
  isWaiting = !current;
  if (!current) {
    render();
    await fetching; // what is on its way may have been asked before the last item was done
    const isAnswered = await fetchMore();
    if (!current && waiting.length) { advance(before); return; }
    if (isAnswered || isEmpty) { isWaiting = false; typed.length = 0; }
    render();
    return;
  }
  render();
  format();
  announceItem(before);
  if (waiting.length < AHEAD / 2) fetchMore();
  while (typed.length && current) perform(typed.shift());
}

function announceItem(before = "") {
  const question = current.chat.at(-1)?.text || "";
  const answers = isComparison
    ? current.answers.map((answer, index) => `Answer ${bench.letters[index]}: ${clipped(answer, 200)}`).join(". ")
    : `Answer: ${clipped(current.answers[0], 300)}`;
  announce(`${before} ${clipped(question, 200)}. ${answers}`.trim());
}

// drafts: what is said about the item so far

function blank() {
  return { thumb: null, rating: null, labels: {}, tags: [], order: [], note: "", correction: null };
}

function draftName(item) {
  return `thumbwheel.draft.${item.id}`;
}

function loaded(item) {
  try {
    return { ...blank(), ...JSON.parse(sessionStorage.getItem(draftName(item))) };
  } catch {
    return blank();
  }
}

function remember() {
  try {
    sessionStorage.setItem(draftName(current), JSON.stringify(draft));
  } catch { /* it is on the page */ }
}

function isComplete() {
  if (isComparison) return draft.order.flat().length >= current.answers.length;
  if (asksThumb && draft.thumb === null) return false;
  if (asksRating && draft.rating === null) return false;
  return bench.labels.every((label) => !label.values.length || draft.labels[label.name] !== undefined);
}

function isBlank() {
  return JSON.stringify(draft) === JSON.stringify(blank());
}

function bodyOf(said) {
  const body = {};
  if (said.thumb !== null) body.thumb = said.thumb;
  if (said.rating !== null) body.rating = said.rating;
  const names = Object.entries(said.labels);
  if (names.length) body.label = names.map(([name, value]) => `${name}=${value}`);
  if (said.tags.length) body.tag = said.tags;
  if (said.order.length) body.ranking = said.order.map((group) => group.map((index) => bench.letters[index]).join("=")).join(">");
  if (said.correction !== null) body.correction = said.correction;
  if (said.note.trim()) body.note = said.note.trim();
  return body;
}

function rest() {
  const seconds = (performance.now() - since) / 1000;
  return {
    rater: bench.rater, key: newKey(), rated_at: new Date().toISOString(),
    ...(seconds < LONG_PAUSE ? { seconds: Math.round(seconds * 100) / 100 } : {}),
  };
}

// what people do

function finish(kind, path, body, words) {
  const item = current;
  sessionStorage.removeItem(draftName(item));
  const name = outbox.add({ kind, item: item.id, path: `${bench.api}/items/${item.id}/${path}`, body });
  past.push({ kind, item, draft, name });
  settled.set(item.id, ++acts);
  if (kind !== "skip") { rated += 1; }
  closeEditor();
  showProgress();
  advance(words);
}

function submit() {
  if (!current) return;
  if (isCase) { gold(); return; }
  if (isBlank()) { say("You have not rated this item yet. Rate it or skip it."); return; }
  if (isComparison && !isComplete()) { say("Rank all answers first, or choose a tie."); return; }
  finish("rate", "rating", { ...bodyOf(draft), ...rest() }, "Saved.");
}

function changed() {
  remember();
  if (isComplete() && !editor) submit();
  else renderControls();
}

function skip() {
  if (current) finish("skip", "rating", { skip: true, ...rest() }, "Skipped.");
}

async function lookAgain(event) {
  event.target.disabled = true;
  try {
    await send("POST", `${bench.api}/returned`, { rater: bench.rater }, { key: null });
  } catch (problem) {
    event.target.disabled = false;
    say(problem.message, "bad");
    return;
  }
  past.splice(0, past.length, ...past.filter((entry) => entry.kind !== "skip"));
  skipped = 0;
  await advance();
}

function gold() {
  if (!current || !bench.may_edit || isComparison) return;
  const { rater, key } = rest();
  const body = { rater, key };
  if (draft.correction !== null) body.reference = draft.correction;
  finish("approve", "gold", body, "Marked as gold.");
}

function undo() {
  // first what is chosen on this item, then what was done before
  if (current && !isBlank() && !isComparison) { draft = blank(); remember(); closeEditor(); renderControls(); announce("Cleared."); return; }
  if (current && isComparison && draft.order.length) { draft = { ...draft, order: [] }; remember(); render(); announce("Cleared."); return; }
  const last = past.pop();
  if (!last) return;
  if (!outbox.drop(last.name)) {
    const withdraws = last.kind === "approve";
    const path = `${bench.api}/items/${last.item.id}/${withdraws ? "gold" : "undone"}`;
    const body = { rater: bench.rater, key: newKey(), ...(withdraws ? { undo: true } : {}) };
    outbox.add({ kind: "undo", item: last.item.id, path, body });
  }
  settled.delete(last.item.id);
  acts += 1;
  if (last.kind !== "skip") rated = Math.max(0, rated - 1);
  if (isCards) { restoreCard(last); showProgress(); return; }
  if (current) waiting.unshift(current);
  current = last.item;
  draft = last.kind === "skip" || isComparison ? blank() : { ...last.draft };
  remember();
  since = performance.now();
  render();
  showProgress();
  announceItem("Taken back.");
}

function thumb(isUp) {
  const value = isUp ? "up" : "down";
  draft.thumb = draft.thumb === value ? null : value;
  changed();
}

function rating(value) {
  draft.rating = draft.rating === value ? null : value;
  changed();
}

function label(name, value) {
  if (draft.labels[name] === value) delete draft.labels[name];
  else draft.labels[name] = value;
  changed();
}

function tag(name) {
  draft.tags = draft.tags.includes(name) ? draft.tags.filter((other) => other !== name) : [...draft.tags, name];
  remember();
  renderControls();
  announce(`${name} ${draft.tags.includes(name) ? "on" : "off"}`);
}

function better(index) {
  if (index >= current.answers.length) return;
  const chosen = draft.order.flat();
  if (chosen.includes(index)) return;
  draft.order.push([index]);
  const left = current.answers.map((_, position) => position).filter((position) => !draft.order.flat().includes(position));
  if (left.length === 1) draft.order.push(left);
  if (!isComplete()) announce(`Answer ${bench.letters[index]} is number ${draft.order.length}.`);
  remember();
  if (isComplete()) submit();
  else render();
}

function tie() {
  const left = current.answers.map((_, position) => position).filter((position) => !draft.order.flat().includes(position));
  draft.order.push(left);
  remember();
  submit();
}

// the editor

function edit() {
  if (!current || isComparison || editor) { editor?.querySelector("textarea").focus(); return; }
  const before = current.answers[0];
  const area = element("textarea", { "aria-label": "The corrected answer", rows: 8, dir: "auto" });
  area.value = draft.correction ?? before;
  const diff = element("div", { class: "diff text", "aria-label": "What you changed", role: "group", dir: "auto" });
  let timer = null;
  const show = () => {
    diff.replaceChildren(...difference(before, area.value).map(({ kind, text: part }) =>
      kind === "same" ? document.createTextNode(legible(part)) : element(kind, {}, legible(part))));
  };
  area.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, before.length > 20000 ? 400 : 60);
  });
  const save = () => {
    const value = area.value;
    closeEditor();
    draft.correction = value.trim() && value !== before ? value : null;
    remember();
    renderControls();
    itemBox.focus();
    announce(draft.correction === null ? "Not changed." : "Edited. Rate it now, or save it.");
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.preventDefault(); closeEditor(); itemBox.focus(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); save(); }
  });
  editor = element("div", { class: "editor" }, area, diff,
    element("p", { class: "buttons" },
      element("button", { class: "primary", onclick: save }, "Keep the edit"),
      element("button", { onclick: () => { closeEditor(); itemBox.focus(); } }, "Cancel"),
      element("span", { class: "small soft" }, "Ctrl+Enter, Esc")));
  itemBox.append(editor);
  show();
  area.focus();
}

function closeEditor() {
  editor?.remove();
  editor = null;
}

// rendering

function keyHint(action) {
  const key = keys.keyOf(action);
  return key && keys.isOn ? element("kbd", { "aria-hidden": "true" }, shown(key)) : null;
}

function choice(action, words, isPressed, act, style = "") {
  const key = keys.keyOf(action);
  return element("button", {
    type: "button", class: style, "aria-pressed": isPressed === null ? null : String(isPressed), "data-action": action,
    "aria-keyshortcuts": key && keys.isOn ? key : null,
    onclick: (event) => { if (event.detail < 2) act(); }, // the second click of a double click is none
  }, words, keyHint(action));
}

function render() {
  closeEditor();
  itemBox.replaceChildren();
  controls.hidden = !current;
  showProgress();
  if (!current) {
    const isAway = ["offline", "loggedout", "forbidden"].includes(outbox.state);
    const isLooking = (fetching || isWaiting) && !isAway;
    const words = isLooking ? "Loading the next item …" : emptyWords();
    itemBox.append(element("p", { class: "empty" }, words));
    if (!isLooking && skipped) {
      const label = `Rate the ${skipped.toLocaleString()} items that you skipped`;
      itemBox.append(element("p", { class: "buttons" }, element("button", { class: "primary", onclick: lookAgain }, label)));
    }
    if (!isLooking) announce(words);
    return;
  }
  itemBox.append(...turns(current), ...steps(current), answers(current));
  renderControls();
}

function emptyWords() {
  if (outbox.state === "loggedout") return "Log in to continue.";
  if (outbox.state === "offline") return "The next items appear when the server can be reached.";
  return past.length ? "That was all. Thank you." : "There is nothing to rate here at the moment.";
}

const ROLES = { user: "Asked", assistant: "Answered", system: "System", developer: "System", tool: "Tool" };

function turns(item) {
  const parts = item.chat.map((message, index) => {
    const isLast = index === item.chat.length - 1;
    const turn = element("div", { class: `turn${isLast ? " last" : ""}` },
      element("span", { class: "role" }, ROLES[message.role] || legible(message.role)));
    if (message.role === "system" && message.text.length > 300) {
      turn.append(element("details", {}, element("summary", {}, "System prompt"), text(message.text)));
    } else turn.append(message.role === "assistant" ? answerText(message.text) : text(message.text));
    return turn;
  });
  if (parts.length <= 6) return parts;
  const earlier = element("details", {}, element("summary", {}, `${parts.length - 4} earlier messages`), ...parts.slice(0, -4));
  return [earlier, ...parts.slice(-4)];
}

function steps(item) {
  if (!item.steps.length) return [];
  const rows = item.steps.map((step) => element("div", { class: "turn" },
    element("span", { class: "role" }, legible(step.name || step.kind)),
    element("div", {}, step.input ? text(step.input) : null, step.output ? text(step.output) : null,
      step.status === "ok" ? null : element("span", { class: "badge bad" }, legible(step.status)))));
  return [element("details", {}, element("summary", {}, `${item.steps.length} steps in between`), ...rows)];
}

function answers(item) {
  const rank = (index) => draft.order.findIndex((group) => group.includes(index));
  const boxes = item.answers.map((answer, index) => {
    const letter = bench.letters[index];
    const title = isComparison ? `Answer ${letter}` : isCase ? "Reference" : "Answer";
    const place = rank(index);
    const header = element("header", {}, element("b", {}, title), place >= 0 ? element("span", { class: "badge good" }, `${place + 1}.`) : null);
    const body = answerText(answer);
    body.tabIndex = 0;
    body.setAttribute("role", "region");
    body.setAttribute("aria-label", title);
    const box = element("article", { class: `answer${place >= 0 ? " chosen" : ""}` }, header, body);
    if (isComparison) {
      box.append(element("footer", {}, choice(`answer:${index}`, `${letter} is better`, place >= 0, () => better(index))));
    }
    return box;
  });
  return element("div", { class: "answers" }, ...boxes);
}

function renderControls() {
  const focused = controls.contains(document.activeElement) ? document.activeElement.dataset?.action || document.activeElement.id : null;
  const parts = [];
  if (isComparison) {
    parts.push(element("div", { class: "decide" }, element("div", { class: `thumbs${current.answers.length === 2 ? " three" : ""}` },
      ...(current.answers.length === 2
        ? [choice("answer:0", "A", null, () => better(0)), choice("tie", "Tie", null, tie), choice("answer:1", "B", null, () => better(1))]
        : [choice("tie", draft.order.length ? "The rest tie" : "All tie", null, tie)]))));
  }
  if (isCase) parts.push(element("div", { class: "decide thumbs" }, choice("gold", "Right", null, gold, "good-choice"), choice("edit", "Edit", draft.correction !== null, edit)));
  if (asksThumb) {
    parts.push(element("div", { class: "decide" }, element("div", { class: "thumbs" },
      choice("up", "Good", draft.thumb === "up", () => thumb(true), "good-choice"),
      choice("down", "Bad", draft.thumb === "down", () => thumb(false), "bad-choice"))));
  }
  if (asksRating) {
    parts.push(element("h2", { id: "rating-title" }, "Rating"), element("div", { class: "scale", role: "group", "aria-labelledby": "rating-title" },
      ...stars.map((star) => choice(star.action, String(star.value), draft.rating === star.value, () => rating(star.value)))));
  }
  if (!isComparison && !isCase) {
    for (const schema of bench.labels) {
      const id = `label-${schema.name}`;
      const values = schema.values.length ? schema.values : ["true"];
      parts.push(element("h2", { id }, schema.name), element("div", { class: "choices", role: "group", "aria-labelledby": id },
        ...values.map((value) => choice(
          schema.values.length ? `label:${schema.name}=${value}` : `label:${schema.name}`,
          schema.values.length ? value : "yes", draft.labels[schema.name] === value, () => label(schema.name, value)))));
    }
    if (bench.tags.length) {
      parts.push(element("h2", { id: "tags-title" }, "Tags"), element("div", { class: "choices", role: "group", "aria-labelledby": "tags-title" },
        ...tags.map(({ action, tag: name }) => choice(action, name, draft.tags.includes(name), () => tag(name)))));
    }
  }
  if (draft.correction !== null) parts.push(element("p", { class: "small" }, element("span", { class: "badge good" }, "Edited"), " The edit is saved with the rating."));
  if (!isCase) {
    const area = element("textarea", { id: "note", rows: 2, placeholder: "Why?", dir: "auto" });
    area.value = draft.note;
    area.addEventListener("input", () => { draft.note = area.value; remember(); });
    area.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.preventDefault(); itemBox.focus(); } });
    parts.push(element("h2", {}, element("label", { for: "note" }, "Note "), keyHint("note")), area);
  }
  const row = element("div", { class: "rows" }, choice("skip", "Skip", null, skip));
  if (!isComparison && !isCase) row.append(choice("edit", "Edit", draft.correction !== null, edit));
  if (bench.may_edit && !isComparison && !isCase) row.append(choice("gold", "Gold", null, gold));
  if (!isCase) row.append(choice("submit", "Save", null, submit, "primary"));
  parts.push(row);
  controls.replaceChildren(...parts);
  if (focused) (controls.querySelector(`[data-action="${CSS.escape(focused)}"]`) || document.getElementById(focused))?.focus();
}

// cards: many items at once, a thumb on each

const cards = new Map();

function card(item) {
  const facts = Object.entries(item.facts);
  const title = facts.length ? `${item.facts.scenario || item.facts.fixture || ""} ${item.facts.size || ""}`.trim() : clipped(item.chat.at(-1)?.text || "", 80);
  const body = element("div", {}, element("h2", {}, legible(title) || "Answer"));
  if (item.facts.question) body.append(element("p", { class: "question", dir: "auto" }, legible(item.facts.question)));
  const others = facts.filter(([name]) => name !== "question");
  if (others.length) {
    const list = element("dl", { class: "facts" });
    for (const [name, value] of others) {
      const isLong = value.length > 60;
      list.append(element("dt", {}, name), element("dd", { dir: "auto" }, isLong ? element("pre", { tabindex: 0, role: "region", "aria-label": name }, legible(value)) : legible(value)));
    }
    body.append(list);
  }
  body.append(element("h3", {}, "Answer"), text(clipped(item.answers[0], 2000)));
  const entry = { item, box: null, thumb: null, tags: new Set(), note: "" };
  body.append(...cardRemarks(entry));
  entry.box = element("article", { class: "widget", "aria-label": legible(title) || "Answer" }, body);
  cards.set(item.id, entry);
  entry.box.append(cardThumbs(entry));
  return entry.box;
}

// tags and a note of a card; they are sent with its thumb, and again where they change after it
function cardRemarks(entry) {
  const parts = [];
  if (bench.tags.length) {
    const row = element("div", { class: "tags", role: "group", "aria-label": "Tags" });
    for (const name of bench.tags) {
      const button = element("button", { type: "button", class: "tag", "aria-pressed": "false", onclick: () => {
        if (!entry.tags.delete(name)) entry.tags.add(name);
        button.setAttribute("aria-pressed", String(entry.tags.has(name)));
        resendCard(entry);
      } }, name);
      row.append(button);
    }
    parts.push(row);
  }
  const note = element("input", { type: "text", class: "card-note", "aria-label": "Note", placeholder: "Note" });
  note.addEventListener("change", () => { entry.note = note.value; resendCard(entry); });
  parts.push(note);
  return parts;
}

function cardThumbs(entry) {
  return element("div", { class: "thumbs" },
    choice(`up:${entry.item.id}`, "Good", entry.thumb === "up", () => rateCard(entry, "up"), "good-choice"),
    choice(`down:${entry.item.id}`, "Bad", entry.thumb === "down", () => rateCard(entry, "down"), "bad-choice"));
}

function sendCard(entry) {
  const body = { thumb: entry.thumb, rater: bench.rater, key: newKey(), rated_at: new Date().toISOString() };
  if (entry.tags.size) body.tag = bench.tags.filter((name) => entry.tags.has(name));
  if (entry.note.trim()) body.note = entry.note.trim();
  return outbox.add({ kind: "rate", item: entry.item.id, path: `${bench.api}/items/${entry.item.id}/rating`, body });
}

function resendCard(entry) {
  if (entry.thumb === null) return;
  sendCard(entry);
  announce("Saved");
}

function rateCard(entry, value) {
  if (entry.thumb === value) return;
  if (entry.thumb === null) rated += 1;
  entry.thumb = value;
  const name = sendCard(entry);
  past.push({ kind: "rate", item: entry.item, draft: { thumb: value }, name });
  settled.set(entry.item.id, ++acts);
  showCard(entry, value);
  announce(`Saved: ${value}`);
  showProgress();
  const left = [...cards.values()].filter((other) => other.thumb === null).length;
  if (left < 6) fetchMore().then(appendCards);
}

function showCard(entry, focus) {
  entry.box.classList.toggle("done", entry.thumb !== null);
  entry.box.querySelector(".thumbs").replaceWith(cardThumbs(entry));
  if (focus) entry.box.querySelector(`[data-action^="${focus}:"]`)?.focus({ preventScroll: true });
}

function restoreCard(last) {
  const entry = cards.get(last.item.id);
  if (!entry) return;
  // an earlier thumb of the same card was replaced by this one: taking it back leaves none
  entry.thumb = null;
  showCard(entry, "up");
  announce("Taken back.");
}

function appendCards() {
  const grid = itemBox.querySelector(".widget-cards");
  for (const item of waiting.splice(0)) {
    if (!cards.has(item.id)) grid.append(card(item));
  }
  if (!grid.children.length) grid.before(element("p", { class: "empty" }, emptyWords()));
  showProgress();
}

async function startCards() {
  root.classList.remove("bench");
  controls.hidden = true;
  itemBox.replaceChildren(element("div", { class: "widget-cards" }));
  await fetchMore();
  appendCards();
}

// keys

const DO = {
  up: () => thumb(true), down: () => thumb(false), tie, skip, undo, edit, gold, submit,
  note: () => document.getElementById("note")?.focus(), help: () => openKeys(), markdown: toggleMarkdown,
};

function perform(action) {
  if (action === "undo" && typed.length) { typed.pop(); return; }
  if (["undo", "help", "markdown"].includes(action)) { DO[action](); return; }
  if (!current) {
    if (isWaiting && typed.length < MOST_TYPED) typed.push(action);
    return;
  }
  if (DO[action]) { DO[action](); return; }
  const colon = action.indexOf(":");
  const [kind, name] = [action.slice(0, colon), action.slice(colon + 1)];
  if (kind === "rating") rating(Number(name));
  else if (kind === "answer") better(Number(name));
  else if (kind === "tag") tag(name);
  else if (kind === "label") {
    const equals = name.indexOf("=");
    if (equals < 0) label(name, "true");
    else label(name.slice(0, equals), name.slice(equals + 1));
  }
}

document.addEventListener("keydown", (event) => {
  if (!isForPage(event)) return;
  const action = keys.actionOf(event.key);
  if (!action || (!keys.isOn && action !== "help")) return;
  // Enter and Space on a button or a link are the button's
  if ((event.key === "Enter" || event.key === " ") && event.target.closest("button, a, summary")) return;
  event.preventDefault();
  perform(action);
});

const dialog = document.getElementById("keys");

function openKeys() {
  const list = document.getElementById("keys-list");
  list.replaceChildren();
  for (const [action, name] of keys.names) {
    const id = `key-${action}`;
    const field = element("input", { id, value: shown(keys.keyOf(action)), autocomplete: "off", readonly: true });
    field.addEventListener("keydown", (event) => {
      if (["Tab", "Escape", "Shift"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (event.key === "Backspace" || event.key === "Delete") { keys.changed[action] = ""; keys.save(); } else keys.set(action, event.key);
      openKeys();
      document.getElementById(id).focus();
    });
    list.append(element("label", { for: id }, name), field);
  }
  document.getElementById("keys-on").checked = keys.isOn;
  if (!dialog.open) dialog.showModal();
}

// A browser leaves the focus in a closed dialog for a moment, and the next key would change a key.
function closeKeys() {
  dialog.close();
  itemBox.focus();
}

document.getElementById("help").addEventListener("click", openKeys);
document.getElementById("keys-close").addEventListener("click", closeKeys);
document.getElementById("keys-reset").addEventListener("click", () => { keys.reset(); openKeys(); });
document.getElementById("keys-on").addEventListener("change", (event) => { keys.isOn = event.target.checked; keys.save(); });
dialog.addEventListener("close", () => { if (current) render(); });
dialog.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  closeKeys();
});
undoButton.addEventListener("click", (event) => { if (event.detail < 2) undo(); });
window.addEventListener("focus", () => { if (!current && !isCards) fetchMore().then(advanceIfIdle); });
window.addEventListener("pageshow", (event) => { if (event.persisted) { outbox.retry(); outbox.flush(); } });

// instructions are open until somebody has rated here
const instructions = document.getElementById("instructions");
if (instructions) {
  const name = `thumbwheel.read.${bench.agent}.${bench.queue}`;
  instructions.open = localStorage.getItem(name) === null;
  instructions.addEventListener("toggle", () => { if (!instructions.open) localStorage.setItem(name, "1"); });
}

markdownButton.hidden = isCards;
markdownButton.addEventListener("click", toggleMarkdown);
showMarkdown();
showState();
outbox.flush();
if (isCards) startCards();
else advance();
