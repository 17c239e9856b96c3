// The list that somebody looks through: a trace's page leads to the next of it, and back to its filters.

import { remember } from "./neighbours.js";

const links = document.querySelectorAll("#traces .what a");
remember(location.pathname + location.search, Array.from(links, (link) => link.getAttribute("href")));
