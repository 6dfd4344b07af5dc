// The page: takes what the stream brings and puts it where it belongs.
import { chart, rivers, shape, sparkline, SPAN_S } from "./draw.js";
import { $, make, offerThemes, say } from "./parts.js";
import { follow } from "./stream.js";
import { ago, bytes, compact, compactCount, count, duration, percent, visible } from "./words.js";

/** Rates are averages over this long, because a warehouse commits every few seconds only. */
const RATE_WINDOW_S = 10;
/** Without a word for this long, the counters in between are unknown. */
const GAP_S = 10;
const EPISODES_SHOWN = 20;

let history = [];
let day = { minutes: [], episodes: [], written: {} };
let status = null;
let heard = 0;
let skew = 0;
let snapshotSeen = new Map();

// Small tools

/** One that may be long: it breaks behind its slashes, and inside of a name only where that alone does not fit. */
function sayPath(id, text) {
  const place = $(id);
  if (place.textContent === text) return;
  place.replaceChildren(...text.split(/(?<=\/)/).flatMap((piece) => [piece, document.createElement("wbr")]));
}

function mark(id, text, tone) {
  const place = typeof id === "string" ? $(id) : id;
  say(place, text);
  place.classList.remove("good", "warn", "bad");
  if (tone) place.classList.add(tone);
}

function fill(bar, share, tone, words) {
  bar.firstElementChild.style.width = (100 * Math.min(1, Math.max(0, share))).toFixed(2) + "%";
  bar.classList.remove("good", "warn", "bad");
  if (tone) bar.classList.add(tone);
  bar.setAttribute("aria-valuemin", 0);
  bar.setAttribute("aria-valuemax", 100);
  bar.setAttribute("aria-valuenow", Math.round(100 * share));
  bar.setAttribute("aria-valuetext", visible(words));
}

// Rates: differences of counters that start again from 0 when a process does

function rates(read) {
  const grown = [];
  let sum = 0;
  const found = [];
  let oldest = 0;
  history.forEach((sample, i) => {
    const value = read(sample);
    const before = i ? read(history[i - 1]) : null;
    const known = value != null && before != null && sample.at - history[i - 1].at < GAP_S;
    if (known) sum += Math.max(0, value - before);
    else oldest = i;
    grown.push(sum);
    while (sample.at - history[oldest].at > RATE_WINDOW_S) oldest++;
    const seconds = sample.at - history[oldest].at;
    const enough = seconds > 0.8 * RATE_WINDOW_S || (oldest === 0 && history.length < 2 * RATE_WINDOW_S && seconds > 0);
    found.push({ at: sample.at, value: known && enough ? (sum - grown[oldest]) / seconds : null });
  });
  return found;
}

const present = (points) => points.at(-1)?.value ?? 0;

/** Whole minutes that the charts show. */
const minutes = () => Math.min(SPAN_S / 60, Math.max(1, Math.ceil((status.at - (history[0]?.at ?? status.at)) / 60)));
const captured = () => rates((sample) => sample.position);
const written = (store) => rates((sample) => sample.stores[store]?.written);
const colour = (index) => `--series-${index % 6}`;

// The parts of the page

function loading() {
  return status.followers.filter((follower) => follower.catch_up).map((follower) => follower.store);
}

function drawVerdict() {
  const stops = status.stops.length;
  const problems = status.problems.length;
  if (stops) mark("verdict", stops === 1 ? "Stopped: an operator has to decide" : `${stops} parts stopped: an operator has to decide`, "bad");
  else if (problems) mark("verdict", problems === 1 ? "1 problem" : `${problems} problems`, "warn");
  else if (status.capture?.state === "snapshot") mark("verdict", "Healthy, taking a snapshot", "good");
  else if (loading().length) mark("verdict", `Healthy, loading ${loading().join(", ")}`, "good");
  else mark("verdict", "Healthy", "good");
  document.title = (stops ? "■ stopped" : problems ? "▲ " + problems : "●") + " · Headwater";
}

function drawStops() {
  const box = $("stops");
  const now = status.at;
  const wanted = JSON.stringify(status.stops);
  box.hidden = !status.stops.length;
  if (box.dataset.shows !== wanted) {
    box.dataset.shows = wanted;
    box.replaceChildren(...status.stops.map(stopBox));
  }
  for (const place of box.querySelectorAll(".since")) say(place, "since " + ago(Math.max(0, now - place.dataset.since)));
}

