// A replay: votes between a recorded answer and a new one, as preferences in the order that is shown.

import { newKey, send } from "./api.js";
import "./changed_words.js";
import { say } from "./messages.js";

const root = document.getElementById("replay");

function openVotes() {
  return [...root.querySelectorAll(".vote")];
}

function reveal(side) {
  const link = document.createElement("a");
  link.href = side.dataset.url;
  link.textContent = side.dataset.name;
  side.querySelector("p.small").replaceChildren(link);
}

function count(winner) {
  const figure = document.getElementById(`votes-${winner}`);
  figure.textContent = String(Number(figure.textContent) + 1);
}

// What people read after their vote, and the answer that won.
function outcome(sides, choice) {
  const names = sides.map((side) => side.dataset.name);
  if (choice === "tie") return ["tie", `Saved: a tie between ${names[0]} and ${names[1]}.`];
  const better = Number(choice);
  const winner = names[better].startsWith("recorded") ? "recorded" : "replayed";
  return [winner, `Saved: ${names[better]} is better than ${names[1 - better]}.`];
}

async function vote(box, choice) {
  const sides = [...box.closest(".pair").querySelectorAll("[data-side]")];
  const buttons = box.querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  const targets = sides.map((side) => ({ trace: side.dataset.trace }));
  const value = choice === "tie" ? null : Number(choice);
  const line = { id: newKey(), kind: "preference", value, targets, rater: root.dataset.rater };
  try {
    await send("POST", root.dataset.feedback, line);
  } catch (error) {
    for (const button of buttons) button.disabled = false;
    say(error.message, "bad");
    return;
  }
  for (const side of sides) reveal(side);
  const [winner, words] = outcome(sides, choice);
  count(winner);
  const status = document.createElement("p");
  status.className = "outcome";
  status.setAttribute("role", "status");
  status.textContent = words;
  box.replaceWith(status);
  const [next] = openVotes();
  next?.closest(".pair").scrollIntoView({ block: "nearest" });
  next?.querySelector("button").focus({ preventScroll: true });
}

// The pair that has the focus, or else the first one without a vote.
function currentVote() {
  return document.activeElement?.closest(".pair")?.querySelector(".vote") ?? openVotes()[0];
}

root.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-vote]");
  if (button) vote(button.closest(".vote"), button.dataset.vote);
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, textarea, select");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const choice = { 1: "0", 2: "1", 0: "tie" }[event.key];
  const box = choice && currentVote();
  if (box && !box.querySelector("button:disabled")) vote(box, choice);
});
