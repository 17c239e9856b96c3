// Which key does what on the bench. People change them, and this browser remembers it.

const STORED = "thumbwheel.keys";
const POOL = "hjklopiuvxrwq";

export const NAMES = {
  up: "Thumb up", down: "Thumb down", tie: "Tie", skip: "Skip", undo: "Undo", edit: "Edit the answer",
  note: "Write a note", gold: "Make gold", submit: "Save and continue", markdown: "Show Markdown, or the text as it is", help: "Show the keys",
};
const FIRST = {
  up: "y", down: "n", tie: "t", skip: "s", undo: "z", edit: "e", note: "m", gold: "g", submit: "Enter", markdown: "v", help: "?",
};

export class Keys {
  // `choices`: [{action, label}] of this queue, which get keys that are free.
  constructor(actions, choices) {
    this.names = new Map(actions.map((action) => [action, NAMES[action]]));
    this.first = new Map(actions.map((action) => [action, FIRST[action]]));
    for (const { action, label, key } of choices) {
      this.names.set(action, label);
      if (key) this.first.set(action, key);
    }
    const used = new Set(this.first.values());
    const free = [...POOL].filter((key) => !used.has(key));
    for (const { action, key } of choices) {
      if (!key) this.first.set(action, free.shift() || "");
    }
    this.load();
  }

  load() {
    let stored = {};
    try {
      stored = JSON.parse(localStorage.getItem(STORED)) || {};
    } catch { /* as at first */ }
    this.isOn = stored.isOn !== false;
    this.changed = stored.keys || {};
  }

  save() {
    localStorage.setItem(STORED, JSON.stringify({ isOn: this.isOn, keys: this.changed }));
  }

  keyOf(action) {
    return this.changed[action] ?? this.first.get(action) ?? "";
  }

  // What a pressed key means here; null for nothing.
  actionOf(key) {
    const pressed = key.length === 1 ? key.toLowerCase() : key;
    for (const action of this.names.keys()) {
      if (this.keyOf(action) === pressed) return action;
    }
    return null;
  }

  // Gives a key to an action, and takes it from the one that had it.
  set(action, key) {
    const pressed = key.length === 1 ? key.toLowerCase() : key;
    const before = this.actionOf(pressed);
    if (before && before !== action) this.changed[before] = "";
    this.changed[action] = pressed;
    this.save();
  }

  reset() {
    this.changed = {};
    this.isOn = true;
    this.save();
  }
}

export function shown(key) {
  return { Enter: "⏎", " ": "Space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" }[key] || key;
}
