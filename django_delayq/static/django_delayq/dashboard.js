/* Asks for the dashboard's numbers while somebody looks, and puts them in their places. Plain polling: nothing is held
   open, a hidden tab asks nothing, and the server says how soon it may be asked again. */
"use strict";
(() => {
  const dash = document.getElementById("dq-dash");
  if (!dash) return;
  const { one, words, put, show, grouped, rate, duration, millis, short, short_millis, clock, facts, sentences } = window.delayqPage;
  const { Lines, Bars } = window.delayqCharts;
  const { tell_queues, tell_workers, count } = window.delayqTables;
  const ALL_EVERY = 10000; // backlog, shards and outbox: at most so often, and not with every answer
  const ALL_ANSWERS = 10;
  const LATENESS = 10000; // quantiles are taken over so many ms
  const SPAN = 300000;
  const GAP = 3; // so many times as long as meant between two answers: nobody knows how it was in between
  const TIMEOUT = 30000;
  const LONGEST = 30000;
  const SLOW = 5000; // from there on it is told

  // -- charts ----------------------------------------------------------------------------------------------------------

  function lines(id, text, tick, more) {
    const box = one(id);
    return new Lines(box, words, { names: box.dataset.names.split("|"), text, tick, span: SPAN, clock, length: (ms) => duration(ms / 1000), ...more });
  }
  const age = (ms) => ms < 1000 ? words["as-of-now"] : words["as-of-ago"].replace("%s", duration(ms / 1000));
  const throughput = lines("dq-throughput", rate, short, { log: false });
  const lateness = lines("dq-lateness", millis, short_millis, { log: true });
  const backlog = new Bars(one("dq-backlog"), words, { text: grouped, tick: short, age });
  const heatmap = new window.delayqHeatmap(one("dq-heat"), words, grouped);

  /* As Histogram.since and Histogram.quantile of core/timings.py. */
  function since(counts, before) {
    return counts.some((count, place) => count < before[place]) ? counts : counts.map((count, place) => count - before[place]);
  }
  function quantile(counts, bounds, part) {
    const rank = part * counts.reduce((sum, count) => sum + count, 0);
    let upto = 0;
    for (let place = 0; place < bounds.length; place++) {
      upto += counts[place];
      if (!counts[place] || upto < rank) continue;
      const low = place ? bounds[place - 1] : 0;
      return low + (bounds[place] - low) * Math.max(0, rank - (upto - counts[place])) / counts[place];
    }
    return rank > 0 ? bounds[bounds.length - 1] : null;
  }

  let earlier = []; // answers of the last seconds: what differs is what happened
  function happened(said) {
    const before = earlier[earlier.length - 1];
    if (before && said.now_ms <= before.now_ms) return; // the same look, or one of another process that is older
    earlier = [...earlier.filter((answer, place) => said.now_ms - answer.now_ms <= LATENESS || place === earlier.length - 1), said];
    if (!before) return;
    const seconds = (said.now_ms - before.now_ms) / 1000;
    const values = ["done", "failing", "scheduled"].map((name) => Math.max(0, said.totals[name] - before.totals[name]) / seconds);
    const apart = said.now_ms - before.now_ms > GAP * before.next_ms;
    throughput.add({ ms: said.now_ms, values, apart });
    const late = since(said.lateness, earlier[0].lateness);
    const quantiles = [0.5, 0.99].map((part) => quantile(late, said.bounds_ms, part));
    lateness.add({ ms: said.now_ms, values: quantiles, apart });
    total("done_rate", rate(values[0]));
    total("failing_rate", rate(values[1]));
    total("p50", millis(quantiles[0]));
    total("p99", millis(quantiles[1]));
  }
  function total(name, text) { put(dash.querySelector(`[data-total="${name}"]`), text); }

  // -- one answer ------------------------------------------------------------------------------------------------------

  const params = new URLSearchParams(window.location.search);
  let shards = [];
  function tell(said, in_order) {
    dash.dataset.zone = said.zone_ms;
    for (const place of ["delayed", "ready", "reserved", "gated", "failed", "morgue"]) total(place, grouped(said.totals[place]));
    total("lag", duration(said.totals.lag));
    total("busy", `${grouped(said.totals.busy)} / ${grouped(said.totals.threads)}`);
    dash.querySelector("[data-tile='lag']").classList.toggle("dq-is-late", said.totals.lag >= 60);
    happened(said);
    tell_queues(said, in_order);
    tell_workers(said);
    facts(one("dq-redis"), said.redis);
    sentences(one("dq-warnings"), said.warnings);
    put(one("dq-as-of"), words["as-of"].replace("%s", clock(said.now_ms)));
    if (!said.backlog) {
      backlog.aged(said.now_ms);
      return;
    }
    const { span, bins, due, later } = said.backlog;
    backlog.set({ bins, due, later, ms: said.now_ms, old: 0, name: words[span], unit: span === "hour" ? words.min : words.h });
    shards = said.heat;
    heatmap.set(shards, params.get("heat") || "ready");
    put(one("dq-heat-more"), said.heat_more);
    facts(one("dq-outbox"), said.outbox);
    show(one("dq-outbox-box"), said.outbox.length > 0);
  }

  // -- asking ----------------------------------------------------------------------------------------------------------

  let timer = 0;
  let asking = false;
  let again = false;
  let frozen = false;
  let failures = 0;
  let all_at = -Infinity;
  let answers = 0;
  let asked = null; // the wish whose order the rows have

  function state(kind, text) {
    one("dq-beat").dataset.state = kind;
    put(one("dq-state"), text);
  }
  function plan(ms) {
    window.clearTimeout(timer);
    if (!frozen && !document.hidden) timer = window.setTimeout(turn, ms);
  }
  function hurry(all) {
    if (all) all_at = -Infinity;
    if (asking) again = true;
    else plan(0);
  }
  async function turn() {
    if (asking || frozen || document.hidden) return;
    asking = true;
    const wish = params.toString();
    const all = all_at === -Infinity || (performance.now() - all_at >= ALL_EVERY && answers >= ALL_ANSWERS);
    let wait = LONGEST;
    try {
      wait = await ask(wish, all);
    } catch (error) {
      wait = failed("site-gone", "");
    }
    asking = false;
    plan(again ? 0 : wait);
    again = false;
  }
  async function ask(wish, all) {
    const url = `${dash.dataset.url}?${wish}${all ? "&all=1" : ""}`;
    const answer = await fetch(url, { credentials: "same-origin", redirect: "manual", signal: AbortSignal.timeout(TIMEOUT) });
    if (answer.type === "opaqueredirect") return failed("signed-out", "");
    if (answer.status === 403) return failed("forbidden", "");
    if (answer.status === 503) {
      const why = await answer.json().then((said) => said.error, () => "");
      return failed(why ? "redis-gone" : "site-gone", why);
    }
    if (!answer.ok) return failed("site-gone", "");
    const said = await answer.json();
    if (frozen || wish !== params.toString()) return 0; // meant for a wish of before
    failures = 0;
    show(one("dq-trouble"), false);
    tell(said, wish !== asked);
    asked = wish;
    answers += 1;
    if (all) [all_at, answers] = [performance.now(), 0];
    const slow = words.slow.replace("%1", duration(said.next_ms / 1000)).replace("%2", millis(said.cost_ms));
    state(said.next_ms > SLOW ? "slow" : "live", said.next_ms > SLOW ? slow : words.live);
    one("dq-beat").classList.toggle("dq-again");
    return said.next_ms;
  }
  /* 2, 4, … 30 seconds. */
  function failed(what, why) {
    failures += 1;
    const wait = Math.min(LONGEST, 1000 * 2 ** failures);
    state("bad", words[what].replace("%s", duration(wait / 1000)));
    show(one("dq-trouble"), what === "redis-gone");
    put(one("dq-trouble-why"), why);
    return wait;
  }

  // -- what a person does ----------------------------------------------------------------------------------------------

  function want(changes, all) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === "") params.delete(name);
      else params.set(name, value);
    }
    window.history.replaceState(null, "", `${window.location.pathname}${params.toString() ? `?${params}` : ""}`);
    hurry(all);
  }
  function pressed(group, chosen) {
    for (const button of group.querySelectorAll("[aria-pressed]")) button.setAttribute("aria-pressed", String(button === chosen));
  }
  dash.addEventListener("click", (event) => {
    const link = event.target.closest("[data-sort], [data-span], [data-heat]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { sort, span, heat } = link.dataset;
    if (span) {
      pressed(link.parentElement, link);
      want({ span }, true);
    } else if (heat) {
      pressed(link.parentElement, link);
      heatmap.set(shards, heat);
      params.set("heat", heat);
    } else {
      const down = params.get("sort") === sort ? params.get("down") !== "1" : sort !== "name";
      for (const head of dash.querySelectorAll("#dq-queues thead th")) head.removeAttribute("aria-sort");
      link.closest("th").setAttribute("aria-sort", down ? "descending" : "ascending");
      want({ sort, down: down ? "1" : "0" }, true);
    }
  });
  dash.addEventListener("keydown", (event) => {
    if (event.key === " " && event.target.matches("a[role='button']")) {
      event.preventDefault();
      event.target.click();
    }
  });
  let typing = 0;
  one("dq-find").addEventListener("input", () => {
    window.clearTimeout(typing);
    typing = window.setTimeout(() => want({ q: one("dq-q").value.trim() }, true), 250);
  });
  one("dq-find").addEventListener("submit", (event) => event.preventDefault());
  one("dq-freeze").addEventListener("click", (event) => {
    frozen = !frozen;
    event.target.setAttribute("aria-pressed", String(frozen));
    put(event.target, frozen ? words["go-on"] : words.freeze);
    if (frozen) state("still", words.frozen);
    else hurry(true);
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) hurry(false); });

  show(one("dq-freeze"), true);
  throughput.draw();
  lateness.draw();
  backlog.draw();
  window.setInterval(() => { if (!frozen) count(); }, 1000);
  dash.addEventListener("delayq:told", (event) => plan(event.detail));
  hurry(true);
})();
