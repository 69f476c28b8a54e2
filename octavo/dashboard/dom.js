// Elements and text. All text goes in as text nodes: nothing that a server says is ever markup.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** An element with properties (or `data`, `aria`, `on`) and children: nodes or text. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "on")
      for (const [type, f] of Object.entries(value)) node.addEventListener(type, f);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "aria")
      for (const [k, v] of Object.entries(value)) node.setAttribute(`aria-${k}`, v);
    else if (name === "role" || name === "for" || name === "scope") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Writes text if it is another one: leaves selections and screen readers in peace. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The value of a custom property of the theme in force. */
export const themeValue = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
