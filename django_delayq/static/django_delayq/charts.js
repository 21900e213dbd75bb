/* Draw tables as charts with uPlot, and read heat maps by pointer and keys. A chart has no data or texts of its own: they
   are those of its table, which the server renders. */
"use strict";
(() => {
  const DASHES = [[], [], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2]]; // by number of a colour
  const POWERS = Array.from({ length: 13 }, (_, power) => 10 ** power);
  const ROUND = POWERS.flatMap((power) => [power, 2 * power, 5 * power]);
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600];
  const FONT = "11px system-ui, sans-serif";
  const SPARK_POINTS = 60;
  const css = (name) => window.getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (number) => () => css(`--dq-${number}`);
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
  const short = (number) => compact.format(number).replace(/(?=[KMBT])/, "\u202f");
  const shortMillis = (ms) => {
    if (ms < 1e6) return ms < 1000 ? `${ms} ms` : `${ms / 1000} s`;
    return ms < 1e7 ? `${Math.round(ms / 60_000)} min` : `${Number((ms / 3_600_000).toPrecision(2))} h`;
  };
  const time = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

  class TableChart {
    constructor(box) {
      this.box = box;
      this.holder = box.querySelector("[data-plot]");
      this.heads = [...box.querySelectorAll("thead th")];
      this.columns = this.heads.flatMap((head, place) => (head.dataset.colour ? [place] : []));
      this.isLog = box.dataset.log !== undefined;
      this.unit = box.dataset.log === "jobs" ? short : shortMillis;
      this.read();
      this.plot = new window.uPlot(this.options(), this.data, this.holder);
      box.chart = this;
      this.show(null);
      this.holder.addEventListener("keydown", (event) => this.key(event));
      this.holder.addEventListener("blur", () => this.leave());
      new ResizeObserver(() => this.resize()).observe(this.holder);
    }
    /* Read the table. Over time its newest row is the first; where responses are missing the line has a gap. */
    read() {
      this.rows = [...this.box.querySelector("tbody").rows];
      this.isTimed = this.box.querySelector("[data-keep-seconds]") !== null;
      if (this.isTimed) this.rows.reverse();
      const number = (row, column) => {
        const text = row.cells[column].dataset.number;
        return text === "" ? null : this.isLog ? Math.max(1, Number(text)) : Number(text);
      };
      this.x = this.rows.map((row, place) => (this.isTimed ? Number(row.dataset.x) : place));
      this.data = [this.x, ...this.columns.map((column) => this.rows.map((row) => number(row, column)))];
      this.gaps = this.x.flatMap((x, place) => (place && x > Number(this.rows[place - 1].dataset.until) ? [place] : []));
    }
    options() {
      const bars = this.box.dataset.chart === "bars";
      const quiet = () => css("--body-quiet-color");
      const axis = { stroke: quiet, font: FONT, ticks: { show: false } };
      const line = { width: 1, stroke: () => css("--hairline-color") };
      const series = this.columns.map((column) => {
        const number = this.heads[column].dataset.colour;
        const common = { stroke: colour(number), width: bars ? 0 : 1.8, points: { show: false }, pxAlign: 0 };
        if (bars) return { ...common, fill: colour(number), paths: window.uPlot.paths.bars({ size: [0.86, 100] }) };
        return { ...common, dash: DASHES[number], points: { show: this.isTimed ? false : undefined, size: 3 }, gaps: (u, s, from, to, gaps) => this.addGaps(u, gaps) };
      });
      return {
        ...this.size(),
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: !bars } },
        scales: { x: { time: false, range: (u, from, to) => this.rangeX(from, to, bars) }, y: this.scaleY() },
        axes: [
          { ...axis, grid: { show: false }, size: 28, gap: 9, space: 72, incrs: this.isTimed ? SECONDS : ROUND, values: (u, splits) => splits.map((x) => this.label(x)) },
          { ...axis, grid: line, size: 64, space: 30, ...this.axisY(bars) },
        ],
        series: [{}, ...series],
        hooks: { setCursor: [(u) => this.show(u.cursor.idx)] },
      };
    }
    addGaps(u, gaps) {
      const position = (place) => u.valToPos(this.x[place], "x", true);
      return [...gaps, ...this.gaps.map((place) => [position(place - 1), position(place)])];
    }
    rangeX(from, to, bars) {
      if (this.isTimed) return [Math.min(from, to - 60), to];
      return bars ? [-0.5, this.rows.length - 0.5] : [0, Math.max(1, this.rows.length - 1)];
    }
    scaleY() {
      if (!this.isLog) return { range: (u, from, to) => [0, ROUND.find((number) => number >= Math.max(1, to))] };
      return { distr: 3, range: (u, from, to) => [1, POWERS.find((power) => power >= Math.max(10, to || 0))] };
    }
    axisY(bars) {
      if (!this.isLog) {
        const whole = (number) => !bars || Number.isInteger(number); // there is no half job
        return { splits: (u, axis, from, to) => [0, to / 2, to].filter(whole), values: (u, splits) => splits.map(short) };
      }
      const splits = (u, axis, from, to) => POWERS.filter((power, place) => power <= to && (to < 1e5 || place % 2 === POWERS.indexOf(to) % 2));
      return { splits, filter: (u, values) => values, values: (u, values) => values.map(this.unit) };
    }
    label(x) {
      if (this.isTimed) return time(x);
      const row = this.rows[x];
      return row ? row.dataset.brief || row.cells[0].textContent : "";
    }
    size() { return { width: Math.max(120, this.holder.clientWidth), height: Math.max(80, this.holder.clientHeight) }; }
    resize() { this.plot.setSize(this.size()); }
    update() {
      this.read();
      this.plot.setData(this.data);
      this.show(this.plot.cursor.idx);
    }
    /* Show the values of a row; without one the summary, or the last row if newer ones follow. */
    show(place) {
      const readout = this.box.querySelector("[data-readout]");
      const summary = this.box.querySelector("[data-summary]");
      const pointed = place !== null && place !== undefined && this.rows[place];
      const row = pointed || (this.isTimed ? this.rows[this.rows.length - 1] : null);
      summary.hidden = Boolean(pointed);
      const isLegend = row || this.isTimed || this.columns.length > 1;
      const parts = (isLegend ? this.columns : []).map((column) => {
        const part = document.createElement("span");
        part.className = `dq-part dq-c${this.heads[column].dataset.colour}`;
        const value = document.createElement("b");
        value.textContent = row ? row.cells[column].textContent : this.isTimed ? "–" : "";
        part.append(`${this.heads[column].textContent} `, value);
        return part;
      });
      if (pointed) parts.push(pointed.cells[0].textContent);
      readout.replaceChildren(...parts);
    }
    key(event) {
      const last = this.rows.length - 1;
      const at = this.plot.cursor.idx ?? last + (event.key === "ArrowLeft" ? 1 : 0);
      const place = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
      if (event.key === "Escape") this.leave();
      if (place === undefined || last < 0) return;
      event.preventDefault();
      const to = Math.min(Math.max(place, 0), last);
      this.plot.setCursor({ left: this.plot.valToPos(this.x[to], "x"), top: 1 });
      this.show(to);
      const parts = [...this.box.querySelector("[data-readout]").childNodes];
      this.box.querySelector("[data-spoken]").textContent = parts.map((part) => part.textContent).join(", ");
    }
    leave() { this.plot.setCursor({ left: -10, top: -10 }); }
  }

  /* Trend of a queue: the rates of its row in the last responses. */
  function drawSpark(row) {
    const cell = row.querySelector("[data-spark]");
    if (row.dataset.rate === "") return;
    cell.rates = [...(cell.rates || []), Number(row.dataset.rate)].slice(-SPARK_POINTS);
    cell.plot ??= new window.uPlot({
      width: 96, height: 22, padding: [2, 1, 2, 1], legend: { show: false }, cursor: { show: false },
      axes: [{ show: false }, { show: false }],
      scales: { x: { time: false, range: (u, from, to) => [to - Math.max(20, to), to] }, y: { range: (u, from, to) => [0, Math.max(1, to)] } },
      series: [{}, { stroke: colour(1), width: 1.4, points: { show: false } }],
    }, [[0], [null]], cell);
    cell.plot.setData([cell.rates.map((_, place) => place), cell.rates]);
    cell.plot.root.setAttribute("aria-hidden", "true");
  }

  /* Show the full text of a cell. One cell is in the tab order; arrow keys move on. */
  function walk(table) {
    const readout = document.querySelector(`[data-readout="${table.id}"]`);
    const hint = readout.textContent;
    const read = (cell) => { readout.textContent = cell?.title || hint; };
    const enter = (cell) => {
      for (const other of table.querySelectorAll("td[tabindex]")) other.removeAttribute("tabindex");
      if (cell) cell.tabIndex = 0;
    };
    table.addEventListener("pointerover", (event) => read(event.target.closest("td")));
    table.addEventListener("pointerleave", () => read(null));
    table.addEventListener("focusin", (event) => read(event.target.closest("td")));
    table.addEventListener("focusout", () => read(null));
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td");
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      const next = cell && step && table.rows[cell.parentElement.rowIndex + step[0]]?.cells[cell.cellIndex + step[1]];
      if (next?.nodeName !== "TD") return;
      event.preventDefault();
      enter(next);
      next.focus();
    });
    return () => {
      if (!table.querySelector("td[tabindex]")) enter(table.querySelector("td"));
      const cell = table.querySelector("td:focus, td:hover");
      if (cell) read(cell);
    };
  }

  const charts = [...document.querySelectorAll("[data-chart]")].map((box) => new TableChart(box));
  const walks = [...document.querySelectorAll("table[data-walk]")].map(walk);
  const redraw = () => { for (const chart of charts) chart.plot.redraw(); };
  for (const update of walks) update();
  document.addEventListener("delayq:swapped", () => {
    for (const chart of charts) chart.update();
    for (const update of walks) update();
    for (const row of document.querySelectorAll("tr[data-rate]")) drawSpark(row);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
