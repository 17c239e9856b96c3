// Keys of every page: `?` shows them, `/` goes to the search, Ctrl-K opens the command palette, and
// `g` with a letter opens a page of the agent. A page adds its own by `data-keys` on its main part:
// {"key": "what it does"}.

import { isForPage } from "./page_keys.js";

const GO = {
  o: "overview", t: "traces", r: "rate", d: "data-plan", s: "datasets", u: "runs", m: "models",
  e: "evaluations", x: "experiments", p: "playground", l: "loop", j: "jobs",
};
const LONG = 1500; // milliseconds that the second key of two may take

const dialog = document.getElementById("shortcuts");
const palette = document.getElementById("palette");
const field = document.getElementById("palette-field");
const list = document.getElementById("palette-list");
const ownHelp = document.getElementById("help"); // the bench has keys of its own, that people change
const navigation = [...document.querySelectorAll("nav.side a[data-page]")];
let goes = 0;
let entries = [];
let selected = 0;

function pageLink(name) {
  return navigation.find((link) => link.dataset.page === name);
}

// keys that are shown

function row(keys, words) {
  const term = document.createElement("dt");
  for (const key of keys) {
    const shown = document.createElement("kbd");
    shown.textContent = key;
    term.append(shown, " ");
  }
  const meaning = document.createElement("dd");
  meaning.textContent = words;
  return [term, meaning];
}

function showKeys() {
  if (ownHelp) {
    ownHelp.click();
    return;
  }
  const own = Object.entries(JSON.parse(document.getElementById("main").dataset.keys || "{}"));
  const rows = [
    ...own.flatMap(([key, words]) => row([key], words)),
    ...row(["?"], "Show these keys"),
    ...row(["/"], "Go to the search"),
    ...row(["Ctrl", "K"], "Open anything by its name"),
    ...Object.entries(GO).filter(([, name]) => pageLink(name))
      .flatMap(([key, name]) => row(["g", key], pageLink(name).dataset.label)),
  ];
  document.getElementById("shortcuts-list").replaceChildren(...rows);
  dialog.showModal();
}

// the search of the page, else the palette

function search() {
  const box = document.querySelector("main input[type=search]");
  if (!box) {
    openPalette();
    return;
  }
  box.focus();
  box.select();
}

// the palette: agents, pages, and what the page offers as buttons and links

function entry(kind, label, act) {
  return { kind, label, act, text: `${label} ${kind}`.toLowerCase() };
}

function offered() {
  const results = [];
  for (const link of navigation) results.push(entry("page", link.dataset.label, () => location.assign(link.href)));
  for (const { label, url } of JSON.parse(palette.dataset.actions)) {
    results.push(entry("action", label, () => location.assign(url)));
  }
  for (const link of document.querySelectorAll("header.top .chooser a")) {
    results.push(entry("agent", link.textContent.trim(), () => location.assign(link.href)));
  }
  const labels = new Set();
  for (const control of document.querySelectorAll("main button, main a.button, main summary, header.top button")) {
    const label = (control.getAttribute("aria-label") || control.textContent).trim().replace(/\s+/g, " ");
    if (!label || label.length > 80 || labels.has(label) || control.disabled) continue;
    if (!control.checkVisibility({ visibilityProperty: true })) continue;
    labels.add(label);
    results.push(entry("action here", label, () => { control.focus(); control.click(); }));
  }
  results.push(entry("help", "Keyboard shortcuts", showKeys));
  return results;
}

// Every word that is typed must be in the entry; entries that begin with it come first.
function matching(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = entries.filter((candidate) => words.every((word) => candidate.text.includes(word)));
  const rank = (candidate) => (words.length && candidate.text.startsWith(words[0]) ? 0 : 1);
  return matches.sort((a, b) => rank(a) - rank(b)).slice(0, 30);
}

function option(match, position) {
  const item = document.createElement("li");
  item.id = `palette-${position}`;
  item.setAttribute("role", "option");
  item.setAttribute("aria-selected", String(position === selected));
  const kind = document.createElement("span");
  kind.className = "soft small";
  kind.textContent = match.kind;
  item.append(match.label, " ", kind);
  item.addEventListener("click", () => choose(match));
  return item;
}

function showMatches() {
  const matches = matching(field.value);
  selected = Math.min(selected, Math.max(0, matches.length - 1));
  list.replaceChildren(...matches.map(option));
  document.getElementById("palette-none").hidden = matches.length > 0;
  if (matches.length) field.setAttribute("aria-activedescendant", `palette-${selected}`);
  else field.removeAttribute("aria-activedescendant");
  list.children[selected]?.scrollIntoView({ block: "nearest" });
  return matches;
}

function choose(match) {
  palette.close();
  match?.act();
}

function openPalette() {
  entries = offered();
  selected = 0;
  field.value = "";
  palette.showModal();
  showMatches();
  field.focus();
}

function paletteKey(event) {
  const count = list.children.length;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    selected = count ? (selected + (event.key === "ArrowDown" ? 1 : count - 1)) % count : 0;
    showMatches();
  } else if (event.key === "Enter") {
    event.preventDefault();
    choose(matching(field.value)[selected]);
  }
}

function pressed(event) {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (palette.open) palette.close();
    else if (!document.querySelector("dialog[open]")) openPalette();
    return;
  }
  if (ownHelp || !isForPage(event)) return;
  if (event.key === "?") {
    event.preventDefault();
    showKeys();
  } else if (event.key === "/") {
    event.preventDefault();
    search();
  } else if (event.key === "g") {
    goes = event.timeStamp;
  } else if (goes && event.timeStamp - goes < LONG && GO[event.key]) {
    const link = pageLink(GO[event.key]);
    goes = 0;
    if (link) location.assign(link.href);
  } else {
    goes = 0;
  }
}

export function listenToKeys() {
  if (!palette) return;
  document.addEventListener("keydown", pressed);
  field.addEventListener("input", () => { selected = 0; showMatches(); });
  palette.addEventListener("keydown", paletteKey);
  document.getElementById("shortcuts-close").addEventListener("click", () => dialog.close());
  document.getElementById("open-palette").addEventListener("click", openPalette);
  document.getElementById("open-shortcuts").addEventListener("click", showKeys);
}
