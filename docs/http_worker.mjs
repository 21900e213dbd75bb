// A worker for a queue of kind "pull", in plain JavaScript (Node 18 or newer, no packages).
//   DELAYQ_URL=https://example.org/delayq DELAYQ_TOKEN=… node http_worker.mjs QUEUE ./handler.mjs
// The handler's default export gets (body, job): it returns when the job is done, and throws when it failed.
const [queue, module] = process.argv.slice(2);
const handle = (await import(new URL(module, `file://${process.cwd()}/`))).default;
const TTR = 60; // seconds; touched when half of it is over
let stopping = false;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (stopping = true));
const sleep = (seconds) => new Promise((wake) => setTimeout(wake, seconds * 1000));

async function post(verb, body) { // tries again while there is no server, or none that can answer
  for (;;) {
    const answer = await fetch(`${process.env.DELAYQ_URL}/v1/queues/${queue}/${verb}`, {
      method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(40_000),
      headers: { "Content-Type": "application/json", Authorization: `Token ${process.env.DELAYQ_TOKEN}` },
    }).catch((error) => ({ status: 503, headers: new Headers(), text: () => String(error) }));
    if (answer.ok) return [await answer.json(), Number(answer.headers.get("Retry-After") ?? 0)];
    if (answer.status !== 429 && answer.status < 500) throw new Error(`${verb}: ${await answer.text()}`);
    if (stopping) process.exit(1);
    await sleep(Number(answer.headers.get("Retry-After") ?? 5));
  }
}

async function run({ id, lease, ...job }) {
  const held = (more) => ({ jobs: [{ id, lease, ...more }] });
  const touching = setInterval(() => post("touch", held({ ttr: TTR })).catch(console.error), TTR * 500);
  let verdict = ["ack", held()];
  try { await handle(job.body ?? Buffer.from(job.body_base64, "base64"), { id, ...job }); }
  catch ({ name, message, stack }) {
    verdict = ["fail", held({ error: { class: name ?? "Error", message: String(message), traceback: String(stack) } })];
  } finally { clearInterval(touching); }
  const [{ results }] = await post(...verdict);
  if (!results[0].counted) console.error(`the lease of ${id} was lost: another worker has the job`);
}
while (!stopping) {
  const [{ jobs }, seconds] = await post("reserve", { wait: 5, ttr: TTR, max: 10 });
  await Promise.all(jobs.map(run));
  if (seconds && !stopping) await sleep(seconds);
}
