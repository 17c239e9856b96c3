// Asks before something is done that cannot be undone.

// Whether the person says yes. `word` is what the button says.
export function confirmed(text, { title = "Please confirm", word = "Continue" } = {}) {
  const dialog = document.getElementById("confirmation");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = text;
  const yes = dialog.querySelector("button[value=yes]");
  yes.textContent = word;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
