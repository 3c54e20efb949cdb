import {
  address, api, button, chartBox, details, duration, link, make, score, section, stateMark, table,
} from "./parts.js";
import { statusBox } from "./status.js";

const ORDERS = {
  "last written": (a, b) => b.written - a.written,
  name: (a, b) => a.name.localeCompare(b.name),
  score: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity),
  duration: (a, b) => b.seconds - a.seconds,
};

const select = (label, names, change) => {
  const element = make("select");
  element.setAttribute("aria-label", label);
  names.forEach(([value, text]) => {
    const option = make("option", "", text);
    option.value = value;
    element.append(option);
  });
  element.onchange = change;
  return element;
};

export const listView = async (root, parameters, signal) => {
  const chosen = new Set();
  let runs = [];
  let seen = "";
  const filter = make("input");
  filter.type = "search";
  filter.placeholder = "filter by name, method, policy, verdict";
  filter.setAttribute("aria-label", "Filter the runs");
  const states = select("State", [["", "every state"], ...["running", "finished", "stopped", "silent"].map((s) => [s, s])], () => show());
  const order = select("Order", Object.keys(ORDERS).map((name) => [name, `by ${name}`]), () => show());
  const together = button("Compare", () => {
    location.hash = address("compare", [...chosen].map((name) => ["run", name]));
  });
  const bar = make("div", "bar");
  bar.append(filter, states, order, together);
  const place = make("div");
  place.id = "runs";
  root.append(make("h1", "", ""), bar, place);
  filter.oninput = () => show();

  const row = (run) => {
    const tick = make("input");
    tick.type = "checkbox";
    tick.checked = chosen.has(run.name);
    tick.setAttribute("aria-label", `Compare ${run.name}`);
    tick.onchange = () => {
      if (tick.checked) chosen.add(run.name);
      else chosen.delete(run.name);
      together.disabled = chosen.size < 2;
    };
    return [
      link(run.name, "run", { run: run.name }), tick, stateMark(run.state), run.method, run.policy,
      score(run.score, run.stderr), run.planned ? `${run.steps} / ${run.planned}` : String(run.steps),
      duration(run.seconds), run.verdict || "-",
    ];
  };

  const show = () => {
    const words = filter.value.toLowerCase();
    const kept = runs.filter((run) =>
      (!states.value || run.state === states.value) &&
      [run.name, run.method, run.policy, run.verdict].join("\n").toLowerCase().includes(words));
    kept.sort(ORDERS[order.value]);
    together.disabled = chosen.size < 2;
    const head = ["run", "compare", "state", "method", "policy", "score", "steps", "time", "verdict"];
    const classes = ["text", "", "text", "text", "text", "", "", "", "text wide"];
    const told = `${kept.length} of ${runs.length} runs`;
    place.replaceChildren(runs.length ? table(head, kept.map(row), { classes, note: told })
      : make("p", "", "No run is in this folder yet."));
  };

  return async () => {
    const found = await api("runs", {}, signal);
    root.firstChild.textContent = found.root;
    const text = JSON.stringify(found.runs);
    if (text === seen) return false;
    seen = text;
    runs = found.runs;
    show();
    return false;
  };
};

const LEDGER = ["", "started", "= finished", "+ stopped", "+ lost", "+ cancelled", "coverage"];

const keyed = (head, rows) =>
  table(head, rows.map(([style, name, ...cells]) => {
    const label = make("span");
    label.append(make("span", `key ${style}`), name);
    return [label, ...cells];
  }));

