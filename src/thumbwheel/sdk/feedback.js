/* Feedback from a web page about one answer, by the token of its trace.
   What cannot be sent waits in localStorage. */
"use strict";
const thumbwheel = (() => {
  const KEY = "thumbwheel-feedback";
  const queue = () => {
    try { return JSON.parse(localStorage.getItem(KEY)) || []; } catch { return []; }
  };
  const store = (entries) => {
    try { localStorage.setItem(KEY, JSON.stringify(entries)); return true; } catch { return false; }
  };
  const remove = (id) => store(queue().filter((entry) => entry.row.id !== id));

  async function post({ url, token, row }) {
    const response = await fetch(url + "/api/feedback", {
      method: "POST",
      keepalive: true,
      headers: { "content-type": "application/json", authorization: "Bearer " + token },
      body: JSON.stringify(row),
    });
    if (response.ok) return;
    const error = new Error(await response.text());
    error.refused = response.status < 500 && ![408, 429].includes(response.status);
    throw error;
  }

  /* Send what waits; the server knows by its id what it has already. */
  let running;
  const flush = () => (running ??= sendAll().finally(() => { running = null; }));
  async function sendAll() {
    for (const entry of queue()) {
      try { await post(entry); } catch (error) {
        if (!error.refused) return;
        console.warn(error.message);
      }
      remove(entry.row.id);
    }
  }

  /* target: {url, agent, trace, token, rater}; signal: {thumb: true}, {correction: "..."}, ...
     Resolves to "sent" or "waits". */
  async function send({ url, token, ...target }, signal) {
    const id = crypto.getRandomValues(new Uint32Array(4)).join("-");
    const row = { id, occurred_at: new Date().toISOString(), ...target, ...signal };
    const entry = { url: url.replace(/\/+$/, ""), token, row };
    const stored = store([...queue(), entry]);
    try { await post(entry); } catch (error) {
      if (stored && !error.refused) return "waits";
      remove(id);
      throw error;
    }
    remove(id);
    return "sent";
  }

  /* Two thumbs and a pencil; a correction begins with the text `answer`. */
  function attach(element, target, answer = "") {
    const add = (title, textContent, signal) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", title, ariaLabel: title, textContent });
      button.onclick = async () => {
        const value = signal();
        if (value) element.dataset.state = await send(target, value).catch(String);
      };
      element.append(button);
    };
    add("Good answer", "\u{1F44D}", () => ({ thumb: true }));
    add("Bad answer", "\u{1F44E}", () => ({ thumb: false }));
    add("Correct the answer", "\u270E", () => {
      const correction = prompt("A better answer:", answer);
      return correction?.trim() && { correction };
    });
  }

  addEventListener("online", flush);
  setInterval(flush, 30000);
  flush();
  return { send, flush, attach };
})();
