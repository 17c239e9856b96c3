// A new key is shown once, in the page that made it.

import { copy } from "./copy.js";

const form = document.getElementById("make-key");
const box = document.getElementById("new-key");
const secret = box.querySelector(".secret");

form.addEventListener("done", (event) => {
  secret.textContent = event.detail.value.secret;
  box.hidden = false;
  form.reset();
  secret.focus();
});

box.querySelector(".copy").addEventListener("click", () => copy(secret));
