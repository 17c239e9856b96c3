// Answers that changed: which words, and only those that got worse or better.

import { difference } from "./diff.js";

function marked(kind, text) {
  if (kind === "same") return document.createTextNode(text);
  const node = document.createElement(kind);
  node.textContent = text;
  return node;
}

// Marks in the answer before what is gone, and in the answer after what is new.
function markWords(example) {
  const [before, after] = example.querySelectorAll("[data-side] pre");
  const parts = difference(before.textContent, after.textContent);
  before.replaceChildren(...parts.filter(({ kind }) => kind !== "ins").map(({ kind, text }) => marked(kind, text)));
  after.replaceChildren(...parts.filter(({ kind }) => kind !== "del").map(({ kind, text }) => marked(kind, text)));
}

function show(examples, change) {
  let count = 0;
  for (const example of examples) {
    example.hidden = change !== "" && example.dataset.change !== change;
    count += !example.hidden;
  }
  document.getElementById("shown").textContent = `${count} of ${examples.length}`;
}

const examples = [...document.querySelectorAll("[data-change]")];
examples.forEach(markWords);
const choice = document.getElementById("change");
if (choice) {
  choice.addEventListener("change", () => show(examples, choice.value));
  show(examples, choice.value); // a browser keeps the choice when the page is loaded anew
}
