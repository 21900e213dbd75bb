/* Counts on what the server said, and asks it anew every few seconds if somebody wants that. Nothing here is needed. */
"use strict";
(() => {
  const PERIOD = 5000;
  const WISH = "delayq.refresh";
  let live = document.getElementById("dq-live");
  if (!live || !live.dataset.now) return;

  // Redis's clock: what it was when the page was made, and how long ago that is here. Nobody's wall clock is asked.
  let began = performance.now();
  let now = () => Number(live.dataset.now) + performance.now() - began;

  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function duration(seconds) {
    let rest = Math.floor(Math.abs(seconds));
    const parts = UNITS.map(([size, unit]) => {
      const number = Math.floor(rest / size);
      rest -= number * size;
      return [number, unit];
    });
    const first = Math.max(0, parts.findIndex(([number]) => number));
    const words = parts.slice(first, first + 2).filter(([number]) => number).map((part) => part.join(" "));
    return words.join(" ") || "0 s";
  }

  function count() {
    for (const when of live.querySelectorAll("time.dq-when")) {
      const away = (Number(when.dataset.ms) - now()) / 1000;
      const form = away > 0 ? live.dataset.in : live.dataset.ago;
      const words = Math.abs(away) < 1 ? live.dataset.isNow : form.replace("%s", duration(away));
      if (when.textContent !== words) when.textContent = words;
    }
    for (const bar of live.querySelectorAll("progress[data-ms]")) {
      bar.value = Math.max(0, (Number(bar.dataset.ms) - now()) / 1000);
    }
  }

  // Counters only grow: how fast, is the difference between two looks.
  function counters() {
    const found = new Map();
    for (const one of live.querySelectorAll("[data-counter]")) {
      found.set(`${one.dataset.queue} ${one.dataset.counter}`, Number(one.dataset.number));
    }
    return found;
  }
  function tellRates(before, seconds) {
    if (!(seconds > 0)) return;
    for (const one of live.querySelectorAll("[data-counter]")) {
      const was = before.get(`${one.dataset.queue} ${one.dataset.counter}`);
      const more = Number(one.dataset.number) - was;
      if (!(more > 0)) continue;
      const rate = document.createElement("span");
      rate.className = "dq-rate";
      rate.textContent = ` +${(more / seconds).toPrecision(2)}/s`;
      one.append(rate);
    }
  }

  const box = document.getElementById("dq-auto");
  let asking = false;

  function busy() {
    // Do not take a page away under somebody's hands.
    const selected = document.getSelection();
    return document.hidden || asking || (selected && !selected.isCollapsed)
      || (live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button"));
  }

  async function refresh() {
    if (!box.checked || busy()) return;
    asking = true;
    try {
      const answer = await fetch(window.location.href, { credentials: "same-origin", redirect: "error" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("dq-live");
      if (fresh && box.checked) {
        const before = counters();
        const asOf = Number(live.dataset.now);
        live.replaceWith(document.adoptNode(fresh));
        live = document.getElementById("dq-live");
        if (live.dataset.now) {
          began = performance.now();
          tellRates(before, (Number(live.dataset.now) - asOf) / 1000);
          const foot = page.querySelector(".dq-foot");
          const said = document.querySelector(".dq-foot");
          if (foot && said) said.firstChild.textContent = foot.firstChild.textContent;
        } else {
          box.checked = false; // Redis is gone, or the job: nothing to count on
        }
        live.dispatchEvent(new CustomEvent("delayq:refreshed", { bubbles: true }));
        count();
      }
    } catch (error) {
      // The site does not answer now; the next turn asks again.
    } finally {
      asking = false;
    }
  }

  function remembered() {
    try { return window.localStorage.getItem(WISH) === "1"; } catch (error) { return false; }
  }
  function remember(wanted) {
    try { window.localStorage.setItem(WISH, wanted ? "1" : "0"); } catch (error) { /* not allowed here */ }
  }

  if (box) {
    box.closest("label").hidden = false;
    box.checked = remembered();
    box.addEventListener("change", () => { remember(box.checked); refresh(); });
    window.setInterval(refresh, PERIOD);
  }
  window.setInterval(count, 1000);
  count();
})();
