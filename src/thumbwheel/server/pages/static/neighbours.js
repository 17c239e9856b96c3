// The traces of the list that this tab showed last, so that they can be gone through one by one.

const NAME = "thumbwheel-traces";

// `list` is the address of the list, `traces` are those on it.
export function remember(list, traces) {
  sessionStorage.setItem(NAME, JSON.stringify({ list, traces }));
}

// {list, previous, next}: the addresses around the trace at `path`; null where it was on no list.
export function around(path) {
  let known;
  try {
    known = JSON.parse(sessionStorage.getItem(NAME));
  } catch {
    return null;
  }
  const position = known?.traces.indexOf(path) ?? -1;
  if (position < 0) return null;
  return { list: known.list, previous: known.traces[position - 1], next: known.traces[position + 1] };
}
