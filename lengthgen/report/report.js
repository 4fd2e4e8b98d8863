"use strict";

// Without this script everything is shown but published curves of other protocols. It reads off
// values, shows and hides lines, of many at first all but a few, and writes out what a verdict or a
// grey line stands for.
document.documentElement.classList.add("js");

function all(selector, within = document) {
  return [...within.querySelectorAll(selector)];
}

function isPressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}

function press(buttons, pressed) {
  buttons.forEach((button) => button.setAttribute("aria-pressed", String(pressed)));
}

function showOrHide(keys, shown) {
  const isMeant = (element) => keys.has(element.dataset.series);
  press(all("button[data-series]").filter(isMeant), shown);
  all("g[data-series]").filter(isMeant).forEach((g) => g.toggleAttribute("hidden", !shown));
}

// Of many lines, those that are hidden at first; a button of each chart shows and hides them.
function prepareMany() {
  const later = new Set(all("button[data-later]").map((button) => button.dataset.series));
  const switches = all("button.every");
  showOrHide(later, false);
  switches.forEach((button) => button.addEventListener("click", () => {
    const shown = !isPressed(button);
    press(switches, shown);
    showOrHide(later, shown);
  }));
}

function highlight(chart, key) {
  chart.classList.toggle("dimmed", key !== null);
  all(".line[data-series]", chart).forEach((g) => {
    g.classList.toggle("highlighted", g.dataset.series === key);
  });
}

function prepareLegend(chart) {
  all("button[data-series]", chart).forEach((button) => {
    const key = button.dataset.series;
    button.addEventListener("click", () => showOrHide(new Set([key]), !isPressed(button)));
    for (const kind of ["pointerenter", "focus"]) {
      button.addEventListener(kind, () => highlight(chart, key));
    }
    for (const kind of ["pointerleave", "blur"]) {
      button.addEventListener(kind, () => highlight(chart, null));
    }
  });
}

function prepareReading(chart) {
  const stops = JSON.parse(chart.dataset.stops);
  const drawing = chart.querySelector(".drawing");
  const cross = chart.querySelector(".cross");
  const slider = chart.querySelector("input");
  const values = all("[data-values]", chart).map((cell) => [cell, JSON.parse(cell.dataset.values)]);
  function read(index) {
    const [x, name] = stops[index];
    chart.classList.add("read");
    cross.style.left = `${100 * x}%`;
    chart.querySelector("output").textContent = name;
    values.forEach(([cell, texts]) => { cell.textContent = texts[index]; });
    slider.value = index;
    slider.setAttribute("aria-valuetext", [name, ...visibleValues()].join(", "));
  }

  function visibleValues() {
    return all("li", chart)
      .filter((entry) => entry.querySelector("[aria-pressed=true] + .value:not(:empty)"))
      .map((entry) => [...entry.children].map((part) => part.textContent).join(" "));
  }

  function nearest(event) {
    const box = drawing.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width;
    const away = stops.map(([place]) => Math.abs(place - x));
    return away.indexOf(Math.min(...away));
  }

  for (const kind of ["pointermove", "pointerdown"]) {
    drawing.addEventListener(kind, (event) => read(nearest(event)));
  }
  for (const kind of ["input", "focus"]) {
    slider.addEventListener(kind, () => read(Number(slider.value)));
  }
}

// Writes the text of whatever is pointed at or focused, among some elements, into a line.
function prepareExplanations(elements, line, text) {
  elements.forEach((element) => {
    for (const kind of ["pointerenter", "focus"]) {
      element.addEventListener(kind, () => { line.textContent = text(element); });
    }
  });
}

prepareMany();
all(".chart").forEach((chart) => {
  prepareLegend(chart);
  prepareReading(chart);
  const label = (group) => group.getAttribute("aria-label");
  prepareExplanations(all(".behind", chart), chart.querySelector(".about"), label);
});
prepareExplanations(all(".verdict"), document.querySelector(".why"), (cell) => `${cell.title}.`);

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
addEventListener("beforeprint", () => all("details").forEach((one) => { one.open = true; }));