export const runView = async (root, parameters, signal) => {
  const run = parameters.get("run");
  const header = make("header");
  const gaps = make("ul", "gaps");
  const [curves, slimes, gpus, times] = [chartBox(), chartBox(), chartBox(), chartBox()];
  const open = new Set();
  const changing = make("div");
  const more = make("div");
  const slime = section("slime", "slime's own numbers", slimes.box);
  const ranks = make("div");
  const gpu = section("gpus", "GPUs", gpus.box, ranks);
  const now = statusBox(run);
  root.append(header, now.box, gaps, section("curves", "Curves", curves.box), slime, gpu, changing,
    section("time", "Endings and time", times.box), more);
  let seen = "";

  const kept = (title, ...content) => {
    const element = details(title, ...content);
    element.open = open.has(title);
    element.ontoggle = () => (element.open ? open.add(title) : open.delete(title));
    return element;
  };

  const head = (found) => {
    header.className = found.learned ? "learned" : "";
    const cards = make("dl", "cards");
    found.cards.forEach(([name, value]) => {
      const card = make("div");
      card.append(make("dt", "", name), make("dd", "", value));
      cards.append(card);
    });
    const title = make("h1", "", `${found.name} `);
    title.append(stateMark(found.state));
    const links = make("p");
    links.append(link("Episodes", "episodes", { run }));
    header.replaceChildren(title, make("p", "verdict", found.verdict || "No verdict: this run has not ended."),
      cards, make("p", "note", found.status), links);
  };

  const show = (found) => {
    head(found);
    gaps.hidden = !found.gaps.length;
    gaps.replaceChildren(...found.gaps.map((text) => make("li", "", text)));
    curves.update(found.charts);
    slime.hidden = !found.slime.rows.length;
    slimes.update(found.slime_charts);
    gpu.hidden = !found.gpu_charts.length && !found.gpus.rows.length;
    gpus.update(found.gpu_charts);
    ranks.replaceChildren(...(found.gpus.rows.length ? [table(found.gpus.head, found.gpus.rows,
      { classes: ["", "text", "", "", "", "text", "", "text"] })] : []));
    times.update([found.ending_chart, found.time_chart, found.wait_chart].filter(Boolean));
    const { ledger } = found;
    const balance = make("p", ledger.balances ? "" : "bad", ledger.balances ? "It holds in every row."
      : "It does not hold in every row: no score here means anything until that is explained.");
    changing.replaceChildren(section("ledger", "Every rollout accounted for", balance,
      table(LEDGER, ledger.lines), kept("Step by step", table(LEDGER, ledger.steps,
        { note: ledger.left_out ? `${ledger.left_out} rows between these are left out.` : "" }))));
    const tables = (one, title) => one.rows.length ? [kept(title, table(one.head, one.rows, { note: one.note }))] : [];
    const claim = make("ul");
    claim.append(...found.claim.map((text) => make("li", "", text)));
    more.replaceChildren(
      keyed(["ending", "training", "evaluation"], found.endings),
      keyed(["stage", "time", "share", "mean"], found.stages),
      ...(found.waits.length ? [keyed(["an episode spends on", "mean"], found.waits)] : []),
      section("more", "Numbers", ...tables(found.measures, "What was measured"),
        ...tables(found.events, "What happened: stalls and requests"),
        ...tables(found.counted, "What the episodes counted"),
        ...tables(found.numbers, "The numbers behind the curves"), ...tables(found.slime, "All of slime's numbers")),
      section("claim", "What this shows, and what it does not", claim),
      section("config", "Configuration", make("p", "", found.config.told),
        ...(found.config.changed.length ? [table(["", "of this run", "without the command line"], found.config.changed,
          { classes: ["text", "text wide", "text wide"] })] : []),
        kept(`All ${found.config.rows.length} settings, as the run was started with them`,
          table(["", ""], found.config.rows, { classes: ["text", "text wide"] }))));
    more.querySelector("#claim").hidden = !found.claim.length;
  };

  return async () => {
    const [found, status] = await Promise.all([api("run", { run }, signal), api("status", { run }, signal)]);
    now.show(status);
    const text = JSON.stringify(found);
    if (text !== seen) show(found);
    seen = text;
    return false;
  };
};

export const compareView = async (root, parameters, signal) => {
  const names = parameters.getAll("run");
  const by = parameters.get("by") || "step";
  const other = by === "step" ? "seconds" : "step";
  const legend = make("ul", "legend");
  const { PALETTE } = globalThis.turnwiseCharts;
  names.forEach((name, at) => {
    const item = make("li");
    const mark = make("span", "series");
    mark.style.setProperty("--series", `var(--${PALETTE[at % PALETTE.length]})`);
    item.append(mark, link(name, "run", { run: name }));
    legend.append(item);
  });
  const axis = make("p");
  axis.append(link(`Draw over ${other === "step" ? "training steps" : "seconds of work"}`, "compare",
    [...names.map((name) => ["run", name]), ["by", other]]));
  const curves = chartBox();
  const [paired, options] = [make("div"), make("div")];
  root.append(make("h1", "", `${names.length} runs beside each other`), legend, axis,
    section("paired", "The tasks that both have", paired), section("curves", "Curves", curves.box),
    section("options", "Options that differ", options));
  return async () => {
    const found = await api("compare", [...names.map((name) => ["run", name]), ["by", by]], signal);
    curves.update(found.charts);
    paired.replaceChildren(...found.differences.flatMap((one) => one.found.length
      ? one.found.map((difference) => make("p", "", `${one.run} against ${one.against}` +
        `${difference.dataset ? ` on ${difference.dataset}` : ""}: ${difference.text}` +
        (difference.only_one ? `; ${difference.only_one} tasks are in one of them alone` : "")))
      : [make("p", "", `${one.run} against ${one.against}: no task was evaluated in both.`)]));
    options.replaceChildren(found.options.length
      ? table(["", ...found.runs], found.options.map(([name, values]) => [name, ...values]),
        { classes: ["text", ...found.runs.map(() => "text wide")] })
      : make("p", "", "None."));
    return false;
  };
};
