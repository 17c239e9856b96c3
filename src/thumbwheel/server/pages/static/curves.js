// Curves of runs over each other. The server samples them (at most so many points a curve); a run that
// trains goes on by server-sent events behind what was sampled. Lines of training batches are thin,
// those of dev rows thick. The hue is the run's, and its box in the table has the same. A zoom asks the
// server for the steps of the range, sampled anew, so it shows more than the whole did.

import { count, duration, size } from "./numbers.js";
import { send } from "./api.js";
import { follow } from "./events.js";
import { say } from "./messages.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480, HEIGHT = 190, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22;
const HUES = 8; // classes hue-0 to hue-7 of the style
const ALL_POINTS = 24000, MOST_POINTS = 400, FEWEST_POINTS = 40;
const MOST_STREAMS = 3; // a browser has six connections to a server
const REDRAW = 400;
const LOOK_EVERY = 2000; // between two questions where a run is
const LEAST_DRAG = 8; // pixels of a drag that zooms; less is a click

const section = document.getElementById("curves");
const progress = document.getElementById("progress");
const table = document.getElementById("runs");
const smoothing = document.getElementById("smoothing");
const controls = document.getElementById("curve-controls");
const firstStep = document.getElementById("first-step");
const lastStep = document.getElementById("last-step");
const allSteps = document.getElementById("all-steps");
const compare = document.getElementById("compare");
const metrics = new Map(JSON.parse(section?.dataset.metrics || "[]")); // metric -> its title
const runs = new Map(); // id -> {label, state, lines, curves: Map(metric + split -> points)}
const streams = new Map();
let timer = null;
let range = { first: null, last: null }; // steps that are shown; null: no bound

function node(name, attributes = {}, text) {
  const shape = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  if (text !== undefined) shape.textContent = text;
  return shape;
}

function boxes() {
  return table ? [...table.querySelectorAll("input[name=run]")] : [];
}

function chosen() {
  if (!table) return [{ id: section.dataset.run, state: section.dataset.state, label: "" }];
  return boxes().filter((box) => box.checked)
    .map((box) => ({ id: box.value, state: box.dataset.state, label: box.dataset.label }));
}

// Keeps the lowest and the highest of every stretch.
function thinned(points, most) {
  if (points.length <= 2 * most) return points;
  const stretch = Math.ceil((2 * points.length) / most);
  const extremes = [];
  for (let start = 0; start < points.length; start += stretch) {
    const part = points.slice(start, start + stretch);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    extremes.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return extremes;
}

function ticks(low, high, most) {
  if (low === high) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const marks = [];
  for (let mark = Math.ceil(low / step) * step; mark <= high + step / 1e6; mark += step) marks.push(mark);
  return marks;
}

function figure(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e4 || size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : String(Number(value.toPrecision(3)));
}

// The exponential mean of the points, in which each counts `weight` times what the next one does; it is
// taken over what was drawn so far, so that it does not begin at zero.
function smoothed(points, weight) {
  if (!weight) return points;
  let [sum, total] = [0, 0];
  return points.map(([x, y]) => {
    sum = weight * sum + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, sum / total];
  });
}

