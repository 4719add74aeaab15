// ---- Saving tables and pictures ----

const KIND_OF = { csv: "text/csv", svg: "image/svg+xml" };

function saveText(text, name, kind) {
  const address = URL.createObjectURL(new Blob([text], { type: `${KIND_OF[kind]};charset=utf-8` }));
  const title = `${page.title} ${name}`.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80);
  html("a", { href: address, download: `${title}.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// what the page's style gives to pictures, which must stand in a file of its own
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "opacity", "font-size", "font-family", "font-weight"];

/** Lines with their schemes' names, in rows below a picture: the page's own legend stays behind. */
function savedLegend(schemes, width, top) {
  const style = { "font-size": "11.5px", "font-family": getComputedStyle(document.body).fontFamily, fill: inks.text };
  let [x, y] = [8, top + 14];
  return schemes.map((index) => {
    const { label } = page.schemes[index];
    const room = 44 + 7.2 * label.length;
    if (x > 8 && x + room > width) [x, y] = [8, y + 18];
    const line = svg("path", { d: `M${x} ${y - 4}h24`, stroke: inks.schemes[index], "stroke-width": 3, "stroke-dasharray": dashOf(index) });
    const entry = svg("g", { "data-bottom": y + 8 }, line, svg("text", { ...style, x: x + 30, y }, label));
    x += room;
    return entry;
  });
}

/** The picture as it looks now, as a file that needs no page; `schemes` are those whose lines it must name. */
function svgFile(picture, title, schemes = []) {
  const copy = picture.cloneNode(true);
  const originals = [picture, ...picture.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, number) => {
    const style = getComputedStyle(originals[number]);
    for (const name of DRAWN) node.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["style", "class", "tabindex"]) node.removeAttribute(name);
  });
  const { width, height: drawn } = picture.getBoundingClientRect();
  const legend = savedLegend(schemes, width, drawn);
  const height = Number(legend.at(-1)?.dataset.bottom ?? drawn);
  copy.append(...legend);
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ground = svg("rect", { width: "100%", height: "100%", fill: inks.card });
  copy.prepend(svg("title", {}, title), ground);
  for (const [name, value] of Object.entries({ width, height })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}

/** A button that saves the picture which `find` gives when it is pressed, and names the schemes that `shown` gives. */
const saveSvgButton = (find, name, shown = () => []) => html("button", { type: "button", class: "save", "aria-label": `Save as SVG: ${name}`,
  onclick: () => saveText(svgFile(find(), `${page.title}: ${name}`, shown()), name, "svg") }, "SVG");
