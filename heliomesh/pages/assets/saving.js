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

/** The picture as it looks now, as a file that needs no page. */
function svgFile(picture, title) {
  const copy = picture.cloneNode(true);
  const originals = [picture, ...picture.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, number) => {
    const style = getComputedStyle(originals[number]);
    for (const name of DRAWN) node.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["style", "class", "tabindex"]) node.removeAttribute(name);
  });
  const { width, height } = picture.getBoundingClientRect();
  const ground = svg("rect", { width: "100%", height: "100%", fill: inks.card });
  copy.prepend(svg("title", {}, title), ground);
  for (const [name, value] of Object.entries({ width, height })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}

/** A button that saves the picture which `find` gives when it is pressed. */
const saveSvgButton = (find, name) => html("button", { type: "button", class: "save", "aria-label": `Save as SVG: ${name}`,
  onclick: () => saveText(svgFile(find(), `${page.title}: ${name}`), name, "svg") }, "SVG");
