// Light and dark: as the system has it, or as chosen.

const STORE = "octavo.theme";
const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const system = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try {
    return localStorage.getItem(STORE) ?? "auto";
  } catch {
    return "auto";
  }
}

/** Applies the theme, now and when it changes; `onChange` is told, and `button` changes it. */
export function followTheme(button, onChange) {
  let choice = Object.hasOwn(NAMES, stored()) ? stored() : "auto";
  const apply = () => {
    const isDark = choice === "auto" ? system.matches : choice === "dark";
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.textContent = NAMES[choice];
    button.setAttribute("aria-label", `Theme: ${choice === "auto" ? "as the system" : choice}`);
    onChange();
  };
  button.addEventListener("click", () => {
    choice = NEXT[choice];
    try {
      localStorage.setItem(STORE, choice);
    } catch {
      // Private windows may refuse; the choice then lasts as long as the page.
    }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}
