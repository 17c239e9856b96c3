// A replay: votes between a recorded answer and a new one.

import "./changed_words.js";
import { listenToVotes, storeVote } from "./vote.js";

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

async function cast(box, choice) {
  const sides = [...box.closest(".pair").querySelectorAll("[data-side]")];
  const vote = await storeVote(box, choice, {
    url: root.dataset.feedback,
    rater: root.dataset.rater,
    traces: sides.map((side) => side.dataset.trace),
    names: sides.map((side) => side.dataset.name),
  });
  if (!vote) return;
  for (const side of sides) reveal(side);
  count(vote.side === null ? "tie" : sides[vote.side].dataset.answer);
  const [next] = openVotes();
  next?.closest(".pair").scrollIntoView({ block: "nearest" });
  next?.querySelector("button").focus({ preventScroll: true });
}

// The pair that has the focus, or else the first one without a vote.
function currentVote() {
  return document.activeElement?.closest(".pair")?.querySelector(".vote") ?? openVotes()[0];
}

listenToVotes(root, currentVote, cast);