function stopBox(stop) {
  const box = make("div", "stop");
  box.setAttribute("role", "alert");
  const title = make("h2", "", `${stop.state} · ${stop.part.replace(/^follow-/, "store ").replace(/^view-(.*)@next$/, "next generation of view $1").replace(/^view-/, "view ")}`);
  const since = make("span", "since");
  since.dataset.since = stop.since;
  title.append(since);
  const way = make("p", "wayout");
  const command = /^cdc \S/.test(stop.hint) ? stop.hint : `cdc resume ${stop.name}`;
  if (stop.hint && stop.hint !== command) way.append(make("span", "", stop.hint + ", then"));
  const line = make("span", "command");
  const copy = make("button", "", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", `Copy the command ${command}`);
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(command);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  line.append(make("code", "", command), copy);
  way.append(line);
  box.append(title, make("p", "", stop.message), way);
  return box;
}

function drawProblems() {
  const stopped = status.stops.map((stop) => `${stop.part} stopped: `);
  const lines = status.problems.filter((line) => !stopped.some((start) => line.startsWith(start)));
  listIn($("problems"), lines);
  listIn($("notes"), status.notes);
}

function listIn(box, lines) {
  box.hidden = !lines.length;
  if (box.dataset.shows === lines.join("\n")) return;
  box.dataset.shows = lines.join("\n");
  const list = make("ul");
  list.append(...lines.map((line) => make("li", "", line)));
  box.replaceChildren(list);
}

const TONES = { streaming: "good", snapshot: "good", following: "good", starting: "", rebuilding: "", retrying: "warn", waiting: "warn", stopped: "bad", exited: "bad", "never started": "bad" };

function drawSource() {
  const { source, capture } = status;
  const rate = present(captured());
  if (!source.reachable) mark("source-state", "unreachable", "bad");
  else if (!capture) mark("source-state", "capture never ran", "bad");
  else if (!capture.alive) mark("source-state", capture.stop ? "stopped" : "capture is not running", "bad");
  else mark("source-state", capture.state, TONES[capture.state]);
  say("source-rate", compact(rate));
  sayPath("source-address", source.address);
  const slot = source.slot;
  say("slot-name", slot ? (slot.exists ? slot.name + (slot.active ? "" : " (nobody reads it)") : slot.name + " is missing") : "–");
  say("slot-lag", slot ? bytes(slot.lag_bytes) : "–");
  $("budget").hidden = !slot?.exists;
  if (slot?.exists) drawBudget(slot);
}

function drawBudget(slot) {
  const danger = slot.wal_status === "unreserved" || slot.wal_status === "lost";
  if (slot.max_keep_bytes == null) {
    say("budget-value", bytes(slot.held_bytes));
    $("budget-bar").hidden = true;
    say("budget-note", "no limit: max_slot_wal_keep_size is -1");
    return;
  }
  const left = Math.max(0, slot.safe_wal_bytes ?? 0);
  const share = 1 - left / Math.max(1, left + (slot.held_bytes ?? 0));
  const used = danger ? 1 : share;
  const tone = danger || used > 0.9 ? "bad" : used > 0.7 ? "warn" : "";
  $("budget-bar").hidden = false;
  say("budget-value", `${bytes(slot.held_bytes)} of ${bytes(slot.max_keep_bytes)}`);
  fill($("budget-bar"), used, tone, `${Math.round(100 * used)} % of the WAL budget used`);
  if (slot.wal_status === "lost") say("budget-note", "lost: Postgres has removed WAL that was still needed");
  else if (danger) say("budget-note", "in danger: the next checkpoint may remove WAL that is needed");
  else if (slot.budget_eta_s == null) say("budget-note", `${bytes(left)} left`);
  else say("budget-note", `${bytes(left)} left: lasts ${slot.budget_eta_s > 31 * 86400 ? "more than a month" : duration(slot.budget_eta_s)} if nothing were confirmed`);
}

function drawLog() {
  const log = status.log;
  say("log-position", count(log.position));
  mark("log-age", log.commit_ts ? "last commit " + ago(Math.max(0, status.at - log.commit_ts)) : "empty", "");
  say("log-bytes", `${bytes(log.bytes)} · ${compactCount(log.rows)} changes`);
  say("log-free", bytes(log.disk_free_bytes));
  say("log-lsn", log.commit_lsn ?? "–");
}

function drawStores() {
  const place = $("stores");
  const names = status.followers.map((follower) => follower.store).join(" ");
  if (place.dataset.shows !== names) {
    place.dataset.shows = names;
    place.replaceChildren(...status.followers.map(storeCard));
  }
  status.followers.forEach(drawStore);
}

function storeCard(follower, index) {
  const card = make("article", "card store");
  card.id = "store-" + follower.store;
  card.dataset.branch = "yes";
  card.style.setProperty("--series", `var(${colour(index)})`);
  const head = make("header");
  const title = make("h2", "", follower.store);
  title.append(make("span", "kind", follower.kind));
  head.append(title, make("span", "chip"));
  const body = make("div", "body");
  const words = make("div");
  const bar = make("progress");
  bar.hidden = true;
  words.append(make("p", "big"), make("p", "under"), bar);
  const picture = make("div");
  const spark = shape(picture, "svg", { class: "spark", role: "img" });
  spark.setAttribute("aria-label", "");
  picture.append(make("p", "spark-label"));
  body.append(words, picture, make("p", "facts"), make("p", "error"));
  card.append(head, body);
  return card;
}

function drawStore(follower) {
  const card = $("store-" + follower.store);
  const state = follower.stop ?? (follower.alive ? follower.state : follower.state === "never started" ? "never started" : "not running");
  const shown = state === "following" && follower.catch_up ? "loading" : state;
  mark(card.querySelector(".chip"), shown, follower.stop || !follower.alive ? "bad" : TONES[follower.state]);
  const lag = follower.lag;
  const big = card.querySelector(".big");
  const under = card.querySelector(".under");
  const far = follower.catch_up;
  const bar = card.querySelector("progress");
  bar.hidden = !far;
  if (far) {
    bar.max = far.total;
    bar.value = far.done;
    bar.setAttribute("aria-label", `${follower.store}: ${compactCount(far.done)} of ${compactCount(far.total)} changes`);
    say(big, percent(far.done, far.total));
    const left = far.eta_s == null ? "" : `, about ${duration(far.eta_s)} left`;
    say(under, `loading: ${compactCount(far.done)} of ${compactCount(far.total)}, ${compact(far.rows_per_s)}/s${left}`);
  } else if (!lag) {
    say(big, "–");
    say(under, "nothing applied yet");
  } else if (lag.changes === 0) {
    say(big, "in step");
    say(under, "nothing in the log waits for it");
  } else {
    say(big, lag.seconds > 0 || follower.commit_ts ? duration(lag.seconds) : "behind");
    say(under, `behind: ${compactCount(lag.changes)} changes, ${bytes(lag.bytes)}`);
  }
  const points = history.map((sample) => ({ at: sample.at, value: sample.stores[follower.store]?.lag_s }));
  const highest = sparkline(card.querySelector(".spark"), points, status.at, 60 * minutes());
  card.querySelector(".spark").setAttribute("aria-label", `${follower.store}: lag of the last ${minutes()} minutes, at most ${duration(highest)}`);
  say(card.querySelector(".spark-label"), `${minutes()} min: ` + (highest ? `at most ${duration(highest)}` : "always in step"));
  const facts = card.querySelector(".facts");
  const rate = present(written(follower.store));
  const parts = [make("b", "", compact(rate)), " changes/s · ", make("b", "", compactCount(follower.written)), " written"];
  if (follower.stale) parts.push(" · ", make("b", "", compactCount(follower.stale)), " stale");
  const aside = follower.aside.reduce((sum, one) => sum + one.letters - one.edited - one.accepted, 0);
  if (aside) parts.push(" · ", make("b", "dead", compactCount(aside) + " set aside"));
  parts.push(...auditParts(follower.audit), ...generationParts(status.generations.filter((one) => one.store === follower.store)));
  facts.replaceChildren(...parts);
  say(card.querySelector(".error"), follower.error && !follower.stop ? follower.error : "");
}

/** How the store's generations stand that its readers do not see. */
function generationParts(generations) {
  return generations.flatMap((one) => {
    const name = `generation ${one.number} `;
    if (one.state === "kept") {
      const time = one.until == null ? "" : ` for ${duration(Math.max(0, one.until - status.at))}`;
      if (one.error || !one.alive) return [" · ", make("b", "dead", `${name}kept${time}, not fed`)];
      return [` · ${name}kept${time}, ` + (one.lag.changes ? `${compactCount(one.lag.changes)} changes behind` : "in step")];
    }
    if (!one.alive) return [" · ", make("b", "dead", `${name}is not finished`)];
    const far = one.progress;
    const share = far ? ` ${percent(far.done, far.total)}, ${compact(far.rows_per_s)} rows/s` : "";
    const left = far?.eta_s == null ? "" : `, about ${duration(far.eta_s)} left`;
    return [` · ${name}${one.phase}${share}${left}`];
  });
}

/** What the continuous audit says of a store. */
function auditParts(audit) {
  if (!audit?.tables.length) return [];
  const differing = audit.tables.reduce((sum, one) => sum + one.missing + one.extra + one.different, 0);
  const round = `round ${Math.floor(100 * audit.round_share)} %`;
  if (differing) return [" · ", make("b", "dead", compactCount(differing) + (differing === 1 ? " row differs" : " rows differ")), ` from the log, ${round}`];
  const times = audit.tables.map((one) => one.whole_at);
  if (times.includes(null)) return [` · audit: ${round}`];
  return [` · whole ${ago(Math.max(0, status.at - Math.min(...times)))}, ${round}`];
}

// The views, between the log and the stores that hold them

function drawViews() {
  const place = $("views");
  const names = status.views.map((view) => view.view).join(" ");
  place.hidden = !status.views.length;
  if (place.dataset.shows !== names) {
    place.dataset.shows = names;
    place.replaceChildren(...status.views.map(viewCard));
  }
  status.views.forEach(drawView);
}

function viewCard(view) {
  const card = make("article", "card view");
  card.id = "view-" + view.view;
  card.dataset.branch = "yes";
  const head = make("header");
  const title = make("h2", "", view.view);
  title.append(make("span", "kind", "view"));
  head.append(title, make("span", "chip"));
  card.append(head, make("p", "big"), make("p", "under"), make("p", "facts"), make("ul", "generations"), make("p", "error"));
  return card;
}

/** How a view's generations stand, while there are several: what its topic shows, and the next or the former one. */
function viewGenerations(generations, liveAt) {
  if (generations.length < 2) return [];
  return generations.map((one) => {
    const line = make("li", one.state === "refused" ? "refused" : "");
    line.append(make("b", "", `generation ${one.number}`), ` ${howItStands(one, liveAt)}${one.bytes ? `, ${bytes(one.bytes)}` : ""}`);
    if (one.state === "building" && !one.error && one.total) {
      const bar = make("div", "bar");
      bar.append(make("i"));
      bar.firstChild.style.width = Math.min(100, (100 * one.done) / one.total) + "%";
      line.append(bar);
    }
    return line;
  });
}

function howItStands(one, liveAt) {
  if (one.state === "kept") return `is the former one, kept until ${clock(one.until, true)}`;
  if (one.state === "refused") return `is refused: ${one.error}`;
  if (one.state !== "building") return "is live";
  if (one.error) return `waits to be built: ${one.error}`;
  if (!one.total) return `is being brought up to date, at ${count(one.position)} of ${count(liveAt)}`;
  const left = one.eta_s == null ? "" : `, about ${duration(one.eta_s)} left`;
  return `is being built: ${percent(one.done, one.total)}, ${compactCount(one.done)} of at most ${compactCount(one.total)} rows${left}`;
}

function drawView(view) {
  const card = $("view-" + view.view);
  const state = view.stop ?? (view.alive ? view.state : view.state === "never started" ? "never started" : "not running");
  mark(card.querySelector(".chip"), state, view.stop || !view.alive ? "bad" : TONES[view.state]);
  const lag = view.lag;
  say(card.querySelector(".big"), !lag || !view.position ? "–" : lag.changes === 0 ? "in step" : duration(lag.seconds));
  say(
    card.querySelector(".under"),
    !lag || !view.position ? "shows nothing yet" : lag.changes === 0 ? "shows all that its tables have" : `behind: ${compactCount(lag.changes)} changes, ${bytes(lag.bytes)}`,
  );
  const parts = [make("b", "", compact(view.taken_per_s)), " changes/s in, ", make("b", "", compact(view.written_per_s)), " out · state ", make("b", "", bytes(view.state_bytes)), `, ${compactCount(view.state_rows)} rows`];
  if (view.step) parts.push(` · last step ${duration(view.step.seconds)}`);
  card.querySelector(".facts").replaceChildren(...parts);
  card.querySelector(".generations").replaceChildren(...viewGenerations(view.generations, view.position));
  say(card.querySelector(".error"), view.error && !view.stop ? view.error : "");
}

function drawRivers() {
  const { source, capture, followers, views } = status;
  const capturing = source.reachable && capture?.alive && ["streaming", "snapshot"].includes(capture.state);
  const links = [{ from: $("source"), to: $("log"), rate: present(captured()), dam: capturing ? null : capture?.alive ? "warn" : "bad" }];
  const held = (one) => (!one.alive || one.stop ? "bad" : one.state === "waiting" ? "warn" : null);
  // From top to bottom, as a trunk has its branches.
  for (const view of views) links.push({ from: $("log"), to: $("view-" + view.view), rate: view.taken_per_s, dam: held(view) });
  for (const follower of followers) {
    links.push({ from: $("log"), to: $("store-" + follower.store), rate: present(written(follower.store)), dam: held(follower) });
  }
  for (const view of views) {
    const from = $("view-" + view.view);
    for (const store of view.stores) links.push({ from, to: $("store-" + store), rate: view.written_per_s, dam: held(view), beside: true });
  }
  rivers($("rivers"), links);
}

function drawSnapshot() {
  const tables = status.capture?.snapshot ?? [];
  const open = tables.filter((table) => !table.finished);
  $("snapshot").hidden = !open.length;
  if (!open.length) {
    snapshotSeen = new Map();
    return;
  }
  mark("snapshot-state", `${tables.length - open.length} of ${tables.length} tables done` + (status.capture.snapshot_paused ? `, paused: ${status.capture.snapshot_paused}` : ""), "");
  const place = $("snapshot-tables");
  const names = tables.map((table) => table.table).join("\n");
  if (place.dataset.shows !== names) {
    place.dataset.shows = names;
    place.replaceChildren(...tables.map(snapshotRow));
  }
  tables.forEach((table, index) => drawSnapshotTable(place.children[index], table));
}

function snapshotRow(table) {
  const row = make("div");
  const head = make("p", "row");
  head.append(make("span", "", table.table), make("span"));
  const bar = make("div", "bar");
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-label", visible(table.table));
  bar.append(make("i"));
  row.append(head, bar, make("p", "fine"));
  return row;
}

function drawSnapshotTable(row, table) {
  if (!snapshotSeen.has(table.table)) snapshotSeen.set(table.table, []);
  const seen = snapshotSeen.get(table.table);
  seen.push({ at: status.at, done: table.done });
  if (seen.length > 20) seen.shift();
  const first = seen[0];
  const rate = status.at > first.at ? Math.max(0, table.done - first.done) / (status.at - first.at) : 0;
  // total is the planner's estimate, and done can pass it
  const share = table.finished ? 1 : Math.min(0.999, table.done / Math.max(1, table.total));
  const percent = table.finished ? "done" : Math.floor(100 * share) + " %";
  say(row.children[0].lastElementChild, percent);
  fill(row.children[1], share, table.finished ? "good" : "", percent);
  const rows = table.finished ? `${count(table.done)} rows` : `${count(table.done)} of about ${count(Math.max(table.total, table.done))} rows`;
  const left = rate > 0 && table.total > table.done ? ` · ${compact(rate)} rows/s · ${duration((table.total - table.done) / rate)} left` : "";
  say(row.children[2], table.finished ? rows : table.done ? rows + left : `about ${count(table.total)} rows to come`);
}

// The chart and its pointer

let plotted = null;
let pointed = null;

function drawChart() {
  const series = [{ name: "captured", colour: null, points: captured() }];
  status.followers.forEach((follower, index) => series.push({ name: follower.store, colour: colour(index), points: written(follower.store) }));
  plotted = { ...chart($("throughput"), series, status.at, 60 * minutes()), series };
  const legend = series.map(({ name, colour, points }) => {
    const entry = make("span");
    entry.style.setProperty("--series", `var(${colour ?? "--water"})`);
    entry.append(name + " ", make("b", "", compact(present(points)) + "/s"));
    return entry;
  });
  $("legend").replaceChildren(...legend);
  say("chart-words", `Changes a second over the last ${minutes()} minutes, averaged over ten seconds. Now: ` + [...$("legend").children].map((e) => e.textContent).join(", "));
  drawTip();
}

function drawTip() {
  const tip = $("tip");
  const points = plotted?.series[0].points ?? [];
  tip.hidden = pointed == null || !points.length;
  if (tip.hidden) return;
  let best = 0;
  points.forEach((point, i) => {
    if (Math.abs(plotted.x(point.at) - pointed) < Math.abs(plotted.x(points[best].at) - pointed)) best = i;
  });
  const x = plotted.x(points[best].at);
  shape($("throughput"), "line", { class: "cursor", x1: x, x2: x, y1: 8, y2: plotted.floor });
  const lines = plotted.series.map((s) => `${s.name}: ${compact(s.points[best]?.value)}/s`);
  say(tip, [ago(status.at - points[best].at), ...lines].join("\n"));
  tip.style.left = (x > plotted.width / 2 ? x - tip.offsetWidth - 12 : x + 12) + "px";
}

$("throughput").addEventListener("pointermove", (event) => {
  pointed = event.clientX - $("throughput").getBoundingClientRect().left;
  if (status) drawChart();
});
$("throughput").addEventListener("pointerleave", () => {
  pointed = null;
  if (status) drawChart();
});

function drawTables() {
  const tables = [...status.log.tables].sort((a, b) => b.rows - a.rows);
  say("tables-count", tables.length === 1 ? "1 table" : `${count(tables.length)} tables`);
  const place = $("tables");
  while (place.children.length > tables.length) place.lastElementChild.remove();
  while (place.children.length < tables.length) {
    const row = make("tr");
    row.append(make("td"), make("td", "n"), make("td", "n"), make("td", "n"));
    place.append(row);
  }
  tables.forEach((table, index) => {
    const cells = place.children[index].children;
    [table.name, count(table.rows), bytes(table.bytes), count(table.last)].forEach((text, i) => say(cells[i], text));
  });
}

// The last day

function drawDay() {
  const { minutes: past, episodes } = day;
  const place = $("day-stores");
  const names = status.followers.map((follower) => follower.store);
  if (place.dataset.shows !== names.join("\n")) {
    place.dataset.shows = names.join("\n");
    place.replaceChildren(...names.map(dayRow));
  }
  const from = past.length ? past[0].at : status.at;
  const span = Math.max(3600, status.at - from);
  say("day-span", past.length ? `since ${clock(from, span > 86000)}` : "");
  names.forEach((name, index) => {
    const row = place.children[index];
    const points = past.map((minute) => ({ at: minute.at + 60, value: minute.stores[name]?.[1] ?? null }));
    const highest = sparkline(row.children[1], points, status.at, span);
    row.children[1].setAttribute("aria-label", `${name}: longest lag of each minute, at most ${duration(highest)}`);
    const changes = past.reduce((sum, minute) => sum + (minute.stores[name]?.[0] ?? 0), 0);
    say(row.children[2], `at most ${duration(highest)} · ${compactCount(changes)} changes`);
  });
  const shown = episodes.slice(-EPISODES_SHOWN).reverse();
  const list = $("episodes");
  list.replaceChildren(...(shown.length ? shown.map(episodeRow) : [make("li", "fine", "Nothing.")]));
}

function dayRow(name, index) {
  const row = make("div", "dayrow");
  row.style.setProperty("--series", `var(${colour(index)})`);
  row.append(make("p", "", name));
  const svg = shape(row, "svg", { class: "spark", role: "img" });
  svg.setAttribute("aria-label", "");
  row.append(make("p", "fine"));
  return row;
}

function episodeRow({ text, since, until }) {
  const row = make("li", until == null ? "open" : "");
  const lasted = until == null ? "still" : duration(Math.max(1, until - since));
  row.append(make("span", "fine", `${clock(since, true)} · ${lasted}`), make("span", "", text));
  return row;
}

const clock = (at, withDay) =>
  new Date(at * 1000).toLocaleString([], { ...(withDay ? { day: "numeric", month: "short" } : {}), hour: "2-digit", minute: "2-digit" });

/** The same report, as the daemon takes it in: the past grows here between two connections. */
function remember(report) {
  const at = Math.floor(report.at / 60) * 60;
  const back = day.minutes.length ? day.minutes.at(-1).at - at : 0;
  if (back > 0) {
    // The daemon's clock was set back: what has been is as long ago as it was before.
    for (const minute of day.minutes) minute.at -= back;
    for (const episode of day.episodes) {
      episode.since -= back;
      if (episode.until != null) episode.until -= back;
    }
  }
  if (!day.minutes.length || day.minutes.at(-1).at < at) day.minutes.push({ at, captured: 0, stores: {} });
  if (day.minutes.length > 1440) day.minutes.shift();
  const { stores } = day.minutes.at(-1);
  for (const follower of report.followers) {
    const [changes, longest] = stores[follower.store] ?? [0, 0];
    const before = day.written[follower.store] ?? follower.written;
    day.written[follower.store] = follower.written;
    stores[follower.store] = [changes + Math.max(0, follower.written - before), Math.max(longest, follower.lag?.seconds ?? 0)];
  }
  const kind = (text) => text.replace(/\d+/g, "#");
  const now = new Map(report.problems.map((text) => [kind(text), text]));
  for (const episode of day.episodes) {
    if (episode.until != null) continue;
    if (now.has(kind(episode.text))) now.delete(kind(episode.text));
    else episode.until = report.at;
  }
  for (const text of now.values()) day.episodes.push({ text, since: report.at, until: null });
}

function draw() {
  drawVerdict();
  drawStops();
  drawProblems();
  drawSource();
  drawLog();
  drawViews();
  drawStores();
  drawSnapshot();
  drawChart();
  drawTables();
  drawDay();
  drawRivers();
  say("version", `Headwater ${status.version} · log in ${status.log.dir}`);
}

// What the stream brings

function sampleOf(report) {
  const stores = {};
  for (const f of report.followers) stores[f.store] = { written: f.written, lag_s: f.lag?.seconds, lag_changes: f.lag?.changes };
  return { at: report.at, position: report.log.position, stores };
}

const on = {
  history(samples) {
    history = samples;
  },
  past(past) {
    day = { ...past, written: {} };
  },
  status(report) {
    status = report;
    remember(report);
    heard = Date.now();
    skew = heard / 1000 - report.at;
    if (history.length && history.at(-1).at > report.at) history = [];
    if (!history.length || history.at(-1).at < report.at) history.push(sampleOf(report));
    while (history.length && history[0].at < report.at - SPAN_S - RATE_WINDOW_S) history.shift();
    document.body.classList.remove("waiting", "lost");
    $("token").hidden = true;
    draw();
    tick();
  },
  failure(failure) {
    heard = Date.now();
    mark("verdict", "The log cannot be read", "bad");
    $("problems").hidden = false;
    $("problems").replaceChildren(make("p", "", failure.error + (failure.hint ? " → " + failure.hint : "")));
    $("problems").dataset.shows = "";
    document.body.classList.add("lost");
  },
  lost() {
    document.body.classList.add("lost");
    mark("verdict", "Connection lost, trying again", "bad");
  },
  refused(again, tried) {
    mark("verdict", "Locked", "");
    say("token-error", tried ? "That token is not the right one." : "");
    $("token").hidden = false;
    $("secret").value = "";
    $("secret").focus();
    $("token").onsubmit = (event) => {
      event.preventDefault();
      again($("secret").value);
    };
  },
};

function tick() {
  if (!status) return;
  const age = Math.max(0, (Date.now() - heard) / 1000);
  say("freshness", age < 3 ? new Date((Date.now() / 1000 - skew) * 1000).toLocaleTimeString() : "as of " + ago(age));
}

offerThemes();
setInterval(tick, 1000);
new ResizeObserver(() => {
  if (status) {
    drawRivers();
    drawChart();
  }
}).observe($("pipeline"));
follow("v1/events", on);
