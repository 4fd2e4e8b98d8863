// What a page does where scripts run: tables sort by a click on a header, and commands are copied.
{
  const value = cell => {
    const text = cell.textContent.trim().replaceAll(",", "");
    const number = parseFloat(text.replace(/^(\(|<= |[^[\d]*\[)/, ""));  // of a verdict the lower bound
    return [Number.isNaN(number), number, text];
  };
  const compare = (a, b) => a[0] - b[0] || (a[0] ? a[2].localeCompare(b[2]) : a[1] - b[1]);
  for (const head of document.querySelectorAll("thead th")) {
    head.tabIndex = 0;
    head.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0], column = head.cellIndex;
      const down = head.ariaSort === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.ariaSort = down ? "descending" : "ascending";
      const rows = [...body.rows].sort((a, b) => compare(value(a.cells[column]), value(b.cells[column])));
      body.append(...(down ? rows.reverse() : rows));
    });
    head.addEventListener("keydown", event => { if (event.key === "Enter") head.click(); });
  }
  for (const command of document.querySelectorAll("pre.command")) {
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.addEventListener("click", () => {
      getSelection().selectAllChildren(command.querySelector("code"));
      if (navigator.clipboard) navigator.clipboard.writeText(command.querySelector("code").textContent);
      else document.execCommand("copy");  // of a page that was opened as a file
      button.textContent = "Copied";
    });
    command.append(button);
  }
}
