// The name of a key is a part of the address that it is sent to.

const form = document.getElementById("store-secret");
const name = form.elements.name;

name.addEventListener("input", () => {
  form.setAttribute("data-api", `PUT /api/secrets/${encodeURIComponent(name.value)}`);
});
