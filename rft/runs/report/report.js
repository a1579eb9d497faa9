"use strict";
// Two things: values under the pointer in all curves at once, and the filter over samples, whose state is the
// address's fragment (#reward=0&q=carry), so that a selection can be sent to somebody.

(() => {
  const data = JSON.parse(document.getElementById("curve-data").textContent);
  const charts = [...document.querySelectorAll("figure[data-metric]")].map((figure) => ({
    metric: figure.dataset.metric,
    svg: figure.querySelector("svg"),
    cursor: figure.querySelector(".cursor"),
    output: figure.querySelector("output"),
    before: [...figure.querySelector("output").childNodes],
  }));
  const nearest = (steps, step) =>
    steps.reduce((best, other, i) => (Math.abs(other - step) < Math.abs(steps[best] - step) ? i : best), 0);

  function show(step) {
    const share = data.last > data.first ? (step - data.first) / (data.last - data.first) : 0.5;
    const x = data.left + share * (data.right - data.left);
    const places = data.runs.map((run) => nearest(run.steps, step));
    for (const chart of charts) {
      chart.cursor.setAttribute("x1", x);
      chart.cursor.setAttribute("x2", x);
      chart.cursor.classList.add("on");
      const parts = [`step ${step}: `];
      data.runs.forEach((run, i) => {
        const value = (run.values[chart.metric] || [])[places[i]];
        const span = document.createElement("span");
        span.className = `c${i % 6}`;
        span.textContent = (run.steps[places[i]] !== step || value == null ? "–" : String(value)) + " ";
        parts.push(span);
      });
      chart.output.replaceChildren(...parts);
    }
  }
  function clear() {
    for (const chart of charts) {
      chart.cursor.classList.remove("on");
      chart.output.replaceChildren(...chart.before);
    }
  }
  const steps = [...new Set(data.runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
  for (const chart of charts) {
    chart.svg.addEventListener("pointermove", (event) => {
      const box = chart.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * data.width;
      const share = Math.min(1, Math.max(0, (x - data.left) / (data.right - data.left)));
      show(steps[nearest(steps, data.first + share * (data.last - data.first))]);
    });
    chart.svg.addEventListener("pointerleave", clear);
  }
  const wanted = new URLSearchParams(location.hash.slice(1)).get("at");
  if (wanted !== null && steps.length) show(steps[nearest(steps, Number(wanted))]);
})();

(() => {
  const form = document.getElementById("filter");
  if (!form) return;
  const PAGE = 40; // samples on view; more on demand
  const more = document.getElementById("more");
  const matches = document.getElementById("matches");
  const groups = [...document.querySelectorAll(".group")].map((element) => ({
    element,
    text: element.querySelector(".prompt").textContent.toLowerCase(),
    samples: [...element.querySelectorAll(".sample")].map((one) => ({
      element: one,
      text: one.textContent.toLowerCase(),
      reward: one.dataset.reward === "" ? null : Number(one.dataset.reward),
    })),
  }));
  let limit = PAGE;

  function read() {
    const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    for (const name of ["run", "kind", "step", "right", "q"]) form.elements[name].value = state.get(name) || "";
    for (const name of ["run", "kind", "step", "right"]) if (form.elements[name].selectedIndex < 0) form.elements[name].value = "";
    const [low, high] = (state.get("reward") || "").split("..");
    form.elements.low.value = low;
    form.elements.high.value = high === undefined ? low : high;
  }
  function write() {
    const state = new URLSearchParams();
    for (const name of ["run", "kind", "step", "right", "q"]) if (form.elements[name].value) state.set(name, form.elements[name].value);
    const [low, high] = [form.elements.low.value, form.elements.high.value];
    if (low !== "" || high !== "") state.set("reward", low === high ? low : `${low}..${high}`);
    history.replaceState(null, "", `#${state.toString() || "samples"}`);
  }
  function apply() {
    const value = (name) => form.elements[name].value;
    const low = value("low") === "" ? -Infinity : Number(value("low"));
    const high = value("high") === "" ? Infinity : Number(value("high"));
    const bounded = low !== -Infinity || high !== Infinity;
    const query = value("q").toLowerCase();
    let found = 0;
    let all = 0;
    for (const group of groups) {
      const set = group.element.dataset;
      const here = ["run", "kind", "step"].every((name) => !value(name) || set[name] === value(name));
      let visible = 0;
      for (const one of group.samples) {
        all += 1;
        const match =
          here &&
          (!value("right") || one.element.dataset.right === value("right")) &&
          (!bounded || (one.reward !== null && one.reward >= low && one.reward <= high)) &&
          (!query || group.text.includes(query) || one.text.includes(query));
        found += match ? 1 : 0;
        one.element.hidden = !match || found > limit;
        visible += one.element.hidden ? 0 : 1;
      }
      group.element.hidden = visible === 0;
    }
    matches.textContent = `${found} of ${all} samples match`;
    more.hidden = found <= limit;
    more.textContent = `Show more (${Math.max(0, found - limit)} further)`;
  }
  form.addEventListener("input", () => {
    limit = PAGE;
    write();
    apply();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { limit = PAGE; write(); apply(); }));
  more.addEventListener("click", () => { limit += PAGE; apply(); });
  addEventListener("hashchange", () => { limit = PAGE; read(); apply(); });
  read();
  apply();
  if (location.hash.includes("=") && !location.hash.includes("at=")) document.getElementById("samples").scrollIntoView();
})();
