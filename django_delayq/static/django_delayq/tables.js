/* The dashboard's table of queues, and its workers. Rows that are there stay, so that focus and selection do too. */
"use strict";
window.delayqTables = (() => {
  const { dash, one, words, put, show, fill, grouped, rate, duration, millis, address, jobs_url, keyed } = window.delayqPage;
  const { sparkline } = window.delayqCharts;
  const PLACES = ["delayed", "ready", "reserved", "gated", "failed", "morgue"];
  const REORDER = 10000; // rows do not dance
  const SPARKS = 60;

  // -- queues ----------------------------------------------------------------------------------------------------------

  const body = one("dq-queues").tBodies[0];
  const sparks = new Map(); // by queue: when and what was done last, and its rates
  let reordered = -Infinity;

  function new_row(name) {
    const row = one("dq-queue-row").content.firstElementChild.cloneNode(true);
    row.dataset.queue = name;
    const link = row.querySelector("[data-link]");
    link.textContent = link.title = name;
    if (dash.dataset.queueUrl) link.href = address(dash.dataset.queueUrl, name);
    for (const place of row.querySelectorAll("[data-place]")) {
      place.href = jobs_url(name, { delayed: "waiting", ready: "waiting" }[place.dataset.place] || place.dataset.place);
    }
    return row;
  }
  function spark(queue, now) {
    const known = sparks.get(queue.name) || { ms: now, done: queue.done, rates: [], rate: null };
    if (now > known.ms) {
      known.rate = Math.max(0, queue.done - known.done) / ((now - known.ms) / 1000);
      known.rates = [...known.rates, known.rate].slice(-SPARKS);
      Object.assign(known, { ms: now, done: queue.done });
    }
    sparks.set(queue.name, known);
    return known;
  }
  function tell_queues(said, in_order) {
    const rows = new Map(Array.from(body.rows, (row) => [row.dataset.queue, row]));
    for (const queue of said.queues) {
      const row = rows.get(queue.name) || body.appendChild(new_row(queue.name));
      rows.set(queue.name, row);
      const known = spark(queue, said.now_ms);
      for (const place of PLACES) put(fill(row, place), grouped(queue[place]));
      put(fill(row, "lag"), duration(queue.lag));
      if (known.rate !== null) put(fill(row, "done"), rate(known.rate));
      sparkline(row.querySelector("[data-spark]"), known.rates, Math.max(20, known.rates.length));
      const pill = row.querySelector("[data-paused]");
      show(pill, Boolean(queue.paused));
      put(pill, queue.paused ? words[`paused-${queue.paused}`] : "");
      tell_button(row, queue);
    }
    const wanted = new Set(said.queues.map((queue) => queue.name));
    for (const [name, row] of rows) if (!wanted.has(name)) row.remove();
    for (const [name, known] of sparks) if (said.now_ms - known.ms > 60000 && !wanted.has(name)) sparks.delete(name);
    const calm = !body.matches(":hover") && !body.contains(document.activeElement);
    if (in_order || (calm && performance.now() - reordered > REORDER)) {
      reordered = performance.now();
      said.queues.forEach((queue, place) => {
        const row = rows.get(queue.name);
        if (body.rows[place] !== row) body.insertBefore(row, body.rows[place]);
      });
    }
    show(one("dq-no-queue"), !said.queues.length);
    put(one("dq-queues-said"), said.queues_said);
  }
  function tell_button(row, queue) {
    const form = row.querySelector("form[data-pause]");
    if (!form || form.dataset.until > performance.now()) return;
    const verb = queue.paused ? "resume" : "pause";
    form.action = address(dash.dataset[`${verb}Url`], queue.name);
    const button = form.querySelector("button");
    button.removeAttribute("aria-disabled");
    put(button, words[verb]);
    button.setAttribute("aria-label", `${words[verb]} ${queue.name}`);
  }
  body.addEventListener("submit", async (event) => {
    event.preventDefault();
    const form = event.target;
    const button = form.querySelector("button");
    if (button.getAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true");
    let done = false;
    try {
      // It leads to the queue's page: followed, so that what that page would say is not kept for a later one.
      const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), credentials: "same-origin" });
      const there = new URL(address(dash.dataset.queueUrl, form.closest("tr").dataset.queue), window.location.href);
      done = answer.ok && new URL(answer.url).pathname === there.pathname;
    } catch (error) { /* told as refused */ }
    form.dataset.until = performance.now() + (done ? 0 : 4000);
    if (!done) put(button, words.refused);
    dash.dispatchEvent(new CustomEvent("delayq:told", { detail: done ? 950 : 4000 })); // a look from before may be shared
  });

  // -- workers -----------------------------------------------------------------------------------------------

  let now_ms = 0;
  let heard_at = 0;
  const now = () => now_ms + performance.now() - heard_at;

  function tell_workers(said) {
    now_ms = said.now_ms;
    heard_at = performance.now();
    const boxes = keyed(one("dq-workers"), "worker", one("dq-worker-row"), said.workers, (worker) => worker.name);
    said.workers.forEach((worker, place) => {
      const box = boxes[place];
      for (const name of ["name", "facts", "more"]) put(fill(box, name), worker[name]);
      for (const pill of box.querySelectorAll("[data-if]")) show(pill, worker[pill.dataset.if]);
      put(fill(box, "busy"), words.busy.replace("%1", worker.running).replace("%2", worker.threads));
      fill(box, "seen").dataset.ms = worker.seen_ms;
      const meter = box.querySelector("[data-meter]");
      for (const node of [meter, fill(box, "busy")]) show(node, worker.threads > 0);
      meter.max = Math.max(1, worker.threads);
      meter.value = worker.running;
      const key_of = (job) => `${job.slot}/${job.started_ms}/${job.queue}/${job.id}`;
      const items = keyed(box.querySelector("[data-jobs]"), "job", one("dq-job-row"), worker.jobs, key_of);
      worker.jobs.forEach((job, at) => {
        const link = fill(items[at], "id");
        put(fill(items[at], "task"), job.task);
        put(link, job.ids > 1 ? `${job.id} +${job.ids - 1}`.trim() : job.id);
        if (dash.dataset.jobUrl) link.href = address(dash.dataset.jobUrl, `${job.queue}/${job.id}`);
        fill(items[at], "since").dataset.ms = job.started_ms;
        if (job.lease_ms === null) delete fill(items[at], "lease").dataset.ms;
        else fill(items[at], "lease").dataset.ms = job.lease_ms;
      });
    });
    show(one("dq-no-worker"), !said.workers.length);
    put(one("dq-workers-more"), said.workers_more);
    count();
  }
  /* What goes on by itself between two answers. */
  function count() {
    if (!heard_at) return;
    for (const node of document.querySelectorAll("#dq-workers [data-ms]")) {
      const away = Number(node.dataset.ms) - now();
      const text = { since: millis(Math.max(0, -away)), lease: millis(Math.max(0, away)), seen: duration(away / 1000) };
      const form = { since: words.for, lease: words.lease, seen: words.heard }[node.dataset.fill];
      put(node, form.replace("%s", text[node.dataset.fill]));
    }
  }

  return { tell_queues, tell_workers, count };
})();
