"use strict";
// Light and dark: what the reader has chosen with the button, or else what the system has.
const myriadTheme = (() => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = { show, changed() {} }; // changed is called when what is shown has changed

  // remembered is the theme that the reader chose, "" for that of the system. With an
  // argument it is remembered anew.
  function remembered(theme) {
    try { // a page opened from disk may have no storage
      if (theme !== undefined) localStorage.setItem("myriad-theme", theme);
      return localStorage.getItem("myriad-theme");
    } catch { return theme; }
  }
  function show(theme) { if (theme === "dark" || theme === "light") root.dataset.theme = theme; else delete root.dataset.theme; }
  show(remembered());

  dark.addEventListener("change", () => theme.changed());
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("_theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      const system = dark.matches ? "dark" : "light";
      const next = (root.dataset.theme || system) === "dark" ? "light" : "dark";
      show(remembered(next === system ? "" : next));
      theme.changed();
    });
  });
  return theme;
})();
