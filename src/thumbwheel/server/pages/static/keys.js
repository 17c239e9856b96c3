// A new key is shown once, in the page that made it.

import { say } from "./messages.js";

const form = document.getElementById("make-key");
const box = document.getElementById("new-key");
const secret = box.querySelector(".secret");

form.addEventListener("done", (event) => {
  secret.textContent = event.detail.value.secret;
  box.hidden = false;
  form.reset();
  secret.focus();
});

box.querySelector(".copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(secret.textContent);
    say("Copied.", "good");
  } catch {
    getSelection().selectAllChildren(secret);
    say("Press Ctrl+C to copy it.");
  }
});
