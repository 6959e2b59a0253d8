"use strict";
// The page is whole without this: it adds buttons that sort tables, and what is under the pointer in maps and the curve.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        const both = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
        return (both ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
const facts = JSON.parse(document.getElementById("facts").textContent);
const at = (place, size, count) => Math.min(Math.max(Math.floor((place / size) * count), 0), count - 1);
for (const map of document.querySelectorAll("svg.heat")) {
  const part = facts.heat.kinds.find((kind) => kind.kind === map.dataset.kind);
  const now = map.closest(".map").querySelector(".now");
  const empty = now.textContent;
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    const row = at(event.clientY - box.top, box.height, facts.heat.ranks.length);
    const column = at(event.clientX - box.left, box.width, facts.heat.steps.length);
    const value = part.permille[row][column];
    const share = value < 0 ? "no such step" : (value / 10).toFixed(1) + " %";
    now.textContent = `rank ${facts.heat.ranks[row]}, step ${facts.heat.steps[column]}: ${share}`;
  });
  map.addEventListener("pointerleave", () => { now.textContent = empty; });
}
const curve = document.querySelector(".curve");
if (curve) {
  const now = curve.parentElement.querySelector(".now");
  const known = facts.curve;
  const ms = (ns) => Number((ns / 1e6).toPrecision(3)) + " ms";
  curve.addEventListener("pointermove", (event) => {
    const box = curve.getBoundingClientRect();
    const cell = at(event.clientX - box.left, box.width, known.mean_ns.length);
    const range = known.low_ns[cell] < known.high_ns[cell] ? ` (${ms(known.low_ns[cell])} to ${ms(known.high_ns[cell])})` : "";
    const from = known.steps_per_cell > 1 ? "steps from " : "step ";
    now.textContent = `${from}${known.first_steps[cell]}: ${ms(known.mean_ns[cell])}${range}`;
  });
  curve.addEventListener("pointerleave", () => { now.textContent = ""; });
}
