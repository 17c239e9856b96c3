// What an edit changed, word by word.

const MOST = 4000; // words of a text; longer ones are compared line by line, and then as a whole

export function pieces(text, mode) {
  return mode === "lines" ? text.split(/(?<=\n)/) : text.match(/\s+|[\p{L}\p{M}\p{N}_]+|[^\s]/gu) || [];
}

// [{kind: "same" | "del" | "ins", text}]: Myers' shortest edit script, between equal ends.
export function difference(before, after) {
  for (const mode of ["words", "lines"]) {
    const first = pieces(before, mode);
    const second = pieces(after, mode);
    const script = edits(first, second);
    if (script) return joined(script);
  }
  return [{ kind: "del", text: before }, { kind: "ins", text: after }];
}

function edits(first, second) {
  let start = 0;
  while (start < first.length && start < second.length && first[start] === second[start]) start += 1;
  let end = 0;
  while (
    end < first.length - start && end < second.length - start &&
    first[first.length - 1 - end] === second[second.length - 1 - end]
  ) end += 1;
  const a = first.slice(start, first.length - end);
  const b = second.slice(start, second.length - end);
  if (a.length + b.length > MOST) return null;
  const middle = shortest(a, b);
  if (!middle) return null;
  const same = (texts) => texts.map((text) => ({ kind: "same", text }));
  return [...same(first.slice(0, start)), ...middle, ...same(first.slice(first.length - end))];
}

const FARTHEST = 1000; // edits; beyond it the texts have little in common

function shortest(a, b) {
  const most = Math.min(a.length + b.length, FARTHEST);
  const offset = most + 1;
  const reach = new Int32Array(2 * most + 3);
  const trail = [];
  for (let depth = 0; depth <= most; depth += 1) {
    trail.push(reach.slice());
    for (let line = -depth; line <= depth; line += 2) {
      const down = line === -depth || (line !== depth && reach[offset + line - 1] < reach[offset + line + 1]);
      let x = down ? reach[offset + line + 1] : reach[offset + line - 1] + 1;
      let y = x - line;
      while (x < a.length && y < b.length && a[x] === b[y]) { x += 1; y += 1; }
      reach[offset + line] = x;
      if (x >= a.length && y >= b.length) return walked(a, b, trail, offset);
    }
  }
  return null;
}

function walked(a, b, trail, offset) {
  const script = [];
  let x = a.length;
  let y = b.length;
  for (let depth = trail.length - 1; depth >= 0; depth -= 1) {
    const reach = trail[depth];
    const line = x - y;
    const down = line === -depth || (line !== depth && reach[offset + line - 1] < reach[offset + line + 1]);
    const before = down ? line + 1 : line - 1;
    const fromX = depth === 0 ? 0 : reach[offset + before];
    const fromY = depth === 0 ? 0 : fromX - before;
    while (x > fromX && y > fromY) { x -= 1; y -= 1; script.push({ kind: "same", text: a[x] }); }
    if (depth > 0) {
      if (down) { y -= 1; script.push({ kind: "ins", text: b[y] }); }
      else { x -= 1; script.push({ kind: "del", text: a[x] }); }
    }
  }
  return script.reverse();
}

function joined(script) {
  const parts = [];
  for (const part of script) {
    const last = parts.at(-1);
    if (last?.kind === part.kind) last.text += part.text;
    else parts.push({ ...part });
  }
  return parts;
}
