// Which pressed keys a page may take: none that is typed into a field, none of an open dialog, and
// none that the browser or a screen reader uses.

const FIELDS = "textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])";
const CHOICES = "[type=checkbox], [type=radio]";

const isModified = (event) => event.ctrlKey || event.metaKey || event.altKey;
// Space and the arrows choose in a focused checkbox or radio button.
const isChoosing = (event) => event.target.matches?.(CHOICES) && (event.key === " " || event.key.startsWith("Arrow"));

export function isForPage(event) {
  if (isModified(event) || event.repeat || event.isComposing || event.defaultPrevented) return false;
  if (isChoosing(event) || event.target.closest?.(FIELDS)) return false;
  return !document.querySelector("dialog[open]");
}
