// Shows the charts of a page in the place of its figures, which remain for print.
if (!matchMedia("(prefers-reduced-motion: reduce)").matches)
  for (const holder of document.querySelectorAll("figure .charts")) {
    const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const options = {actions: false, ast: true, renderer: "svg", tooltip: {theme}};
    holder.parentNode.classList.add("live");
    const specs = JSON.parse(holder.querySelector("script").textContent);
    const divs = specs.map(() => document.createElement("div"));
    holder.append(...divs);  // all, so that each has its width
    for (const [i, spec] of specs.entries()) {
      const div = divs[i];
      spec.width = div.clientWidth - spec.usermeta.margin;
      const legend = spec.encoding.color?.condition.legend;
      if (legend) {  // as many columns as hold the longest name
        const longest = Math.max(...spec.encoding.color.condition.scale.domain.map(x => x.length));
        legend.labelLimit = Math.min(legend.labelLimit, div.clientWidth - 40);
        const column = 46 + Math.min(legend.labelLimit, 7 * longest);
        legend.columns = Math.max(1, Math.floor(div.clientWidth / column));
      }
      vegaEmbed(div, spec, options).catch(error => {
        console.error(error);
        holder.parentNode.classList.remove("live");
      });
    }
  }
