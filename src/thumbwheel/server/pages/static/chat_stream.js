// A streamed answer of a chat model, asked through the playground's route.

import { csrf, Problem } from "./api.js";

const BROKEN = "The connection ended before the answer was complete.";

// Events of a stream, one JSON value each, until [DONE].
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function refusal(status, text) {
  let why = "";
  try {
    const content = JSON.parse(text);
    why = content.error?.message || content.detail || content.error;
  } catch { /* some servers answer with a page */ }
  if (status === 401) why = "You are logged out. Log in in another tab, and try again here.";
  return new Problem(status, { detail: why || `It answered with status ${status} and no reason.` });
}

// Asks `url`; `heard` gets the text so far. Gives {text, trace, version, usage, finish}.
export async function ask(url, body, { headers, signal, heard }) {
  let response;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": csrf(), ...headers },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal, cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached. Try again." });
  }
  if (!response.ok) throw refusal(response.status, await response.text());
  const answer = {
    text: "", usage: null, finish: null,
    trace: response.headers.get("x-thumbwheel-trace"),
    version: response.headers.get("x-thumbwheel-version"),
  };
  try {
    for await (const event of eventsOf(response)) {
      if (event.error) throw new Problem(502, { detail: event.error.message || String(event.error) });
      if (event.usage) answer.usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      answer.finish = choice.finish_reason || answer.finish;
      if (choice.delta?.content) {
        answer.text += choice.delta.content;
        heard(answer.text);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem(502, { detail: BROKEN });
  }
  if (!answer.finish) throw new Problem(502, { detail: BROKEN });
  return answer;
}
