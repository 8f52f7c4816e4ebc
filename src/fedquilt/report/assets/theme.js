"use strict";
// Light or dark: as the system has it, until the reader chooses.
(function () {
  const button = document.getElementById("theme");
  const dress = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to the ${theme === "dark" ? "light" : "dark"} theme`);
  };
  const kept = () => { try { return localStorage.getItem("fedquilt-theme"); } catch { return null; } };
  const system = matchMedia("(prefers-color-scheme: dark)");
  dress(kept() ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => { if (!kept()) dress(system.matches ? "dark" : "light"); });
  button.addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("fedquilt-theme", theme); } catch { /* a page without storage forgets */ }
    dress(theme);
  });
})();
