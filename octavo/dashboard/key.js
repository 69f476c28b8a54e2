// Asks for an API key.

import { byId, setText } from "./dom.js";

const TITLES = { stats: "Key for the statistics", requests: "Key for requests" };

/** Asks for a key; resolves to it, or to null once the user has said no. */
export function askForKey(kind, message) {
  const dialog = byId("key-dialog");
  const field = byId("key-field");
  if (dialog.open) return Promise.resolve(null);
  setText(byId("key-title"), TITLES[kind]);
  setText(byId("key-why"), `The server says: ${message}`);
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const key = field.value.trim();
        field.value = "";
        resolve(dialog.returnValue === "use" && key ? key : null);
      },
      { once: true },
    );
  });
}
