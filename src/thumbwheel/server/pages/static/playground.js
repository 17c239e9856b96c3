// The playground: a chat with one version, or two versions on one prompt and a vote between them.

import { newKey, send } from "./api.js";
import { ask } from "./chat_stream.js";
import { say } from "./messages.js";
import { listenToVotes, storeVote } from "./vote.js";

const root = document.getElementById("playground");
const settings = root ? JSON.parse(root.dataset.settings) : null;
const talk = document.getElementById("talk");
const setup = document.getElementById("setup");
const prompt = document.getElementById("prompt");
const sendButton = document.getElementById("send");
const stopButton = document.getElementById("stop");

let history = []; // messages of the conversation so far, without the system prompt
let session = newKey();
let running = null; // ends what is being answered
let openVote = null; // the buttons of the newest vote, which keys press
const votes = new WeakMap(); // the buttons of a vote -> what a choice does

const isComparing = () => setup.elements.mode.value === "compare";
const chosen = (id) => {
  const select = document.getElementById(id);
  return { name: select.value, label: select.selectedOptions[0].textContent };
};

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function fromTemplate(id) {
  const template = document.getElementById(id);
  return template ? template.content.firstElementChild.cloneNode(true) : null;
}

function showMode() {
  for (const part of setup.querySelectorAll("[data-for=compare]")) part.hidden = !isComparing();
}

function messages() {
  const system = document.getElementById("system").value.trim();
  return system ? [{ role: "system", content: system }, ...history] : [...history];
}

function body(model) {
  const request = { model: `${settings.agent}:${model}`, messages: messages() };
  const temperature = document.getElementById("temperature").value;
  const most = document.getElementById("most").value;
  if (temperature !== "") request.temperature = Number(temperature);
  if (most !== "") request.max_tokens = Number(most);
  return request;
}

function takesKeys(isFree) {
  sendButton.disabled = !isFree;
  stopButton.hidden = isFree;
}

// One answer on the page: {box, text, done, failed, reveal}.
function replyBox(title) {
  const heading = element("h2", {}, title);
  const text = element("div", { class: "text" });
  const footer = element("footer");
  const box = element("article", { class: "reply", "aria-busy": "true" }, heading, text, footer);
  return { heading, text, footer, box };
}

function facts(reply, answer, seconds) {
  const parts = [`${answer.version}`, `${seconds.toFixed(1)} s`];
  if (answer.usage?.completion_tokens) parts.push(`${answer.usage.completion_tokens} tokens`);
  if (answer.finish === "length") parts.push("cut off at the token limit");
  reply.footer.append(...parts.map((part) => element("span", {}, part)));
  if (answer.trace) {
    const address = `/agents/${encodeURIComponent(settings.agent)}/traces/${encodeURIComponent(answer.trace)}`;
    reply.footer.append(element("a", { href: address }, "Trace"));
  }
}

// The answer of `model` in `reply`, with the seconds that it took; null where it failed.
async function answered(reply, model, mode, signal) {
  const began = performance.now();
  try {
    const url = `${settings.api}/playground/${encodeURIComponent(model)}`;
    const answer = await ask(url, body(model), {
      headers: {
        "x-thumbwheel-session": `playground-${session}`,
        "x-thumbwheel-metadata": JSON.stringify({ playground: mode }),
      },
      signal,
      heard: (text) => { reply.text.textContent = text; },
    });
    if (!answer.text) reply.text.replaceChildren(element("span", { class: "soft" }, "An empty answer."));
    return { answer, seconds: (performance.now() - began) / 1000 };
  } catch (error) {
    const words = error.name === "AbortError" ? "Stopped." : error.message;
    reply.box.append(element("p", { class: "objection", role: "alert" }, words));
    return null;
  } finally {
    reply.box.removeAttribute("aria-busy");
  }
}

function addThumbs(reply, trace) {
  const thumbs = fromTemplate("thumbs");
  thumbs.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const isGood = button.dataset.thumb === "true";
    try {
      await send("POST", settings.feedback, { id: newKey(), rater: settings.rater, trace, thumb: isGood });
      for (const other of thumbs.querySelectorAll("button")) {
        other.setAttribute("aria-pressed", String(other === button));
        other.disabled = true;
      }
      say(isGood ? "Saved: a good answer." : "Saved: a bad answer.", "good");
    } catch (error) {
      say(error.message, "bad");
    }
  });
  reply.footer.append(thumbs);
}

