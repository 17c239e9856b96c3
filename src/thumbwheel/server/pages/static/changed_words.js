// Marks the words in which two answers side by side differ, in text and in formatted text alike.
//
// Each [data-change] holds a [data-side=before] and a [data-side=after], each with one .said.

import { difference } from "./diff.js";

function textNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  return nodes;
}

// Wraps the characters from `start` to `end` of a text node.
function wrap(node, start, end, kind) {
  const middle = node.splitText(start);
  middle.splitText(end - start);
  const mark = document.createElement(kind);
  middle.replaceWith(mark);
  mark.append(middle);
}

// `parts` are those of the whole text of `root`, each the same or of this kind.
function mark(root, parts, kind) {
  const ranges = [];
  let position = 0;
  for (const part of parts) {
    if (part.kind === kind && part.text.trim()) ranges.push([position, position + part.text.length]);
    position += part.text.length;
  }
  let begin = 0;
  for (const node of textNodes(root)) {
    const end = begin + node.data.length;
    const inside = ranges.filter(([from, to]) => from < end && to > begin);
    for (const [from, to] of inside.reverse()) {
      wrap(node, Math.max(from, begin) - begin, Math.min(to, end) - begin, kind);
    }
    begin = end;
  }
}

for (const example of document.querySelectorAll("[data-change]")) {
  const [before, after] = example.querySelectorAll("[data-side] .said");
  const parts = difference(before.textContent, after.textContent);
  mark(before, parts.filter(({ kind }) => kind !== "ins"), "del");
  mark(after, parts.filter(({ kind }) => kind !== "del"), "ins");
}
