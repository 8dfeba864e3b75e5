// Adds to the drawn curve what needs a reader: a pointer that tells values, runs to switch off, a radius to choose, and
// the inputs that fail there. All text goes in as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const plot = document.getElementById("plot");
  if (!plot || data.runs.length === 0) return;
  const PAGE = 20;
  const range = document.getElementById("radius-range");
  const number = document.getElementById("radius-number");
  const now = document.getElementById("now");
  const failing = document.getElementById("failing");
  const decimals = Math.max(0, Math.round(-Math.log10(data.step)));
  const hidden = new Set();
  const limits = new Map();
  let picked = data.start;

  // How far an input holds: below every radius where its claim does not count.
  for (const run of data.runs) {
    run.reach = Float64Array.from(run.radius, (radius, i) => {
      const counts = run.label[i] >= 0 && (!run.labelled || run.label[i] === run.true[i]);
      return counts && radius > 0 ? radius : -1;
    });
  }

  const make = (name, text, attributes = {}) => {
    const node = document.createElement(name);
    if (text !== null) node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  const visible = () => data.runs.filter((run) => !hidden.has(run.number));

  const holding = (run, radius) => run.reach.reduce((count, reach) => count + (reach >= radius), 0);

  // Rounded down, as everywhere; whole numbers first, so that 290 of 1000 is 29.0 and not 28.9.
  const percent = (count, total) => (total ? (Math.floor((1000 * count) / total) / 10).toFixed(1) : "0.0") + "\u00a0%";

  // A certified radius, rounded down, as radius_text in records.py prints it.
  const floored = (radius) => {
    if (radius < 1e-9) return "class only, no radius";
    const digits = Math.max(4, 1 - Math.floor(Math.log10(radius)));
    const nearest = radius.toFixed(digits);
    return Number(nearest) <= radius ? nearest : (Number(nearest) - 10 ** -digits).toFixed(digits);
  };

  // The radius whose share is known: itself, or the next one that was tested. Undefined where nothing is known.
  const decided = (run, radius) => {
    if (run.tested === null || radius > run.most) return radius;
    return run.tested.find((tested) => tested >= radius);
  };

  const share = (run, radius) => {
    const known = decided(run, radius);
    if (known === undefined) return "not tested";
    const text = percent(holding(run, known), run.reach.length);
    return known === radius ? text : `at least ${text}`;
  };

  const onScale = (radius) => Number(Math.min(data.end, Math.max(0, radius)).toFixed(decimals));

  // Pointer

  const line = make("div", null, { class: "cursor", "aria-hidden": "true" });
  const mark = make("div", null, { class: "cursor picked", "aria-hidden": "true" });
  const tip = make("div", null, { class: "tip", "aria-hidden": "true" });
  plot.append(mark, line, tip);

  const key = (run) => document.querySelector(`.plot .curve[data-run="${run.number}"]`).getAttribute("class");

  const swatch = (run) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [name, value] of [["viewBox", "0 0 34 10"], ["class", "key"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    path.setAttribute("d", "M0 5H34");
    path.setAttribute("class", key(run));
    svg.append(path);
    return svg;
  };

  const showTip = (radius) => {
    const place = (100 * radius) / data.end;
    line.style.left = `${place}%`;
    tip.style.left = `${place}%`;
    tip.style.transform = `translateX(-${place}%)`; // never beyond the edges of the plot
    tip.classList.toggle("high", place > 50);
    const rows = visible().map((run) => {
      const row = make("p", null);
      row.append(swatch(run), make("span", run.name), make("b", share(run, radius)));
      return row;
    });
    tip.replaceChildren(make("p", `radius ${radius}`), ...rows);
    plot.classList.add("pointed");
  };

  const hideTip = () => plot.classList.remove("pointed");

  const radiusAt = (event) => {
    const box = plot.getBoundingClientRect();
    return onScale((data.end * (event.clientX - box.left)) / box.width);
  };

  // Choices

  const spoken = (radius) => `radius ${radius}: ` + visible().map((run) => `${run.name} ${share(run, radius)}`).join(", ");

  const describe = () => {
    const lines = visible().map((run) => {
      const known = decided(run, picked), total = run.reach.length;
      const what = run.labelled ? "certified as their true class" : "certified";
      const row = make("p", null);
      row.append(swatch(run), make("span", `${run.name}: `), make("b", share(run, picked)));
      if (known === undefined) {
        row.append(` at radius ${picked}; the largest tested is ${run.tested.at(-1)}`);
        return row;
      }
      const count = holding(run, known);
      row.append(` (${count} of ${total} inputs) ${what} within at least radius ${known}; ${total - count} fail`);
      return row;
    });
    now.replaceChildren(...(lines.length ? lines : [make("p", "No run is chosen.")]));
  };

  const className = (run, label, otherwise) => (label < 0 ? otherwise : run.classes[label]);

  const failingRow = (run, i) => {
    const row = document.createElement("tr");
    const index = run.index[i];
    const head = make("th", null, { scope: "row" });
    const place = `input-${run.number}-${index}`;
    head.append(document.getElementById(place) ? make("a", index, { href: `#${place}` }) : String(index));
    const note = run.notes[index];
    const answer = className(run, run.label[i], note ? `none: ${note}` : "abstains");
    const cells = [className(run, run.true[i], "–"), answer, run.label[i] < 0 ? "–" : floored(run.radius[i])];
    row.append(head, ...cells.map((text) => make("td", text)));
    return row;
  };

  const failingTable = (run, places, radius) => {
    const table = make("table", null, { "data-run": run.number });
    const heads = make("tr", null);
    heads.append(...["input", "true class", "answer", "radius"].map((text) => make("th", text, { scope: "col" })));
    const head = document.createElement("thead"), body = document.createElement("tbody");
    head.append(heads);
    body.append(...places.map((i) => failingRow(run, i)));
    table.append(make("caption", `${run.name}: inputs that fail at radius ${radius}`), head, body);
    return table;
  };

  const moreButton = (run, left) => {
    const button = make("button", `and ${left} more`, { type: "button", "aria-label": `${run.name}: show more of ${left} inputs` });
    button.addEventListener("click", () => {
      limits.set(run.number, (limits.get(run.number) || PAGE) + 10 * PAGE);
      list();
    });
    return button;
  };

  const listRun = (run) => {
    const known = decided(run, picked);
    if (known === undefined) return make("p", `${run.name}: radius ${picked} was not tested.`);
    const places = [];
    run.reach.forEach((reach, i) => reach >= known || places.push(i));
    const limit = limits.get(run.number) || PAGE;
    const box = make("div", null);
    const frame = make("div", null, { class: "fails", tabindex: 0, role: "region", "aria-label": `${run.name}: inputs that fail` });
    frame.append(places.length ? failingTable(run, places.slice(0, limit), known) : make("p", `${run.name}: none fails.`));
    box.append(frame);
    if (places.length > limit) box.append(moreButton(run, places.length - limit));
    return box;
  };

  const list = () => failing.replaceChildren(...visible().map(listRun));

  const pick = (radius, source) => {
    picked = radius;
    limits.clear();
    if (source !== range) range.value = radius;
    if (source !== number) number.value = radius;
    range.setAttribute("aria-valuetext", `radius ${radius}`);
    plot.setAttribute("aria-valuenow", radius);
    plot.setAttribute("aria-valuetext", spoken(radius));
    mark.style.left = `${(100 * radius) / data.end}%`;
    describe();
    list();
  };

  const toggle = (run, isOn) => {
    if (isOn) hidden.delete(run.number);
    else hidden.add(run.number);
    plot.querySelector(`.curve[data-run="${run.number}"]`).classList.toggle("off", !isOn);
    pick(picked);
  };

  const addToggles = () => {
    for (const run of data.runs) {
      const label = make("label", null);
      const box = make("input", null, { type: "checkbox", checked: "", "data-run": run.number });
      box.addEventListener("change", () => toggle(run, box.checked));
      label.append(box, swatch(run), run.name);
      document.getElementById("toggles").append(label);
    }
  };

  const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };

  const press = (event) => {
    const steps = KEYS[event.key];
    if (steps === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    pick(onScale(picked + steps * data.step));
    showTip(picked);
  };

  const prepare = () => {
    const settings = { tabindex: 0, role: "slider", "aria-label": "Radius, on the curve", "aria-valuemin": 0, "aria-valuemax": data.end };
    for (const [name, value] of Object.entries(settings)) plot.setAttribute(name, value);
    range.max = number.max = data.end;
    range.step = data.step;
    document.getElementById("picker").hidden = false;
    addToggles();
  };

  prepare();
  plot.addEventListener("pointermove", (event) => showTip(radiusAt(event)));
  plot.addEventListener("pointerleave", hideTip);
  plot.addEventListener("click", (event) => pick(radiusAt(event)));
  plot.addEventListener("keydown", press);
  plot.addEventListener("focus", () => showTip(picked));
  plot.addEventListener("blur", hideTip);
  range.addEventListener("input", () => pick(Number(range.value), range));
  number.addEventListener("input", () => {
    const typed = number.valueAsNumber;
    if (typed >= 0 && typed <= data.end) pick(typed, number);
  });
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  pick(picked);
})();
