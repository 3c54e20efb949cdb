const { make } = globalThis.turnwiseTokens;
export { make };

export class Trouble extends Error {}

export const api = async (path, parameters, signal) => {
  let response;
  try {
    response = await fetch(`/api/${path}?${new URLSearchParams(parameters)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer; what is shown may be old.");
  }
  if (response.status >= 500) throw new Trouble("The server failed at this; its output says why.");
  const found = await response.json();
  if (!response.ok) throw new Trouble(found.error);
  return found;
};

// Asks the server for something that changes a run; the token of the address goes along.
export const post = async (path, parameters, body) => {
  const token = new URLSearchParams(location.search).get("token") || "";
  const headers = { "Content-Type": "application/json", "X-Turnwise-Token": token };
  let response;
  try {
    response = await fetch(`/api/${path}?${new URLSearchParams(parameters)}`,
      { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new Trouble("The server does not answer; nothing was asked.");
  }
  const found = await response.json();
  if (!response.ok) throw new Trouble(found.error);
  return found;
};

export const mayAsk = () => new URLSearchParams(location.search).has("token");

export const address = (view, parameters) => `#${view}?${new URLSearchParams(parameters)}`;

export const link = (text, view, parameters) => {
  const element = make("a", "", text);
  element.href = address(view, parameters);
  return element;
};

export const button = (text, act) => {
  const element = make("button", "", text);
  element.type = "button";
  element.onclick = act;
  return element;
};

const cellOf = (tag, value, className) => {
  const element = make(tag, className);
  if (value instanceof Node) element.append(value);
  else element.textContent = value;
  return element;
};

// Rows of texts or elements; the first of each is its head.
export const table = (head, rows, { classes = [], note = "" } = {}) => {
  const body = make("tbody");
  rows.forEach((row) => {
    const line = make("tr");
    row.forEach((value, at) => {
      const element = cellOf(at ? "td" : "th", value, classes[at] || "");
      if (!at) element.scope = "row";
      line.append(element);
    });
    body.append(line);
  });
  const top = make("tr");
  head.forEach((value, at) => top.append(cellOf("th", value, classes[at] || "")));
  const header = make("thead");
  header.append(top);
  const whole = make("table");
  whole.append(header, body);
  const scroll = make("div", "scroll");
  scroll.append(whole);
  if (note) scroll.append(make("p", "note", note));
  return scroll;
};

export const section = (id, title, ...content) => {
  const element = make("section");
  element.id = id;
  element.append(make("h2", "", title), ...content);
  return element;
};

export const details = (title, ...content) => {
  const element = make("details");
  element.append(make("summary", "", title), ...content);
  return element;
};

// Charts that are drawn again only where their data has changed.
export const chartBox = () => {
  const box = make("div", "charts");
  const drawn = new Map();
  const update = (charts) => {
    const names = new Set(charts.map((chart) => chart.title));
    for (const [title, one] of drawn) {
      if (!names.has(title)) {
        one.clear();
        one.figure.remove();
        drawn.delete(title);
      }
    }
    charts.forEach((chart) => {
      const text = JSON.stringify(chart);
      const known = drawn.get(chart.title);
      if (known && known.text === text) return;
      const figure = known ? known.figure : make("figure");
      if (known) known.clear();
      else box.append(figure);
      const place = make("div", "chart");
      place.setAttribute("role", "img");
      place.setAttribute("aria-label", chart.label);
      figure.replaceChildren(make("figcaption", "", chart.title), place);
      if (chart.note) figure.append(make("p", "note", chart.note));
      drawn.set(chart.title, { figure, text, clear: globalThis.turnwiseCharts.draw(place, chart.data) });
    });
  };
  return { box, update };
};

export const duration = (seconds) => {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
};

export const score = (value, error) => {
  if (value === null) return "-";
  return error === null || error === undefined ? value.toFixed(3) : `${value.toFixed(3)} ± ${error.toFixed(3)}`;
};

export const count = (value) => value.toLocaleString("en");

export const stateMark = (state) => make("span", `state ${state}`, state);
