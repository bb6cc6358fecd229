// What the page begins with.

startExplorer(document.getElementById("explorer"));
startTables(document.getElementById("tables"));
startTraining(document.getElementById("training"));
document
  .querySelector("footer")
  .append(`equipoise ${data.version}. This page is one file: it needs no server and no network.`);
