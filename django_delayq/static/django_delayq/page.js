/* What the dashboard's scripts share: words of the page, numbers as dashboard_words.py writes them, addresses, and small
   ways of changing the page. Text gets into it as text only. */
"use strict";
window.delayqPage = (() => {
  const dash = document.getElementById("dq-dash");
  const one = (id) => document.getElementById(id);
  const words = Object.fromEntries(
    Array.from(document.querySelectorAll("#dq-words dt"), (name) => [name.textContent, name.nextElementSibling.textContent]),
  );
  const put = (node, text) => { if (node && node.textContent !== text) node.textContent = text; };
  const show = (node, wanted) => { if (node && node.hidden === wanted) node.hidden = !wanted; };
  const fill = (row, name) => row.querySelector(`[data-fill="${name}"]`);

  // -- numbers as a person reads them, like dashboard_words.py --------------------------------------------------------

  const grouped = (number) => Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const rate = (number) => number === null ? "–" : number > 0 && number < 9.95 ? number.toFixed(1) : grouped(number);
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
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
  function millis(ms) {
    if (ms === null) return "–";
    if (ms < 1000) return `${Math.round(ms)} ms`;
    return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms / 1000);
  }
  /* Beside an axis there is little room: 25 k, 5 M; and lengths by powers of ten, so not in minutes. */
  function short(number) {
    const [size, unit] = [[1e9, " G"], [1e6, " M"], [1e4, " k"]].find(([least]) => number >= least) || [1, ""];
    const scaled = number / (unit === " k" ? 1000 : size);
    return (Number.isInteger(scaled) || scaled >= 100 ? grouped(scaled) : String(Number(scaled.toFixed(2)))) + unit;
  }
  const short_millis = (ms) => ms < 1000 ? `${ms} ms` : `${grouped(ms / 1000)} s`;
  /* In the server's time zone, like the rest of the admin. */
  const clock = (ms) => new Date(ms + Number(dash.dataset.zone)).toISOString().slice(11, 19);

  /* Django's admin writes such signs of a name into an address in its own way. */
  const quoted = (name) => encodeURIComponent(name.replace(/[":/_#?;@&=+$,[\]<>%\n\\]/g,
    (sign) => `_${sign.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`));
  const address = (pattern, name) => pattern.replace("DQ-ANY", () => quoted(name));
  const jobs_url = (queue, place) => `${dash.dataset.jobsUrl}?${new URLSearchParams({ queue, place })}`;

  // -- changing the page ------------------------------------------------------------------------------------------------

  /* The children of a box, one for each key: those that are there stay, so that focus and selection do too. */
  function keyed(box, name, template, list, key_of) {
    const known = new Map(Array.from(box.children, (child) => [child.dataset[name], child]));
    list.forEach((item, place) => {
      const key = key_of(item);
      const child = known.get(key) || template.content.firstElementChild.cloneNode(true);
      child.dataset[name] = key;
      known.delete(key);
      if (box.children[place] !== child) box.insertBefore(child, box.children[place] || null);
    });
    for (const child of known.values()) child.remove();
    return Array.from(box.children);
  }
  function facts(box, pairs) {
    if (box.children.length !== pairs.length * 2) {
      box.replaceChildren(...pairs.flatMap(() => [document.createElement("dt"), document.createElement("dd")]));
    }
    pairs.flat().forEach((text, place) => put(box.children[place], text));
  }
  function sentences(list, texts) {
    while (list.children.length > texts.length) list.lastElementChild.remove();
    texts.forEach((text, place) => put(list.children[place] || list.appendChild(document.createElement("li")), text));
  }

  return { dash, one, words, put, show, fill, grouped, rate, duration, millis, short, short_millis, clock, address, jobs_url, keyed, facts, sentences };
})();