function panel(metric, title, shown) {
  const lines = [];
  const weight = Number(smoothing?.value || 0);
  shown.forEach((run, order) => {
    for (const split of ["train", "dev"]) {
      const points = run.curves.get(`${metric} ${split}`);
      if (!points?.length) continue;
      // dev rows are measured as a whole, and have no noise of a batch
      lines.push({ run, order, split, points: split === "train" ? smoothed(points, weight) : points });
    }
  });
  if (!lines.length) return null;
  let [minX, maxX, minY, maxY] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { points } of lines) {
    for (const [x, y] of points) {
      if (x < minX) minX = x;
      if (x > maxX) maxX = x;
      if (y < minY) minY = y;
      if (y > maxY) maxY = y;
    }
  }
  // a zoom shows its steps; the next points on either side tell how the lines go on
  if (range.first !== null) minX = range.first;
  if (range.last !== null) maxX = range.last;
  const margin = (maxY - minY || Math.abs(maxY) || 1) * 0.05;
  [minY, maxY] = [minY - margin, maxY + margin];
  const spanX = maxX - minX || 1;
  const toX = (x) => LEFT + ((x - minX) / spanX) * (WIDTH - LEFT - RIGHT);
  const toY = (y) => TOP + (1 - (y - minY) / (maxY - minY)) * (HEIGHT - TOP - BOTTOM);

  const drawing = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const words = lines.slice(0, 12).map(({ run, split, points }) =>
    `${run.label || "run"} ${split} from ${figure(points[0][1])} to ${figure(points.at(-1)[1])}`);
  drawing.setAttribute("aria-label", `${title}: ${words.join("; ")}`);
  for (const mark of ticks(minY, maxY, 4)) {
    drawing.append(node("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: toY(mark), y2: toY(mark) }));
    drawing.append(node("text", { x: LEFT - 6, y: toY(mark) + 3.5, "text-anchor": "end" }, figure(mark)));
  }
  for (const mark of ticks(minX, maxX, 6)) {
    drawing.append(node("text", { x: toX(mark), y: HEIGHT - 6, "text-anchor": "middle" }, figure(mark)));
  }
  const clip = node("clipPath", { id: `clip-${metric}` });
  clip.append(node("rect", { x: LEFT, y: 0, width: WIDTH - LEFT - RIGHT, height: HEIGHT }));
  const plot = node("g", { "clip-path": `url(#clip-${metric})` });
  drawing.append(clip, plot);
  const isCrowd = shown.length > HUES;
  for (const { order, split, points } of lines) {
    const path = points.map(([x, y], index) => `${index ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`);
    const hue = isCrowd && order >= HUES ? "crowd" : `hue-${order % HUES}`;
    plot.append(node("path", { class: `curve ${split} ${hue}`, d: path.join("") }));
    if (points.length === 1) {
      plot.append(node("circle", { class: `curve dot ${hue}`, cx: toX(points[0][0]), cy: toY(points[0][1]), r: 3 }));
    }
  }
  const box = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  const reading = document.createElement("span");
  reading.className = "reading";
  caption.append(" ", reading);
  const stepAt = (clientX) => {
    const bounds = drawing.getBoundingClientRect();
    const x = minX + (((clientX - bounds.left) / bounds.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * spanX;
    return Math.min(maxX, Math.max(minX, x));
  };
  let dragStart = null;
  drawing.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") dragStart = event.clientX; });
  drawing.addEventListener("pointerup", (event) => {
    const start = dragStart;
    dragStart = null;
    if (start === null || Math.abs(event.clientX - start) < LEAST_DRAG) return;
    const steps = [stepAt(start), stepAt(event.clientX)].map(Math.round).sort((a, b) => a - b);
    zoom(steps[0], steps[1]);
  });
  drawing.addEventListener("pointermove", (event) => {
    const x = stepAt(event.clientX);
    const near = 0.02 * spanX; // a run that has ended says nothing of later steps
    const there = lines.filter(({ points }) => points[0][0] - near <= x && x <= points.at(-1)[0] + near);
    const values = there.slice(0, 2 * HUES).map(({ run, split, points }) => {
      const nearest = points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      return `${run.label} ${split} ${figure(nearest[1])}`.trim();
    });
    reading.textContent = `step ${Math.round(x)}: ${values.join(", ")}`;
  });
  drawing.addEventListener("pointerleave", () => { reading.textContent = ""; });
  box.append(caption, drawing);
  return box;
}

function draw() {
  timer = null;
  const wanted = chosen();
  const shown = wanted.map(({ id }) => runs.get(id)).filter(Boolean);
  const panels = [...metrics].map(([metric, title]) => panel(metric, title, shown)).filter(Boolean);
  if (panels.length) section.replaceChildren(...panels);
  else section.replaceChildren();
  section.dataset.drawn = String(shown.length);
  for (const swatch of document.querySelectorAll("[data-swatch]")) {
    const order = wanted.findIndex(({ id }) => id === swatch.dataset.swatch);
    swatch.className = order < 0 ? "swatch" : `swatch ${order >= HUES ? "crowd" : `hue-${order}`}`;
  }
}

function drawSoon() {
  timer ??= setTimeout(draw, REDRAW);
}

function isShown(step) {
  return (range.first === null || step >= range.first) && (range.last === null || step <= range.last);
}

// Shows these steps; null is no bound.
async function zoom(first, last) {
  if (first !== null && last !== null && first > last) [first, last] = [last, first];
  range = { first, last };
  firstStep.value = first ?? "";
  lastStep.value = last ?? "";
  allSteps.hidden = first === null && last === null;
  for (const stop of streams.values()) stop();
  streams.clear();
  runs.clear();
  await show();
  section.dataset.steps = `${first ?? ""}-${last ?? ""}`;
}

function add(run, line) {
  if (!isShown(line.step)) return;
  for (const [name, value] of Object.entries(line)) {
    if (typeof value !== "number") continue;
    const isDev = name.startsWith("eval_");
    const metric = isDev ? name.slice(5) : name;
    if (!metrics.has(metric)) continue;
    const key = `${metric} ${isDev ? "dev" : "train"}`;
    const points = run.curves.get(key) || [];
    points.push([line.step, value]);
    run.curves.set(key, thinned(points, MOST_POINTS));
  }
}

function figures({ tokens_per_second: speed, usage }) {
  const shown = [];
  if (speed !== null) shown.push([count(speed), "tokens a second"]);
  if (usage) {
    if (usage.memory_gb !== null) shown.push([size(usage.memory_gb * 1e9), "memory"]);
    shown.push([usage.busy_cores.toFixed(1), `of ${usage.cores} processor cores busy`]);
    if (usage.gpu) {
      shown.push([`${Math.round(usage.gpu.busy * 100)} %`, "GPU busy"]);
      shown.push([size(usage.gpu.memory_gb * 1e9), `of ${size(usage.gpu.total_gb * 1e9)} GPU memory`]);
    }
  }
  return shown.map(([value, words]) => {
    const box = document.createElement("span");
    const bold = document.createElement("b");
    bold.textContent = value;
    box.append(bold, ` ${words}`);
    return box;
  });
}

// Where the training of this page is: its step, what it does, the time that is left, what it uses.
async function look() {
  try {
    const { value: now } = await send("GET", progress.dataset.api);
    if (now.state !== "running") return; // the stream says that it has ended
    progress.querySelector(".count").textContent = now.steps ? `${now.step} of ${now.steps}` : String(now.step);
    const bar = progress.querySelector("progress");
    if (now.steps) {
      bar.max = now.steps;
      bar.value = now.step;
    }
    const left = now.seconds_left === null ? "" : `about ${duration(now.seconds_left)} left`;
    progress.querySelector(".note").textContent = now.activity || left;
    const usage = document.getElementById("usage");
    const shown = figures(now);
    usage.hidden = shown.length === 0;
    usage.replaceChildren(...shown);
  } catch (error) {
    if (!error.isTransient) return;
  }
  setTimeout(look, LOOK_EVERY);
}

async function load(wanted) {
  const missing = wanted.filter(({ id }) => !runs.has(id));
  if (!missing.length) return;
  const points = Math.round(Math.min(MOST_POINTS, Math.max(FEWEST_POINTS, ALL_POINTS / (wanted.length * metrics.size))));
  for (let start = 0; start < missing.length; start += 50) {
    const query = new URLSearchParams({ points });
    if (range.first !== null) query.append("first", range.first);
    if (range.last !== null) query.append("last", range.last);
    for (const { id } of missing.slice(start, start + 50)) query.append("run", id);
    for (const metric of metrics.keys()) query.append("metric", metric);
    const answer = await send("GET", `${section.dataset.api}/curves?${query}`);
    for (const { run_id: id, lines, curves } of answer.value) {
      const { label, state } = missing.find((run) => run.id === id);
      const run = { label, state, lines, curves: new Map() };
      for (const { metric, split, steps, values } of curves) {
        run.curves.set(`${metric} ${split}`, steps.map((step, index) => [step, values[index]]));
      }
      runs.set(id, run);
    }
  }
}

function listen(wanted) {
  for (const [id, stop] of streams) {
    if (!wanted.some((run) => run.id === id)) {
      stop();
      streams.delete(id);
    }
  }
  for (const { id, state } of wanted) {
    if (state !== "running" || streams.has(id) || streams.size >= MOST_STREAMS) continue;
    const run = runs.get(id);
    const stop = follow(`${section.dataset.api}/runs/${encodeURIComponent(id)}/metrics`, {
      metrics: (line, number) => {
        add(run, line);
        run.lines = Number(number);
        drawSoon();
      },
      end: () => { if (!table) location.reload(); },
    }, run.lines);
    streams.set(id, stop);
  }
}

// The comparison of the chosen runs; it takes two to eight.
function showComparison(wanted) {
  if (!compare) return;
  const isPossible = wanted.length >= 2 && wanted.length <= HUES;
  const ids = wanted.map(({ id }) => encodeURIComponent(id)).join(",");
  if (isPossible) compare.href = `${compare.dataset.compare}?runs=${ids}`;
  else compare.removeAttribute("href");
  compare.setAttribute("aria-disabled", String(!isPossible));
  compare.title = isPossible ? "" : `Choose two to ${HUES} runs`;
}

async function show() {
  const wanted = chosen();
  showComparison(wanted);
  try {
    await load(wanted);
  } catch (error) {
    say(error.message, "bad");
    return;
  }
  draw();
  listen(wanted);
}

if (section) {
  const all = document.getElementById("all-runs");
  table?.addEventListener("change", (event) => {
    if (event.target === all) for (const box of boxes()) box.checked = all.checked;
    show();
  });
  smoothing?.addEventListener("input", draw);
  controls?.addEventListener("submit", (event) => {
    event.preventDefault();
    const step = (field) => (field.value === "" ? null : Number(field.value));
    zoom(step(firstStep), step(lastStep));
  });
  allSteps?.addEventListener("click", () => zoom(null, null));
  show();
  if (progress) look();
}
