// A job while it runs: its state, progress and log, by server-sent events behind what the page shows.

import { follow } from "./events.js";
import { count, size } from "./numbers.js";

const job = document.getElementById("job");
const log = document.getElementById("log");
const progress = document.getElementById("progress");
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const MOST_LINES = 5000;

for (const time of log.querySelectorAll("time")) time.textContent = clock.format(new Date(time.dateTime));

function add(text) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const line = document.createElement("div");
  const time = document.createElement("time");
  const now = new Date();
  time.dateTime = now.toISOString();
  time.textContent = clock.format(now);
  const words = document.createElement("span");
  words.dir = "auto";
  words.textContent = text;
  line.append(time, " ", words);
  log.append(line);
  while (log.children.length > MOST_LINES) log.firstElementChild.remove();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function show(content) {
  const isSize = content.unit === "bytes";
  const shown = isSize ? size : count;
  const total = content.total ? ` of ${shown(content.total)}` : "";
  progress.hidden = false;
  progress.querySelector(".what").textContent = content.what;
  progress.querySelector(".count").textContent = `${shown(content.done)}${total}${isSize ? "" : ` ${content.unit}`}`;
  progress.querySelector(".note").textContent = content.note || "";
  const bar = progress.querySelector("progress");
  if (content.total) {
    bar.max = content.total;
    bar.value = content.done;
  } else {
    bar.removeAttribute("value");
  }
}

log.scrollTop = log.scrollHeight;
if (job.dataset.ended === "no") {
  follow(`/api/jobs/${job.dataset.job}/events`, {
    log: (content) => add(content.text),
    progress: show,
    state: (content) => {
      add(`[${content.state}]`);
      // Buttons, links and the result are the server's to say.
      if (content.state !== job.dataset.state) location.reload();
    },
    end: () => {},
  }, Number(job.dataset.after));
}
