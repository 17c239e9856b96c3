// The three ways to a first rated answer.

import { send } from "./api.js";
import { say } from "./messages.js";

const LOOK_EVERY = 700; // milliseconds
const ways = document.querySelector(".ways");

function go(agent, trace = "") {
  const name = encodeURIComponent(agent);
  if (!trace && ways.dataset.rate) location.assign(ways.dataset.rate.replace("AGENT", name));
  else location.assign(ways.dataset.traces.replace("{agent}", name) + (trace ? `/${trace}` : ""));
}

// Runs `work` for a form that is sent, once at a time, and says what went wrong.
function on(id, work) {
  const form = document.getElementById(id);
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    if (button.disabled) return;
    button.disabled = true;
    try {
      await work(form);
    } catch (error) {
      say(error.message, "bad");
    } finally {
      button.disabled = false;
    }
  });
}

async function loadExample(content) {
  const query = new URLSearchParams({ path: "example.jsonl", source: "jsonl" });
  await send("POST", `/api/agents/example/imports?${query}`, content);
}

async function record(form) {
  const fields = Object.fromEntries(new FormData(form));
  const agent = encodeURIComponent(fields.agent);
  const address = { url: fields.url, model: fields.model };
  if (fields.secret) address.secret = fields.secret;
  const { value } = await send("POST", `/api/agents/${agent}/versions`, address);
  const deployed = await send(
    "POST", `/api/agents/${agent}/deployments?wait=60`, { version: value.name, target: "remote" },
  );
  if (deployed.status === 202) throw new Error("The deployment is still running. Open the page Jobs to follow it.");
  for (const element of document.querySelectorAll("[data-agent]")) element.textContent = fields.agent;
  for (const element of document.querySelectorAll("[data-origin]")) element.textContent = location.origin;
  form.hidden = true;
  document.getElementById("record-next").hidden = false;
  watch(fields.agent);
}

// Opens the first recorded trace as soon as there is one.
async function watch(agent) {
  try {
    const { value } = await send("GET", `/api/agents/${encodeURIComponent(agent)}/traces?limit=1`);
    const [trace] = value.traces;
    if (trace) {
      document.getElementById("record-status").textContent = "Recorded.";
      go(agent, trace.id);
      return;
    }
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      say(error.message, "bad");
      return;
    }
  }
  setTimeout(() => watch(agent), LOOK_EVERY);
}

on("record-form", record);
on("example-form", async (form) => {
  const file = await fetch(form.dataset.file);
  await loadExample(await file.blob());
  go("example");
});
