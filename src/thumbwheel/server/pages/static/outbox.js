// Ratings on their way to the server. They are kept in this browser until the server has them, in the
// order in which they were given: a lost network, a restart of the server, a reload or a closed tab
// loses none, and the key of each keeps it from happening twice.

import { send } from "./api.js";

const PREFIX = "thumbwheel.outbox.";
const SHORTEST = 300;
const LONGEST = 8000;

export class Outbox extends EventTarget {
  // `scope`: whose ratings these are, and of which queue. `refused(entry, problem)` is told what the
  // server will never take.
  constructor(scope, { refused, taken }) {
    super();
    this.prefix = `${PREFIX}${scope}.`;
    this.refused = refused;
    this.taken = taken;
    this.memory = new Map(); // what the browser had no room for
    this.sending = null;
    this.current = null;
    this.wait = SHORTEST;
    this.timer = null;
    this.state = "idle"; // idle, sending, offline, loggedout, forbidden
    this.number = 0;
    window.addEventListener("online", () => this.retry());
    window.addEventListener("focus", () => this.retry());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.retry();
    });
  }

  entries() {
    const stored = [];
    for (let index = 0; index < localStorage.length; index += 1) {
      const name = localStorage.key(index);
      if (!name.startsWith(this.prefix)) continue;
      try {
        stored.push({ name, ...JSON.parse(localStorage.getItem(name)) });
      } catch {
        localStorage.removeItem(name);
      }
    }
    for (const [name, entry] of this.memory) stored.push({ name, ...entry });
    return stored.sort((first, second) => (first.order < second.order ? -1 : 1));
  }

  get size() {
    return this.entries().length;
  }

  get items() {
    return new Set(this.entries().map((entry) => entry.item));
  }

  add(entry) {
    this.number += 1;
    const time = String(Date.now()).padStart(15, "0");
    const order = `${time}.${String(this.number).padStart(6, "0")}.${entry.body.key}`;
    const name = this.prefix + order;
    const kept = { ...entry, order };
    try {
      localStorage.setItem(name, JSON.stringify(kept));
    } catch {
      this.memory.set(name, kept);
    }
    this.changed();
    this.flush();
    return name;
  }

  // Takes an entry back that has not left yet; whether that went.
  drop(name) {
    if (name === this.current) return false;
    const was = this.memory.has(name) || localStorage.getItem(name) !== null;
    this.remove(name);
    return was;
  }

  remove(name) {
    this.memory.delete(name);
    localStorage.removeItem(name);
    this.changed();
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  retry() {
    if (this.state === "idle" || this.state === "sending") return;
    this.wait = SHORTEST;
    this.set("idle");
    this.flush();
  }

  set(state) {
    this.state = state;
    this.changed();
  }

  // Sends everything, one after the other. Of several tabs one sends at a time.
  flush() {
    if (this.sending) return this.sending;
    if (this.state === "loggedout" || this.state === "forbidden") return Promise.resolve();
    clearTimeout(this.timer);
    const run = () => this.sendAll();
    const work = navigator.locks ? navigator.locks.request(this.prefix, run) : run();
    this.sending = Promise.resolve(work).finally(() => {
      this.sending = null;
      this.current = null;
    }).then(() => this.flushLate());
    return this.sending;
  }

  // Sends what was added while the lock of the last run was being released.
  flushLate() {
    return this.state === "idle" && this.size ? this.flush() : undefined;
  }

  async sendAll() {
    for (;;) {
      const [entry] = this.entries();
      if (!entry) {
        this.set("idle");
        return;
      }
      this.current = entry.name;
      if (this.state !== "offline") this.set("sending");
      try {
        const { value } = await send("POST", entry.path, entry.body, { key: null });
        this.wait = SHORTEST;
        this.state = "sending";
        this.remove(entry.name);
        this.taken?.(entry, value);
      } catch (problem) {
        if (!this.settled(entry, problem)) return;
      }
    }
  }

  // Whether the next entry can be sent after this problem.
  settled(entry, problem) {
    if (problem.status === 401) {
      this.set("loggedout");
      return false;
    }
    if (problem.status === 403) {
      this.why = problem.message;
      this.set("forbidden");
      return false;
    }
    if (problem.isTransient || problem.status === 500 || problem.status === undefined) {
      this.set("offline");
      this.timer = setTimeout(() => this.flush(), this.wait);
      this.wait = Math.min(LONGEST, this.wait * 2);
      return false;
    }
    this.remove(entry.name);
    this.refused(entry, problem);
    return true;
  }
}
