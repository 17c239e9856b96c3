// A vote between two answers beside each other, by buttons (the macro `vote_buttons`) or keys. It is
// stored as a preference over the two traces, in the order in which they are shown.

import { newKey, send } from "./api.js";
import { say } from "./messages.js";
import { isForPage } from "./page_keys.js";

const CHOICES = { 1: "0", 2: "1", 0: "tie" }; // key -> the better side

function wordsOf(side, names) {
  if (side === null) return `Saved: a tie between ${names[0]} and ${names[1]}.`;
  return `Saved: ${names[side]} is better than ${names[1 - side]}.`;
}

// Store a choice and put its words in place of the buttons. Returns {side, outcome}: the better side
// (null for a tie) and the element with the words; null if the choice was not stored.
export async function storeVote(box, choice, { url, rater, traces, names }) {
  const buttons = [...box.querySelectorAll("button")];
  if (buttons.some((button) => button.disabled)) return null;
  for (const button of buttons) button.disabled = true;
  const side = choice === "tie" ? null : Number(choice);
  const targets = traces.map((trace) => ({ trace }));
  try {
    await send("POST", url, { id: newKey(), kind: "preference", value: side, targets, rater });
  } catch (error) {
    for (const button of buttons) button.disabled = false;
    say(error.message, "bad");
    return null;
  }
  const outcome = document.createElement("p");
  outcome.className = "outcome";
  outcome.setAttribute("role", "status");
  outcome.textContent = wordsOf(side, names);
  box.replaceWith(outcome);
  return { side, outcome };
}

// Call `cast(box, choice)` for a click on buttons in `root`, and for a key about the box that
// `openBox()` returns, if there is one.
export function listenToVotes(root, openBox, cast) {
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-vote]");
    if (button) cast(button.closest(".vote"), button.dataset.vote);
  });
  document.addEventListener("keydown", (event) => {
    const choice = isForPage(event) && CHOICES[event.key];
    const box = choice && openBox();
    if (box) cast(box, choice);
  });
}
