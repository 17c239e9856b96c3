// The rest of long texts of a trace, fetched when somebody wants it; the way to the next trace.

import { send } from "./api.js";
import { say } from "./messages.js";
import { around } from "./neighbours.js";

let whole = null;

async function trace() {
  const path = document.querySelector("[data-trace]").dataset.trace;
  whole ??= send("GET", path).then((answer) => answer.value);
  try {
    return await whole;
  } catch (error) {
    whole = null;
    throw error;
  }
}

async function show(button) {
  let value = await trace();
  for (const part of button.dataset.whole.split(".")) value = value[part];
  const text = document.createElement("pre");
  text.textContent = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const line = button.closest("p");
  line.previousElementSibling.replaceChildren(text);
  line.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-whole]");
  if (!button) return;
  button.disabled = true;
  try {
    await show(button);
  } catch (error) {
    button.disabled = false;
    say(error.message, "bad");
  }
});

function link(name, label, address) {
  const anchor = document.querySelector(`#neighbours [rel=${name}]`);
  anchor.hidden = !address;
  if (address) anchor.href = address;
  return { [label]: anchor };
}

function neighbours() {
  const known = around(location.pathname);
  if (!known) return;
  document.getElementById("to-list").href = known.list;
  const byKey = { ...link("prev", "ArrowLeft", known.previous), ...link("next", "ArrowRight", known.next) };
  document.addEventListener("keydown", (event) => {
    const isForPage = event.target === document.body || event.target.id === "main";
    const isPlain = !(event.altKey || event.ctrlKey || event.metaKey || event.shiftKey);
    const anchor = byKey[event.key];
    if (isForPage && isPlain && anchor && !anchor.hidden) anchor.click();
  });
}

neighbours();
