/* Controls of the dashboard: polling, search, order, freezing, and the buttons that pause queues. */
"use strict";
(() => {
  const { Live, swap } = window.delayqLive;
  const FULL_MS = 10000; // backlog, shards and outbox: at most so often, and not with every response
  const FULL_RESPONSES = 10;
  const WINDOW_MS = 10000; // rates are taken over so long
  const REFUSED_MS = 4000;
  const dash = document.getElementById("dq-dash");
  const one = (id) => document.getElementById(id);

  class Dashboard extends Live {
    constructor() {
      super();
      this.query = window.location.search;
      this.isFrozen = false;
      this.counters = []; // of the last responses: [when, text]
      this.remember();
      this.needFull();
      this.plan(0);
    }
    isPaused() { return super.isPaused() || this.isFrozen; }
    needFull() { this.fullAt = -Infinity; }
    isFull() {
      return this.fullAt === -Infinity || (this.responses >= FULL_RESPONSES && performance.now() - this.fullAt >= FULL_MS);
    }
    url() {
      const query = new URLSearchParams(this.query);
      if (this.full) query.set("all", "1");
      return `${dash.dataset.live}?${query}`;
    }
    load() {
      this.full = this.isFull();
      return super.load();
    }
    headers() { return { "X-Delayq-Since": this.counters[0][1] }; }
    /* Keep the counters of this response, and those of the last seconds; at least the last ones. */
    remember() {
      const now = performance.now();
      const recent = this.counters.filter(([when], place) => now - when <= WINDOW_MS || place === this.counters.length - 1);
      this.counters = [...recent, [now, one("dq-beat").dataset.counters]];
    }
    ask(query) {
      this.query = query;
      window.history.replaceState(null, "", window.location.pathname + (query === "?" ? "" : query));
      this.needFull();
      this.isSorted = true;
      this.hurry();
    }
    loaded(page) {
      if (!swap(page, { sorted: this.isSorted })) { // the page was rendered while Redis was away
        window.location.reload();
        return this.end();
      }
      this.isSorted = false;
      this.responses = this.full ? 0 : this.responses + 1;
      if (this.full) this.fullAt = performance.now();
      this.remember();
      dash.classList.toggle("dq-again");
      return Number(one("dq-beat").dataset.next);
    }
    fail(reason, page) {
      const wait = super.fail();
      const isRedis = page?.getElementById("dq-trouble") && swap(page, { only: "dq-trouble" });
      one("dq-beat").dataset.state = "bad";
      one("dq-state").textContent = dash.dataset[isRedis ? "redisGone" : reason].replace("%s", wait / 1000);
      return wait;
    }
    freeze(button) {
      this.isFrozen = !this.isFrozen;
      button.setAttribute("aria-pressed", String(this.isFrozen));
      [button.textContent, button.dataset.other] = [button.dataset.other, button.textContent];
      if (!this.isFrozen) {
        this.needFull();
        this.plan(0);
        return;
      }
      one("dq-beat").dataset.state = "still";
      one("dq-state").textContent = dash.dataset.frozen;
    }
    /* Send a button's form. The redirect is followed, so that the message of its page is not shown on a later one. */
    async press(form, button) {
      if (button.dataset.keep !== undefined) return;
      button.dataset.keep = "";
      button.setAttribute("aria-disabled", "true");
      let done = false;
      try {
        const response = await fetch(button.formAction, { method: "POST", body: new URLSearchParams(new FormData(form)), credentials: "same-origin" });
        done = response.ok && new URL(response.url).pathname === button.closest("tr").querySelector("[data-link]").pathname;
      } catch (error) { /* shown as refused */ }
      if (!done) button.textContent = dash.dataset.refused;
      window.setTimeout(() => {
        delete button.dataset.keep;
        button.removeAttribute("aria-disabled");
        this.needFull();
        this.hurry();
      }, done ? 950 : REFUSED_MS); // an earlier snapshot may be shared for 0.9 s
    }
  }

  const live = new Dashboard();
  one("dq-freeze").hidden = false;
  one("dq-freeze").addEventListener("click", (event) => live.freeze(event.target));
  dash.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-query]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    live.ask(link.search || "?");
  });
  dash.addEventListener("keydown", (event) => {
    if (event.key !== " " || !event.target.matches("a[role='button']")) return;
    event.preventDefault();
    event.target.click();
  });
  dash.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("#dq-pause, #dq-find")) return;
    event.preventDefault();
    if (form.matches("#dq-pause")) live.press(form, event.submitter);
  });
  let typing = 0;
  one("dq-find").addEventListener("input", () => {
    window.clearTimeout(typing);
    typing = window.setTimeout(() => {
      const query = new URLSearchParams(live.query);
      query.set("q", one("dq-q").value.trim());
      live.ask(`?${query}`);
    }, 250);
  });
})();
