// ---- Tables that sort and can be saved ----

/**
 * A column is {head, unit, kind, value, half, cell, best}: `value` and `half` (of the 95 % interval) are numbers or
 * texts of a row, for sorting and for CSV; `cell` is what is shown instead, `best` the number of the best row.
 */
function table(columns, rows, heading) {
  const lines = rows.map((row, number) => html("tr", {},
    html("th", { scope: "row" }, ...heading(row)),
    ...columns.slice(1).map((one) => cell(one, row, number))));
  const body = html("tbody", {}, ...lines);
  const heads = columns.map((one) => columnHead(one));
  columns.forEach((one, place) => heads[place].querySelector("button")?.addEventListener("click", () => {
    const direction = nextDirection(heads[place]);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    if (direction) heads[place].setAttribute("aria-sort", direction);
    body.append(...sorted(rows, one.value, direction).map((number) => lines[number]));
  }));
  return html("table", {}, html("thead", {}, html("tr", {}, ...heads)), body);
}

function columnHead({ head, unit, kind = null, value }) {
  const texts = [head, ...(unit ? [html("span", { class: "unit" }, unit)] : [])];
  const content = value ? [html("button", { type: "button", class: "sort", title: "Sort by this column" }, ...texts)] : texts;
  return html("th", { scope: "col", class: kind }, ...content);
}

/** Up, then down, then the order that the table had at first. */
const nextDirection = (head) =>
  ({ ascending: "descending", descending: null })[head.getAttribute("aria-sort")] ?? (head.hasAttribute("aria-sort") ? null : "ascending");

/** Numbers of rows in order; what is unknown comes last in both directions. */
function sorted(rows, value, direction) {
  const order = [...rows.keys()];
  if (!direction) return order;
  const sign = direction === "ascending" ? 1 : -1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  const known = order.filter((number) => isKnown(value(rows[number])));
  known.sort((a, b) => sign * compare(value(rows[a]), value(rows[b])) || a - b);
  return [...known, ...order.filter((number) => !isKnown(value(rows[number])))];
}

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function cell(one, row, number) {
  const value = one.cell ? one.cell(row) : one.value(row);
  const marked = one.best === number ? "best" : one.kind ?? null;
  return html("td", { class: marked }, ...[isKnown(value) ? value : UNKNOWN].flat());
}

/** A mean and, on a line of its own, its interval: twelve columns shall fit on a desk. */
function spread(fact, factor, digits) {
  if (!isKnown(fact?.mean)) return [UNKNOWN];
  const mean = (factor * fact.mean).toFixed(digits);
  return fact.half === null ? [mean] : [mean, html("span", { class: "unit" }, `± ${(factor * fact.half).toFixed(digits)}`)];
}

/** A column of means with intervals; `fact` gives {mean, half} of a row. */
const measured = (head, unit, fact, factor, digits) => ({
  head, unit,
  value: (row) => (isKnown(fact(row)?.mean) ? factor * fact(row).mean : null),
  half: (row) => (isKnown(fact(row)?.half) ? factor * fact(row).half : null),
  cell: (row) => spread(fact(row), factor, digits),
});

/** Put a table into its place, with a way to save it and a hint where it goes on sideways. */
function showTable(id, columns, rows, heading) {
  const host = byId(id);
  host.replaceChildren(table(columns, rows, heading));
  host.tools?.remove();
  const save = html("button", { type: "button", class: "save", "aria-label": `Save as CSV: ${host.getAttribute("aria-label")}`,
    onclick: () => saveText(csvText(columns, rows), id.replace(/-table$/, ""), "csv") }, "CSV");
  host.tools = html("div", { class: "tools small" }, html("span", { class: "more muted" }, "The table goes on: scroll sideways →"), save);
  host.after(host.tools);
  watchWidth(host);
}

const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => markOverflow(target)));

function watchWidth(host) {
  widths.observe(host);
  markOverflow(host);
  host.onscroll = () => markOverflow(host);
}

/** Whether something is hidden to the right, which a shadow and a sentence say. */
function markOverflow(host) {
  const hidden = host.scrollWidth - host.clientWidth;
  host.classList.toggle("goes-on", hidden - host.scrollLeft > 2);
  host.classList.toggle("came-from", host.scrollLeft > 2);
  host.tools?.classList.toggle("goes-on", hidden > 2);
}

function csvText(columns, rows) {
  const title = ({ head, unit }) => (unit ? `${head} (${unit})` : head);
  const kept = columns.filter((one) => one.value);
  const heads = kept.flatMap((one) => (one.half ? [title(one), `${title(one)}, 95 % half-width`] : [title(one)]));
  const lines = rows.map((row) => kept.flatMap((one) => (one.half ? [one.value(row), one.half(row)] : [one.value(row)])));
  return [heads, ...lines].map((line) => line.map(csvField).join(",")).join("\r\n") + "\r\n";
}

/** A text that a spreadsheet might take for a formula gets an apostrophe before it. */
function csvField(value) {
  if (!isKnown(value)) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll("\"", "\"\"")}"` : text;
}
