/* Fetch a page again and morph its parts in place with idiomorph. What did not change stays: focus, selection, scroll
   position, open details. Elements with data-part are swapped by their id, those with data-keep never. */
"use strict";
(() => {
  const TIMEOUT_MS = 30000;
  const LONGEST_WAIT_MS = 30000;
  const FULL_MS = 10000; // expensive parts: at most so often, and not with every response
  const byId = (id) => document.getElementById(id);
  const live = byId("dq-live");
  if (live?.dataset.every === undefined) return;
  const box = byId("dq-auto");
  const choice = `delayq.refresh.${live.dataset.name || "lists"}`;
  let failures = 0;
  let timer = 0;
  let isLoading = false;
  let fullAt = -Infinity;

  const options = {
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (old) => old.dataset?.keep === undefined,
      beforeAttributeUpdated: (name, node) => name !== "open" || node.nodeName !== "DETAILS",
    },
  };
  const isOff = () => document.hidden || (box && !box.checked) || live.querySelector("[data-ended]") !== null;
  /* A person selects text, fills a form or ticks boxes: nothing changes under their hands. */
  function isInUse() {
    const selected = document.getSelection();
    const focused = live.querySelector(":is(input:not([type=checkbox]), select, textarea):focus");
    const ticked = live.querySelector("input[type=checkbox]:checked:not(#dq-auto)");
    return focused || ticked || (selected && !selected.isCollapsed && live.contains(selected.anchorNode));
  }
  function swap(page) {
    for (const part of page.querySelectorAll("[data-part]")) {
      const old = byId(part.id);
      if (old?.isConnected) window.Idiomorph.morph(old, part, options);
    }
    document.dispatchEvent(new CustomEvent("delayq:swapped"));
  }
  function say(reason, wait) {
    const state = byId("dq-state");
    state.textContent = live.dataset[reason].replace("%s", wait / 1000);
    state.parentElement.dataset.state = "bad";
  }
  /* Return the ms until the next attempt: 2, 4, … 30 s. */
  function fail(reason, page) {
    failures += 1;
    const wait = Math.min(LONGEST_WAIT_MS, 1000 * 2 ** failures);
    if (page) swap(page);
    say(reason, wait);
    return wait;
  }
  async function load() {
    const isFull = performance.now() - fullAt >= FULL_MS;
    const url = new URL(live.dataset.url || window.location.href, window.location.href);
    if (live.dataset.url && isFull) url.searchParams.set("all", "1");
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    const response = await fetch(url, { credentials: "same-origin", cache: "no-store", redirect: "manual", signal });
    if (response.type === "opaqueredirect") return fail("signedOut");
    if (response.status === 403) return fail("forbidden");
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const isOurs = page.querySelector("[data-part]") !== null;
    if (response.status === 503 && isOurs) return fail("redisGone", page);
    if (!isOurs || (!response.ok && response.status !== 404)) return fail("siteGone");
    failures = 0;
    if (isFull) fullAt = performance.now();
    if (!isInUse()) swap(page);
    if (response.status === 404 && box) box.checked = false; // the job is gone
    return Number(byId("dq-beat")?.dataset.next || live.dataset.every);
  }
  async function turn() {
    if (isLoading || isOff()) return;
    isLoading = true;
    let wait;
    try {
      wait = await load();
    } catch (error) {
      wait = fail("siteGone");
    }
    isLoading = false;
    plan(wait);
  }
  function plan(ms) {
    window.clearTimeout(timer);
    if (!isOff()) timer = window.setTimeout(turn, ms);
  }
  function remembered() {
    try { return window.localStorage.getItem(choice); } catch (error) { return null; }
  }
  if (box) {
    box.closest("label").hidden = false;
    box.checked = (remembered() ?? live.dataset.on ?? "0") === "1";
    box.addEventListener("change", () => {
      try { window.localStorage.setItem(choice, box.checked ? "1" : "0"); } catch (error) { /* forbidden */ }
      plan(0);
    });
  }
  document.addEventListener("visibilitychange", () => plan(0));
  plan(live.dataset.url ? 0 : Number(live.dataset.every));
})();
