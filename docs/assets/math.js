// arithmatex marks formulas: <span class="arithmatex">\(...\)</span> or <div class="arithmatex">\[...\]</div>.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const text = place.textContent.trim();
    const displayMode = !text.startsWith("\\(");
    const body = /^\\[([]/.test(text) ? text.slice(2, -2) : text;
    katex.render(body, place, { displayMode, throwOnError: false });
  }
});
