// What every page does: forms and buttons, times of the reader's own zone, long texts that unfold.

import { listen } from "./actions.js";
import { drawLater } from "./charts.js";
import { copy } from "./copy.js";
import { listenToKeys } from "./shortcuts.js";
import { exportTables } from "./table_export.js";

function localTimes(root = document) {
  const long = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const short = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short" });
  for (const element of root.querySelectorAll("time[datetime]")) {
    const when = new Date(element.dateTime);
    if (Number.isNaN(when.valueOf())) continue;
    element.title = `${element.textContent} UTC`;
    element.textContent = (element.closest("[data-times=short]") ? short : long).format(when);
  }
}

function folds(root = document) {
  for (const block of root.querySelectorAll("[data-fold]")) {
    const button = document.createElement("button");
    button.className = "plain unfold";
    const label = block.dataset.fold;
    const show = (isOpen) => {
      block.classList.toggle("folded", !isOpen);
      button.setAttribute("aria-expanded", String(isOpen));
      button.textContent = `${isOpen ? "Less" : "All"} of ${label}`;
    };
    button.addEventListener("click", () => show(block.classList.contains("folded")));
    show(false);
    block.after(button);
  }
}

// Closes an open menu by Escape, or by a click elsewhere.
function menus() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.chooser[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.chooser[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
}

// A button beside each snippet that is meant for somewhere else.
function copies(root = document) {
  for (const snippet of root.querySelectorAll(".snippet")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", () => copy(snippet));
    snippet.after(button);
  }
}

listen();
listenToKeys();
copies();
localTimes();
folds();
menus();
exportTables();
drawLater();