// A form that makes a gold case of the question; only a plain question can be one.
function goldForm(question, reference) {
  const form = fromTemplate("gold");
  const list = messages();
  if (!form || list.length !== 1) return null;
  form.querySelector("[name=input]").value = question;
  form.querySelector("[name=reference]").value = reference;
  return form;
}

async function chat(question, signal) {
  const model = chosen("first");
  const reply = replyBox(model.label);
  talk.append(reply.box);
  const result = await answered(reply, model.name, "chat", signal);
  if (!result) { history.pop(); prompt.value = question; return; }
  facts(reply, result.answer, result.seconds);
  if (result.answer.trace) addThumbs(reply, result.answer.trace);
  const gold = goldForm(question, result.answer.text);
  if (gold) reply.box.append(gold);
  history.push({ role: "assistant", content: result.answer.text });
}

async function compare(question, signal) {
  const isBlind = document.getElementById("blind").checked;
  const models = [chosen("first"), chosen("second")];
  // whoever does not know which is which must not learn it from the side
  if (isBlind && crypto.getRandomValues(new Uint8Array(1))[0] % 2) models.reverse();
  const replies = models.map((model, side) => replyBox(isBlind ? ["Left", "Right"][side] : model.label));
  const pair = element("div", { class: "pair" }, ...replies.map((reply) => reply.box));
  talk.append(pair);
  const mode = isBlind ? "blind" : "open";
  const results = await Promise.all(models.map((model, side) => answered(replies[side], model.name, mode, signal)));
  const reveal = () => results.forEach((result, side) => {
    replies[side].heading.textContent = models[side].label;
    if (result) facts(replies[side], result.answer, result.seconds);
  });
  history.pop();
  if (results.includes(null)) { reveal(); prompt.value = question; return; }
  if (!isBlind) reveal();
  if (results.some((result) => !result.answer.trace)) {
    pair.append(element("p", { class: "outcome soft" }, "This agent's calls are not recorded, so there is nothing to vote about."));
    return;
  }
  pair.append(voteBox(question, replies, results, isBlind ? reveal : () => {}));
}

function voteBox(question, replies, results, reveal) {
  const box = fromTemplate("vote");
  const about = {
    url: settings.feedback,
    rater: settings.rater,
    traces: results.map((result) => result.answer.trace),
    names: results.map((result, side) => `${result.answer.version} (${["left", "right"][side]})`),
  };
  votes.set(box, async (choice) => {
    const vote = await storeVote(box, choice, about);
    if (!vote) return;
    if (openVote === box) openVote = null;
    reveal();
    if (vote.side !== null) {
      replies[vote.side].box.classList.add("better");
      history.push({ role: "user", content: question });
      const gold = goldForm(question, results[vote.side].answer.text);
      history.pop();
      if (gold) vote.outcome.after(gold);
    }
    prompt.focus();
  });
  openVote = box;
  return box;
}

async function submit() {
  const question = prompt.value.trim();
  if (!question || running) return;
  running = new AbortController();
  openVote = null;
  takesKeys(false);
  prompt.value = "";
  talk.append(element("p", { class: "asked", dir: "auto" }, question));
  history.push({ role: "user", content: question });
  try {
    await (isComparing() ? compare : chat)(question, running.signal);
  } finally {
    running = null;
    takesKeys(true);
    talk.lastElementChild?.scrollIntoView({ block: "end" });
    if (openVote) talk.querySelector(".pair:last-child .vote button").focus();
    else prompt.focus();
  }
}

function anew() {
  running?.abort();
  history = [];
  session = newKey();
  openVote = null;
  talk.replaceChildren();
  prompt.focus();
}

// The messages of a recorded call: its last question is typed in, what came before is the history.
function askAgain(recorded) {
  const list = [...recorded.messages];
  if (list[0]?.role === "system") document.getElementById("system").value = list.shift().content;
  if (list.at(-1)?.role === "user") prompt.value = list.pop().content;
  history = list.filter((message) => message.role !== "system");
  for (const message of history) {
    talk.append(element("p", { class: message.role === "user" ? "asked" : "reply text" }, message.content));
  }
}

if (root) {
  document.getElementById("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  listenToVotes(talk, () => openVote, (box, choice) => votes.get(box)(choice));
  stopButton.addEventListener("click", () => running?.abort());
  document.getElementById("anew").addEventListener("click", anew);
  setup.addEventListener("change", showMode);
  showMode();
  if (settings.recorded) askAgain(settings.recorded);
}
