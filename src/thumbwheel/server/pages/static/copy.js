// Puts the text of an element on the clipboard.

import { say } from "./messages.js";

export async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent.trim());
    say("Copied.", "good");
  } catch {
    getSelection().selectAllChildren(element);
    say("Press Ctrl+C to copy it.");
  }
}
