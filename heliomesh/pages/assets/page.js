// ---- Everything ----

function showSubtitle() {
  const { devices } = networks[0];
  const what = page.scenarios.length === 1 ? `, ${several(devices, "device")}, ${several(page.runs[0].slots, "slot")}` : "";
  const thinned = page.every > 1 ? `; the player shows one slot in ${page.every}` : "";
  byId("subtitle").textContent = `${several(page.runs.length, "run")} of ${several(page.schemes.length, "scheme")} on `
    + `${several(page.scenarios.length, "scenario")}${what}${thinned}`;
}

startTheme(() => {
  drawKey();
  player.scenes.forEach((scene) => scene.draw());
});
showSubtitle();
showMissing();
answerPlot.start();
showResults();
showCharts();
showPlayers();
deviceView.start();
showLedger();
showOverhead();
showOrigin();
links.start();
