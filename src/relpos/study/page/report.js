"use strict";
// Draws every chart of the page, and keeps one scheme singled out in all of them and in the tables.
(() => {
  const specifications = JSON.parse(document.getElementById("charts").textContent);
  const narrow = window.matchMedia("(max-width: 640px)");
  const views = new Map();
  let single = "";

  function show(scheme) {
    single = scheme;
    for (const view of views.values()) {
      if (view.getState().signals.single !== undefined) view.signal("single", single).runAsync();
    }
    for (const chip of document.querySelectorAll("[data-single]")) {
      chip.setAttribute("aria-pressed", String(chip.dataset.single === single));
    }
    for (const part of document.querySelectorAll("[data-scheme]")) {
      part.classList.toggle("faded", single !== "" && part.dataset.scheme !== single);
    }
  }

  async function draw(place) {
    const specification = structuredClone(specifications[place.id]);
    const names = "names" in place.dataset && !narrow.matches;
    for (const parameter of specification.params ?? []) {
      if (parameter.name === "names") parameter.value = names;
      if (parameter.name === "single") parameter.value = single;
    }
    views.get(place.id)?.finalize();
    const { view } = await vegaEmbed(place, specification, {
      actions: false, renderer: "svg", ast: true, padding: { left: 2, top: 4, bottom: 4, right: 8 },
    });
    views.set(place.id, view);
    view.addEventListener("click", (event, item) => {
      const scheme = item?.datum?.scheme ?? item?.items?.[0]?.datum?.scheme;
      show(scheme === undefined || scheme === single ? "" : scheme);
    });
  }

  async function drawAll() {
    const places = [...document.querySelectorAll("[data-chart]")];
    await Promise.all(places.map(draw));
    document.documentElement.dataset.drawn = String(places.length);
  }

  document.querySelector(".chips").addEventListener("click", (event) => {
    const chip = event.target.closest("[data-single]");
    if (chip) show(chip.dataset.single === single ? "" : chip.dataset.single);
  });
  narrow.addEventListener("change", drawAll);
  drawAll();
})();
