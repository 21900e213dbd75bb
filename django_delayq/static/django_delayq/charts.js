/* Small charts as SVG: lines over time, bars, and sparklines. What they show can be read by pointer, by arrow keys and as
   a table. Nothing here asks for anything; dashboard.js gives the numbers. Text gets into the page as text only. */
"use strict";
window.delayqCharts = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const LEFT = 60;
  const RIGHT = 10;
  const TOP = 8;
  const BOTTOM = 20;
  const MINUTE = 60000;

  function svg(name, attributes, text) {
    const made = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function html(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /* 1, 2 or 5 times a power of ten, at or above a number. */
  function round(number) {
    const power = 10 ** Math.floor(Math.log10(number));
    return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= number * 0.9999);
  }

  /* What all charts share: size, read-out, keys, table. A child has count(), read(place), x(place), paint(), rows(). */
  class Chart {
    constructor(box, words) {
      this.box = box;
      this.words = words;
      this.plot = box.querySelector("[data-plot]");
      this.readout = box.querySelector("[data-readout]");
      this.spoken = box.querySelector("[data-spoken]");
      this.table = box.querySelector("[data-table]");
      this.at = null; // the place that is read; null = the latest
      this.root = svg("svg", { tabindex: "0", role: "group", focusable: "true" });
      const title = box.querySelector("h2");
      this.root.setAttribute("aria-label", `${title.firstChild.textContent.trim()}: ${words.walk}`);
      this.plot.replaceChildren(this.root);
      this.root.addEventListener("pointermove", (event) => this.point(event));
      this.root.addEventListener("pointerleave", () => this.read_at(null));
      this.root.addEventListener("blur", () => this.read_at(null));
      this.root.addEventListener("keydown", (event) => this.key(event));
      this.table.addEventListener("toggle", () => this.tell());
      new ResizeObserver(() => this.draw()).observe(this.plot);
    }
    point(event) {
      const x = event.clientX - this.root.getBoundingClientRect().left;
      let best = null;
      for (let place = 0; place < this.count(); place++) {
        if (best === null || Math.abs(this.x(place) - x) < Math.abs(this.x(best) - x)) best = place;
      }
      this.read_at(best);
    }
    key(event) {
      const last = this.count() - 1;
      const from = this.at === null ? last + (event.key === "ArrowLeft" ? 1 : 0) : this.at;
      const place = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
      if (event.key === "Escape") this.read_at(null);
      if (place === undefined || last < 0) return;
      event.preventDefault();
      this.read_at(Math.min(Math.max(place, 0), last));
      this.spoken.textContent = this.read(this.at).map(([, name, value]) => `${name} ${value}`).join(", ");
    }
    read_at(place) {
      this.at = place;
      this.draw();
    }
    draw() {
      this.width = Math.max(200, this.plot.clientWidth);
      this.height = Math.max(80, this.plot.clientHeight);
      this.root.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.root.replaceChildren();
      this.paint();
      const parts = this.read(this.at).map(([series, name, value]) => {
        const part = html("span", "dq-part");
        if (series) part.append(html("i", `dq-swatch dq-s${series}`));
        part.append(`${name} `, html("b", "", value));
        return part;
      });
      this.readout.replaceChildren(...parts);
      this.tell();
    }
    tell() {
      if (!this.table.open) return;
      const rows = this.rows();
      const head = html("tr");
      head.append(...rows[0].map((text, place) => {
        const cell = html("th", place ? "dq-number" : "", text);
        cell.scope = "col";
        return cell;
      }));
      this.table.querySelector("thead").replaceChildren(head);
      this.table.querySelector("tbody").replaceChildren(...rows.slice(1).map((row) => {
        const made = html("tr");
        made.append(...row.map((text, place) => {
          const cell = html(place ? "td" : "th", place ? "dq-number" : "", text);
          if (!place) cell.scope = "row";
          return cell;
        }));
        return made;
      }));
    }
    grid(ticks, y, text) {
      for (const tick of ticks) {
        const at = Math.round(y(tick)) + 0.5;
        this.root.append(svg("line", { class: "dq-grid", x1: LEFT, x2: this.width - RIGHT, y1: at, y2: at }));
        this.root.append(svg("text", { class: "dq-tick", x: LEFT - 6, y: at + 3.5, "text-anchor": "end" }, text(tick)));
      }
    }
    below(x, text, anchor) {
      this.root.append(svg("text", { class: "dq-tick", x, y: this.height - 5, "text-anchor": anchor }, text));
    }
    cursor(x) {
      this.root.append(svg("line", { class: "dq-cursor", x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM }));
    }
  }

  /* Lines over the last `span` ms, or the minutes that there are so far. Points are {ms, values: [number or null, …], apart}.
     Before one that is `apart` nobody looked for a while: no line leads to it. */
  class Lines extends Chart {
    constructor(box, words, { names, text, tick, log, span, clock, length }) {
      super(box, words);
      Object.assign(this, { names, text, tick, log, span, clock, length });
      this.points = [];
    }
    add(point) {
      this.points.push(point);
      while (this.points.length && this.points[0].ms < point.ms - this.span) this.points.shift();
      this.at = null;
      this.draw();
    }
    count() { return this.points.length; }
    shown() {
      const so_far = this.points.length ? this.last() - this.points[0].ms : 0;
      return Math.min(this.span, Math.max(1, Math.ceil(so_far / MINUTE)) * MINUTE);
    }
    last() { return this.points.length ? this.points[this.points.length - 1].ms : 0; }
    x(place) {
      const ago = this.last() - this.points[place].ms;
      return this.width - RIGHT - (ago / this.shown()) * (this.width - LEFT - RIGHT);
    }
    read(place) {
      const point = this.points[place === null ? this.points.length - 1 : place];
      const parts = this.names.map((name, series) => [series + 1, name, point ? this.text(point.values[series]) : "–"]);
      return place === null || !point ? parts : [...parts, [0, "", this.clock(point.ms)]];
    }
    rows() {
      const points = this.points.slice(-60).reverse();
      return [[this.words.time, ...this.names], ...points.map((one) => [this.clock(one.ms), ...one.values.map(this.text)])];
    }
    paint() {
      const values = this.points.flatMap((one) => one.values).filter((value) => value !== null);
      const most = Math.max(this.log ? 10 : 1, ...values);
      const floor = this.height - BOTTOM;
      const top = this.log ? Math.ceil(Math.log10(most * 1.0001)) : round(most);
      // By logarithm everything up to 1 lies at the bottom.
      const part = (value) => (this.log ? Math.log10(Math.max(value, 1)) : value) / top;
      const y = (value) => floor - part(value) * (floor - TOP);
      const powers = () => Array.from({ length: top + 1 }, (_, power) => 10 ** power);
      const ticks = this.log ? powers().filter((_, power) => top < 5 || (top - power) % 2 === 0) : [0, top / 2, top];
      this.grid(ticks, y, this.tick);
      this.below(LEFT, `−${this.length(this.shown())}`, "start");
      this.below(this.width - RIGHT, this.words.now, "end");
      if (this.points.length < 2) {
        const middle = { class: "dq-tick", x: (LEFT + this.width - RIGHT) / 2, y: (TOP + floor) / 2, "text-anchor": "middle" };
        this.root.append(svg("text", middle, this.words["waiting-for-two"]));
      }
      this.names.map((_, series) => series).reverse().forEach((series) => this.line(series, y));
      if (this.at === null || !this.points[this.at]) return;
      this.cursor(this.x(this.at));
      this.points[this.at].values.forEach((value, series) => {
        if (value === null) return;
        this.root.append(svg("circle", { class: `dq-mark dq-s${series + 1}`, cx: this.x(this.at), cy: y(value), r: 3 }));
      });
    }
    line(series, y) {
      let path = "";
      let drawing = false;
      this.points.forEach((point, place) => {
        const value = point.values[series];
        if (value !== null) path += `${drawing && !point.apart ? "L" : "M"}${this.x(place).toFixed(1)} ${y(value).toFixed(1)}`;
        drawing = value !== null;
      });
      this.root.append(svg("path", { class: `dq-line dq-s${series + 1}`, d: path || "M0 0" }));
    }
  }

  /* Bars side by side. */
  class Bars extends Chart {
    constructor(box, words, { text, tick, age }) {
      super(box, words);
      Object.assign(this, { text, tick, age, bins: [], due: 0, later: 0, unit: "", name: "", ms: null, old: 0 });
    }
    set(given) {
      Object.assign(this, given);
      if (this.at !== null && this.at >= this.bins.length) this.at = null;
      this.draw();
    }
    /* How long ago that was counted, now. */
    aged(now) {
      if (this.ms === null) return;
      this.old = Math.max(0, now - this.ms);
      this.draw();
    }
    count() { return this.bins.length; }
    step() { return (this.width - LEFT - RIGHT) / Math.max(1, this.bins.length); }
    x(place) { return LEFT + this.step() * (place + 0.5); }
    when(place) { return `${place}–${place + 1} ${this.unit}`; }
    read(place) {
      if (place !== null) return [[1, this.when(place), this.text(this.bins[place])]];
      const sum = this.bins.reduce((one, other) => one + other, 0);
      return [[0, this.words.due, this.text(this.due)], [1, this.name, this.text(sum)],
              [0, this.words.later, this.text(this.later)], ...(this.ms === null ? [] : [[0, this.age(this.old), ""]])];
    }
    rows() {
      return [[this.words["due-column"], this.words["jobs-column"]], [this.words.now, this.text(this.due)],
              ...this.bins.map((bin, place) => [this.when(place), this.text(bin)]),
              [this.words.later, this.text(this.later)]];
    }
    paint() {
      const floor = this.height - BOTTOM;
      const top = Math.max(2, round(Math.max(1, ...this.bins)));
      const y = (value) => floor - (value / top) * (floor - TOP);
      this.grid([0, top / 2, top].filter(Number.isInteger), y, this.tick); // there is no half job
      const step = this.step();
      const gap = step > 5 ? 2 : 1;
      this.bins.forEach((bin, place) => {
        const height = bin ? Math.max(2, floor - y(bin)) : 0; // one job of a million is seen too
        const at = { x: LEFT + step * place + gap / 2, width: Math.max(1, step - gap), y: floor - height, height };
        this.root.append(svg("rect", { class: `dq-bar${place === this.at ? " dq-here" : ""}`, ...at }));
      });
      const every = this.bins.length > 30 ? 15 : 6;
      for (let place = 0; place <= this.bins.length; place += every) {
        const anchor = place === 0 ? "start" : place === this.bins.length ? "end" : "middle";
        this.below(LEFT + step * place, place ? `${place} ${this.unit}` : this.words.now, anchor);
      }
    }
  }

  /* A line without words beside a row; the row has the number. */
  function sparkline(cell, values, most) {
    const width = 96;
    const height = 22;
    let root = cell.firstElementChild;
    if (!root) {
      root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
      root.append(svg("path", { class: "dq-line dq-s1" }));
      cell.replaceChildren(root);
    }
    const top = Math.max(1, ...values);
    const points = values.map((value, place) => {
      const x = width - 1 - ((values.length - 1 - place) * (width - 2)) / (most - 1);
      return `${x.toFixed(1)} ${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`;
    });
    root.firstElementChild.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "M0 0");
  }

  return { Lines, Bars, sparkline, html };
})();
