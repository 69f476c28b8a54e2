// Before anything is painted: the theme, so that nothing flashes. See theme.js for the rest.
(() => {
  let choice = "auto";
  try {
    choice = localStorage.getItem("octavo.theme") ?? "auto";
  } catch {
    // Private windows may refuse.
  }
  const isDark =
    choice === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : choice === "dark";
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
})();
