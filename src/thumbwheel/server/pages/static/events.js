// Server-sent events that go on where they stopped: after a lost connection and after a restart of the
// server, by the id of the last event.

const SHORTEST = 500;
const LONGEST = 15000;

// Calls `handlers[kind](content, id)` for each event; `handlers.end()` once nothing comes any more.
// Returns a function that stops listening.
export function follow(path, handlers, after = null) {
  let source = null;
  let wait = SHORTEST;
  let timer = null;
  let last = after;

  function open() {
    const url = new URL(path, location.origin);
    if (last !== null) url.searchParams.set("after", last);
    source = new EventSource(url);
    source.addEventListener("open", () => { wait = SHORTEST; });
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        if (kind === "end") {
          stop();
          handle();
          return;
        }
        last = event.lastEventId || last;
        handle(JSON.parse(event.data), event.lastEventId);
      });
    }
    if (!handlers.end) source.addEventListener("end", stop);
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return; // the browser itself tries again
      timer = setTimeout(open, wait);
      wait = Math.min(2 * wait, LONGEST);
    });
  }

  function stop() {
    clearTimeout(timer);
    source.close();
  }

  open();
  window.addEventListener("pagehide", stop, { once: true });
  return stop;
}
