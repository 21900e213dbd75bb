// Two small things: clocks that count down, and parts of the page that renew themselves.
(() => {
  "use strict";

  // The server's clock decides; the browser's may be wrong by minutes.
  const ahead = Number(document.body.dataset.now) - Date.now();
  const now = () => Date.now() + ahead;

  const words = (ms) => {
    const seconds = Math.ceil(ms / 1000);
    if (seconds <= 0) return "now";
    const h = Math.floor(seconds / 3600), m = Math.floor(seconds / 60) % 60, s = seconds % 60;
    const two = (n) => String(n).padStart(2, "0");
    if (h >= 48) return `${Math.floor(h / 24)} days`;
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  };

  const tick = () => {
    for (const clock of document.querySelectorAll("[data-countdown]")) {
      const left = Math.max(0, Number(clock.dataset.countdown) - now());
      const text = words(left);
      if (clock.textContent !== text) clock.textContent = text;
      const bar = clock.dataset.total && clock.closest("section").querySelector("progress");
      if (bar) bar.value = Math.min(1, left / Number(clock.dataset.total));
    }
  };
  tick();
  setInterval(tick, 200);

  const renew = async (part) => {
    const answer = await fetch(location.href, { headers: { "X-Live-Version": part.dataset.version } });
    if (answer.status !== 200) return;
    const html = await answer.text();
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    part.innerHTML = html;
    part.dataset.version = answer.headers.get("X-Live-Version");
    if (focused) document.getElementById(focused)?.focus();
    tick();
  };

  const watch = async (part) => {
    // A form in use, or a page that nobody looks at, is left alone.
    const busy = document.hidden || part.querySelector("form:focus-within select, form:focus-within input:not([type=hidden])");
    try {
      if (!busy) await renew(part);
      setTimeout(watch, 1000, part);
    } catch {
      setTimeout(watch, 5000, part); // the server is away: ask less often
    }
  };
  document.querySelectorAll("[data-live]").forEach((part) => setTimeout(watch, 1000, part));
})();
