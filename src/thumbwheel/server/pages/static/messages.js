// Short messages at the bottom of the page, which screen readers read out.

const SECONDS = 6;

// `tone`: "good", "bad" or nothing. A bad one stays until it is closed.
export function say(text, tone = "") {
  const box = document.getElementById("messages");
  const message = document.createElement("div");
  message.className = `message ${tone}`;
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.className = "plain";
  close.textContent = "Close";
  close.addEventListener("click", () => message.remove());
  message.append(words, close);
  box.append(message);
  while (box.children.length > 4) box.firstElementChild.remove();
  if (tone !== "bad") setTimeout(() => message.remove(), SECONDS * 1000);
}
