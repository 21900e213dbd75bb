/* Fetch parts of a page again and swap them in place. What did not change stays: focus, selection, scroll position, open
   details. Elements with data-part are swapped by their id; rows and boxes are matched by data-key. */
"use strict";
window.delayqLive = (() => {
  const REORDER_MS = 10000; // rows that nobody sorted change places at most so often
  const FINE_SECONDS = 300; // of charts over time: all rows stay so long
  const TIMEOUT_MS = 30000;
  const LONGEST_WAIT_MS = 30000;
  let reorderedAt = -Infinity;
  let reorder = false; // in this swap: true, false, or "calm" = only where no pointer and no focus is

  function morph(old, fresh) {
    if (old.dataset?.keep !== undefined || old.isEqualNode(fresh)) return;
    for (const { name } of [...old.attributes]) {
      if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (name !== "tabindex" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (old.dataset.keepSeconds) prependRow(old, fresh);
    else if (fresh.firstElementChild?.dataset?.key !== undefined) morphKeyed(old, fresh);
    else morphChildren(old, fresh);
  }
  function morphChildren(old, fresh) {
    const wanted = [...fresh.childNodes];
    wanted.forEach((child, place) => {
      const mine = old.childNodes[place];
      if (!mine) old.append(child);
      else if (mine.nodeName !== child.nodeName) mine.replaceWith(child);
      else if (mine instanceof Element) morph(mine, child);
      else if (mine.data !== child.data) mine.data = child.data;
    });
    while (old.childNodes.length > wanted.length) old.lastChild.remove();
  }
  function morphKeyed(old, fresh) {
    const known = new Map([...old.children].map((child) => [child.dataset.key, child]));
    const move = reorder === true || (reorder === "calm" && !old.matches(":hover, :focus-within"));
    [...fresh.children].forEach((child, place) => {
      const mine = known.get(child.dataset.key);
      known.delete(child.dataset.key);
      if (mine) morph(mine, child);
      else old.append(child);
      const node = mine || child;
      if (move && old.children[place] !== node) old.insertBefore(node, old.children[place] || null);
    });
    for (const gone of known.values()) gone.remove();
  }
  /* Of rows that are older than five minutes one a minute is enough. */
  function thin(rows, x) {
    const old = rows.filter((row) => x(row) < x(rows[0]) - FINE_SECONDS);
    let kept = old.length ? x(old[old.length - 1]) : 0;
    for (const row of old.reverse().slice(1)) {
      if (x(row) - kept < 60) row.remove();
      else kept = x(row);
    }
  }
  /* The table of a chart over time: newest row first, rows of the last seconds. */
  function prependRow(old, fresh) {
    const x = (row) => Number(row.dataset.x);
    const row = fresh.rows[0];
    if (!row || (old.rows[0] && x(old.rows[0]) >= x(row))) return;
    old.prepend(row);
    thin([...old.rows], x);
    while (x(row) - x(old.rows[old.rows.length - 1]) > Number(old.dataset.keepSeconds)) old.deleteRow(-1);
  }

  /* Swap all parts of a document, or only the one that is named. False if the page has no place for one of them. */
  function swap(page, { only = "", sorted = false } = {}) {
    const due = performance.now() - reorderedAt > REORDER_MS;
    reorder = sorted || (due && "calm");
    if (reorder) reorderedAt = performance.now();
    const parts = [...page.querySelectorAll(only ? `#${only}[data-part]` : "[data-part]")];
    if (!parts.every((part) => document.getElementById(part.id))) return false;
    for (const part of parts) morph(document.getElementById(part.id), part);
    document.dispatchEvent(new CustomEvent("delayq:swapped"));
    return true;
  }

  /* Polls while the page is visible. Subclasses define what is fetched and what a response means. */
  class Live {
    constructor() {
      this.failures = 0;
      this.isOver = false;
      document.addEventListener("visibilitychange", () => this.plan(0));
    }
    headers() { return {}; }
    isPaused() { return document.hidden || this.isOver; }
    plan(ms) {
      window.clearTimeout(this.timer);
      if (!this.isPaused()) this.timer = window.setTimeout(() => this.turn(), ms);
    }
    hurry() {
      if (this.isLoading) this.again = true;
      else this.plan(0);
    }
    async turn() {
      if (this.isLoading || this.isPaused()) return;
      this.isLoading = true;
      let wait;
      try {
        wait = await this.load();
      } catch (error) {
        wait = this.fail("siteGone");
      }
      this.isLoading = false;
      this.plan(this.again ? 0 : wait);
      this.again = false;
    }
    async load() {
      const url = this.url();
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const options = { credentials: "same-origin", cache: "no-store", redirect: "manual", headers: this.headers(), signal };
      const response = await fetch(url, options);
      if (response.type === "opaqueredirect") return this.fail("signedOut");
      if (response.status === 403) return this.fail("forbidden");
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (this.isPaused() || url !== this.url()) return 0; // the answer to an earlier request
      if (response.status === 404) return this.gone(page);
      if (!response.ok) return this.fail("siteGone", page);
      this.failures = 0;
      return this.loaded(page);
    }
    gone() { return this.end(); }
    end() {
      this.isOver = true;
      return 0;
    }
    /* Return the ms until the next attempt: 2, 4, … 30 s. */
    fail() {
      this.failures += 1;
      return Math.min(LONGEST_WAIT_MS, 1000 * 2 ** this.failures);
    }
  }

  /* Progress of a bulk action or a pipeline run, until it has ended. */
  class Progress extends Live {
    constructor(box) {
      super();
      this.box = box;
      this.plan(1000);
    }
    isPaused() { return super.isPaused() || this.box.querySelector("[data-ended]") !== null; }
    url() { return this.box.dataset.url; }
    fail(reason) { return ["signedOut", "forbidden"].includes(reason) ? this.end() : super.fail(); }
    loaded(page) {
      morphChildren(this.box, page.body);
      return 1000;
    }
  }

  /* A page over Redis that is fetched again every 5 seconds if its box is ticked. */
  class Refresh extends Live {
    constructor(box) {
      super();
      this.box = box;
      box.closest("label").hidden = false;
      box.checked = this.remembered();
      box.addEventListener("change", () => this.remember());
      this.plan(5000);
    }
    remembered() {
      try { return window.localStorage.getItem("delayq.refresh") === "1"; } catch (error) { return false; }
    }
    remember() {
      try { window.localStorage.setItem("delayq.refresh", this.box.checked ? "1" : "0"); } catch (error) { /* forbidden */ }
      this.plan(0);
    }
    url() { return window.location.href; }
    isPaused() { return super.isPaused() || !this.box.checked; }
    isInUse() {
      const selected = document.getSelection();
      const focused = document.activeElement?.closest("[data-part]") && document.activeElement.matches("input, select, textarea, button");
      return focused || (selected && !selected.isCollapsed);
    }
    loaded(page) {
      document.getElementById("dq-lost").hidden = true;
      if (!this.isInUse()) swap(page, { sorted: true });
      return 5000;
    }
    fail(reason, page) {
      if (!page || !swap(page, { only: "dq-live" })) document.getElementById("dq-lost").hidden = false;
      return super.fail();
    }
    gone(page) {
      swap(page, { sorted: true });
      this.box.checked = false;
      return 0;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const progress = document.getElementById("delayq-progress");
    const refresh = document.getElementById("dq-auto");
    if (progress) new Progress(progress);
    if (refresh) new Refresh(refresh);
  });
  return { Live, swap };
})();
