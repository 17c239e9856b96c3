// Answers that changed: only those that got worse or better.

import "./changed_words.js";

function show(examples, change) {
  let count = 0;
  for (const example of examples) {
    example.hidden = change !== "" && example.dataset.change !== change;
    count += !example.hidden;
  }
  document.getElementById("shown").textContent = `${count} of ${examples.length}`;
}

const examples = [...document.querySelectorAll("[data-change]")];
const choice = document.getElementById("change");
if (choice) {
  choice.addEventListener("change", () => show(examples, choice.value));
  show(examples, choice.value); // a browser keeps the choice when the page is loaded anew
}
