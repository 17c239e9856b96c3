// Numbers for people, as report/formatting.py writes them.

// A number of bytes, in steps of 1,000: "1.5 GB".
export function size(bytes) {
  if (bytes < 1000) return `${Math.round(bytes)} bytes`;
  let value = bytes;
  for (const unit of ["kB", "MB", "GB", "TB"]) {
    value /= 1000;
    if (value < 999.5 || unit === "TB") return `${value.toFixed(1).replace(/\.0$/, "")} ${unit}`;
  }
}

// A number of seconds that are estimated: "2 h 3 min".
export function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}
