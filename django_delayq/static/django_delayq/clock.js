/* Count moments and countdowns on between two responses, in the form of formatting.py, and show how fast counters grow. */
"use strict";
(() => {
  const live = () => document.getElementById("dq-live");
  if (!live()?.dataset.now) return;
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  // Redis's clock: its time when the page was rendered, and the time since then on this machine.
  let renderedAt = performance.now();
  let asOf = live().dataset.now;
  let counters = readCounters();
  const now = () => Number(asOf) + performance.now() - renderedAt;

  function duration(seconds) {
    let rest = Math.floor(Math.abs(seconds));
    const parts = UNITS.map(([size, unit]) => {
      const number = Math.floor(rest / size);
      rest -= number * size;
      return [number, unit];
    });
    const first = Math.max(0, parts.findIndex(([number]) => number));
    return parts.slice(first, first + 2).filter(([number]) => number).map((part) => part.join(" ")).join(" ") || "0 s";
  }
  function count() {
    const { in: ahead, ago, isNow } = live().dataset;
    for (const when of live().querySelectorAll("time.dq-when")) {
      const away = (Number(when.dataset.ms) - now()) / 1000;
      const text = Math.abs(away) < 1 ? isNow : (away > 0 ? ahead : ago).replace("%s", duration(away));
      if (when.textContent !== text) when.textContent = text;
    }
    for (const bar of live().querySelectorAll("progress[data-ms]")) {
      bar.value = Math.max(0, (Number(bar.dataset.ms) - now()) / 1000);
    }
  }
  function readCounters() {
    const nodes = [...live().querySelectorAll("[data-counter]")];
    return new Map(nodes.map((node) => [`${node.dataset.queue} ${node.dataset.counter}`, Number(node.dataset.number)]));
  }
  function showRates(before, seconds) {
    for (const node of live().querySelectorAll("[data-counter]")) {
      const more = Number(node.dataset.number) - before.get(`${node.dataset.queue} ${node.dataset.counter}`);
      if (!(more > 0 && seconds > 0)) continue;
      const rate = document.createElement("span");
      rate.className = "dq-rate";
      rate.textContent = ` +${(more / seconds).toPrecision(2)}/s`;
      node.append(rate);
    }
  }

  document.addEventListener("delayq:swapped", () => {
    if (!live().dataset.now) return; // the job is gone
    showRates(counters, (Number(live().dataset.now) - Number(asOf)) / 1000);
    [renderedAt, asOf, counters] = [performance.now(), live().dataset.now, readCounters()];
    count();
  });
  window.setInterval(() => { if (live().dataset.now) count(); }, 1000);
  count();
})();
