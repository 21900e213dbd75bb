/* Queue × shard as a table whose cells are coloured by what lies there. One cell is in the tab order; arrows walk. */
"use strict";
window.delayqHeatmap = (() => {
  const KINDS = ["ready", "delayed", "reserved"]; // as each cell comes
  const LEVELS = 8;

  /* The same as dashboard_data.level. */
  function level(number, most) {
    return number > 0 ? Math.ceil(LEVELS * Math.sqrt(number / Math.max(number, most))) : 0;
  }

  return class Heatmap {
    constructor(table, words, text) {
      this.table = table;
      this.body = table.tBodies[0];
      this.words = words;
      this.text = text;
      this.rows = [];
      this.kind = "ready";
      this.here = [0, 0];
      this.said = document.getElementById("dq-heat-said");
      this.hint = this.said.textContent;
      this.body.addEventListener("pointerover", (event) => this.tell(event.target.closest("td")));
      this.body.addEventListener("pointerleave", () => this.tell(null));
      this.body.addEventListener("focusin", (event) => this.tell(event.target.closest("td")));
      this.body.addEventListener("focusout", () => this.tell(null));
      this.body.addEventListener("keydown", (event) => this.key(event));
    }
    set(rows, kind) {
      this.rows = rows;
      this.kind = kind;
      this.draw();
    }
    draw() {
      const at = KINDS.indexOf(this.kind);
      const most = Math.max(0, ...this.rows.flatMap((row) => row.shards.map((cell) => cell[at])));
      this.rows.forEach((row, place) => this.draw_row(row, this.row(place), at, most));
      while (this.body.rows.length > this.rows.length) this.body.lastElementChild.remove();
      document.getElementById("dq-heat-most").textContent = this.text(most);
      this.here = [Math.min(this.here[0], Math.max(0, this.rows.length - 1)), this.here[1]];
      const cell = this.cell(...this.here) || this.cell(0, 0);
      if (cell && !this.body.querySelector("td[tabindex='0']")) cell.tabIndex = 0;
      const read = this.body.querySelector("td:focus, td:hover");
      if (read) this.tell(read);
    }
    row(place) {
      const found = this.body.rows[place];
      if (found) return found;
      const made = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      made.append(head);
      this.body.append(made);
      return made;
    }
    draw_row(row, into, at, most) {
      const name = row.epoch === null ? row.name : `${row.name}, ${this.words.epoch.replace("%s", row.epoch)}`;
      if (into.cells[0].textContent.trim() !== name) into.cells[0].textContent = name;
      row.shards.forEach((numbers, place) => {
        const cell = into.cells[place + 1] || into.appendChild(document.createElement("td"));
        const words = this.text(numbers[at]);
        const colour = `dq-h${level(numbers[at], most)}`;
        if (cell.textContent !== words) cell.textContent = words;
        if (cell.className !== colour) cell.className = colour;
        if (!cell.hasAttribute("tabindex")) cell.tabIndex = -1;
      });
      while (into.cells.length > row.shards.length + 1) into.lastElementChild.remove();
    }
    cell(row, place) {
      const found = this.body.rows[row];
      return found ? found.cells[place + 1] : undefined;
    }
    tell(cell) {
      if (!cell || !this.body.contains(cell)) {
        this.said.textContent = this.hint;
        return;
      }
      const row = this.rows[cell.parentElement.rowIndex];
      const numbers = row && row.shards[cell.cellIndex - 1];
      if (!numbers) return;
      const parts = KINDS.map((kind, at) => `${this.words[`heat-${kind}`]} ${this.text(numbers[at])}`);
      const shard = this.words.shard.replace("%s", cell.cellIndex - 1);
      this.said.textContent = `${cell.parentElement.cells[0].textContent.trim()}, ${shard}: ${parts.join(", ")}`;
    }
    key(event) {
      const cell = event.target.closest("td");
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!cell || !step) return;
      event.preventDefault();
      const next = this.cell(cell.parentElement.rowIndex + step[0], cell.cellIndex - 1 + step[1]);
      if (!next) return;
      cell.tabIndex = -1;
      next.tabIndex = 0;
      this.here = [next.parentElement.rowIndex, next.cellIndex - 1];
      next.focus();
    }
  };
})();
