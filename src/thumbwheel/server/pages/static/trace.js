// The rest of long texts of a trace, fetched when somebody wants it.

import { send } from "./api.js";
import { say } from "./messages.js";

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
