/* Draw tables as charts with uPlot. A chart has no data or texts of its own: they are those of its table, which the
   server renders. */
"use strict";
(() => {
  const DASHES = [[], [], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2]]; // by number of a colour
  const POWERS = Array.from({ length: 13 }, (_, power) => 10 ** power);
  const ROUND = POWERS.flatMap((power) => [power, 2 * power, 5 * power]);
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600];
  const FONT = "11px system-ui, sans-serif";
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
      this.table = box.querySelector("details table");
      this.heads = [...this.table.tHead.rows[0].cells];
      this.columns = this.heads.flatMap((head, place) => (head.dataset.colour ? [place] : []));
      this.isLog = box.dataset.log !== undefined;
      this.unit = box.dataset.log === "jobs" ? short : shortMillis;
      this.read();
      this.plot = new window.uPlot(this.options(), this.data, this.holder);
      box.chart = this;
      new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.holder);
    }
    /* Read the table. Over time its newest row is the first; where samples are missing the line has a gap. */
    read() {
      this.rows = [...this.table.tBodies[0].rows];
      this.isTimed = this.rows[0]?.dataset.x !== undefined;
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
      const axis = { stroke: () => css("--body-quiet-color"), font: FONT, ticks: { show: false } };
      const line = { width: 1, stroke: () => css("--hairline-color") };
      const series = this.columns.map((column) => {
        const number = this.heads[column].dataset.colour;
        const value = (u, v, place, row) => this.rows[row]?.cells[column].textContent ?? "–";
        const common = { label: this.heads[column].textContent, value, stroke: colour(number), points: { show: false }, pxAlign: 0 };
        if (bars) return { ...common, width: 0, fill: colour(number), paths: window.uPlot.paths.bars({ size: [0.86, 100] }) };
        return { ...common, width: 1.8, dash: DASHES[number], gaps: (u, s, from, to, gaps) => this.addGaps(u, gaps) };
      });
      return {
        ...this.size(),
        legend: { markers: { dash: (u, place) => (DASHES[place]?.length ? "dashed" : "solid") } },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: !bars } },
        scales: { x: { time: false, range: (u, from, to) => this.rangeX(from, to, bars) }, y: this.scaleY() },
        axes: [
          { ...axis, grid: { show: false }, size: 28, gap: 9, space: 72, incrs: this.isTimed ? SECONDS : ROUND, values: (u, splits) => splits.map((x) => this.label(x)) },
          { ...axis, grid: line, size: 64, space: 30, ...this.axisY(bars) },
        ],
        series: [{ label: this.heads[0].textContent, value: (u, v, place, row) => this.rows[row]?.cells[0].textContent ?? "–" }, ...series],
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
    size() { return { width: Math.max(120, this.holder.clientWidth), height: 170 }; }
    update() {
      this.read();
      this.plot.setData(this.data);
    }
  }

  function update() {
    for (const box of document.querySelectorAll("[data-chart]")) {
      if (box.chart) box.chart.update();
      else new TableChart(box);
    }
  }
  const redraw = () => { for (const box of document.querySelectorAll("[data-chart]")) box.chart?.plot.redraw(); };
  update();
  document.addEventListener("delayq:swapped", update);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
