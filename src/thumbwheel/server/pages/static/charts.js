// Fills the places of charts that the server had not drawn when it made the page.

export async function drawLater() {
  const places = [...document.querySelectorAll("[data-charts][data-later]")];
  if (!places.length) return;
  const address = new URL(location.href);
  address.searchParams.set("draw", "1");
  const answer = await fetch(address, { headers: { accept: "text/html" } });
  if (!answer.ok) return; // the places keep their links
  const drawn = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const place of places) {
    const filled = drawn.querySelector(`[data-charts="${CSS.escape(place.dataset.charts)}"]`);
    if (filled) place.replaceWith(filled);
  }
}
