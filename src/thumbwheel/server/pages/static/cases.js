// Cases that nobody reviewed are chosen, one by one or all of the page, and become gold together.

const boxes = [...document.querySelectorAll("input[name=case]")];
const all = document.getElementById("all-cases");
const bar = document.getElementById("chosen");

function count() {
  const chosen = boxes.filter((box) => box.checked).length;
  bar.hidden = chosen === 0;
  bar.querySelector("button").textContent = chosen === 1 ? "I reviewed it: it is gold" : `I reviewed ${chosen}: they are gold`;
  all.checked = chosen === boxes.length;
  all.indeterminate = chosen > 0 && chosen < boxes.length;
}

if (bar) {
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    count();
  });
  for (const box of boxes) box.addEventListener("change", count);
  count(); // a browser keeps what was chosen over a reload
}
