// A button below every table that downloads its rows as CSV, as the page shows them: times in full,
// without the columns of buttons.

const FORMULA = /^[=+\-@\t\r]/; // a cell that a spreadsheet would compute instead of showing
const NUMBER = /^[+-]?[\d,.]+$/;

function textOf(cell) {
  const times = cell.querySelectorAll("time[datetime]");
  if (times.length === 1 && cell.textContent.trim() === times[0].textContent.trim()) return times[0].dateTime;
  const copy = cell.cloneNode(true);
  for (const part of copy.querySelectorAll("button, form, .hidden, [hidden]")) part.remove();
  return copy.textContent.trim().replace(/\s+/g, " ");
}

function quoted(text) {
  const safe = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf(table) {
  const headings = [...table.tHead.rows[0].cells];
  const columns = headings.map((_, index) => index).filter((index) => {
    const heading = headings[index];
    return !heading.querySelector(".hidden") && heading.textContent.trim();
  });
  const lines = [columns.map((index) => quoted(textOf(headings[index])))];
  for (const body of table.tBodies) {
    for (const row of body.rows) lines.push(columns.map((index) => quoted(row.cells[index] ? textOf(row.cells[index]) : "")));
  }
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function exportTables(root = document) {
  for (const region of root.querySelectorAll("main .scroll[aria-label]:not([data-exported])")) {
    const table = region.querySelector("table");
    if (!table?.tHead || !table.tBodies[0]?.rows.length) continue;
    const label = region.getAttribute("aria-label");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain small as-csv";
    button.textContent = "CSV";
    button.setAttribute("aria-label", `Download ${label} as CSV`);
    button.addEventListener("click", () => {
      const name = `${label.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-")}.csv`;
      save(name, csvOf(table));
    });
    region.after(button);
  }
}
