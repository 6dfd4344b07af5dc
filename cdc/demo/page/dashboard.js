// The dashboard: asks for the stores' facts every second, and draws them.
import { $, make, offerThemes, say } from "./parts.js";
import { count, duration, visible } from "./words.js";

const EVERY_MS = 1000;
/** A day of flights from New York in UTC: the first leaves at 9, the last at 4 of the next morning. */
const HOURS = Array.from({ length: 20 }, (_, n) => (n + 9) % 24);
/** Average delays in minutes at which a cell takes its next colour. */
const STEPS = [5, 15, 30, 60, 120];
const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
/** So late is still on time, as the airlines count it. */
const LATE_MIN = 15;

let chosen = "";
let pointed = null;
let cells = new Map();
let heard = 0;

// Small tools

/** "2013-04-01" → "1 Apr" */
const date = (day) => `${Number(day.slice(8, 10))} ${MONTHS[Number(day.slice(5, 7)) - 1]}`;
const clock = (moment) => new Date(moment).toISOString().slice(11, 16);
const level = (minutes) => STEPS.filter((step) => minutes >= step).length;
const minutesLate = (n) => (n > 0 ? `${count(n)} min late` : n < 0 ? `${count(-n)} min early` : "on time");

// Delays

function drawDelays(rows) {
  const days = [...new Set(rows.map((row) => row.day))].sort();
  const airports = [...new Set(rows.map((row) => row.origin))].sort();
  cells = new Map(rows.map((row) => [`${row.origin} ${row.day} ${row.hour}`, row]));
  $("today").replaceChildren(...airports.map((airport) => today(airport, days.at(-1), rows)));
  $("heat-hours").replaceChildren(line("", HOURS.map(hourHead)));
  $("heat").replaceChildren(...airports.flatMap((airport) => [title(airport), ...days.map((day) => dayLine(airport, day))]));
  if (pointed) point(pointed);
}

function today(airport, day, rows) {
  const its = rows.filter((row) => row.origin === airport && row.day === day);
  const departed = its.reduce((sum, row) => sum + row.departed, 0);
  const late = its.reduce((sum, row) => sum + row.sum_min, 0);
  const box = make("div");
  const mean = late / Math.max(departed, 1);
  const big = make("p", "big", Math.abs(mean).toFixed(1));
  big.append(make("small", "", mean < 0 ? "min early" : "min late"));
  box.append(make("h3", "", airport), big, make("p", "under", `${count(departed)} departed on ${date(day)}`));
  return box;
}

function hourHead(hour) {
  const head = make("th", "", hour);
  head.scope = "col";
  return head;
}

function line(head, cellsOf) {
  const made = make("tr");
  const first = make(head ? "th" : "td", "", head);
  if (head) first.scope = "row";
  made.append(first, ...cellsOf);
  return made;
}

function title(airport) {
  const made = make("tr", "airport");
  const head = make("th", "", airport);
  head.colSpan = HOURS.length + 1;
  made.append(head);
  return made;
}

function dayLine(airport, day) {
  return line(date(day), HOURS.map((hour) => {
    const name = `${airport} ${day} ${hour}`;
    const row = cells.get(name);
    if (!row) return make("td", "none");
    const cell = make("td", `late-${level(row.avg_min)}`, Math.round(row.avg_min));
    cell.dataset.name = name;
    return cell;
  }));
}

function point(name) {
  const row = cells.get(name);
  pointed = row ? name : null;
  for (const cell of $("heat").querySelectorAll(".chosen")) cell.classList.remove("chosen");
  if (!row) return;
  $("heat").querySelector(`[data-name="${CSS.escape(name)}"]`)?.classList.add("chosen");
  const flights = row.departed === 1 ? "1 flight" : `${count(row.departed)} flights`;
  say("point", `${row.origin}, ${date(row.day)}, ${row.hour}:00: ${flights}, on average ${Math.abs(row.avg_min).toFixed(1)} min ${row.avg_min < 0 ? "early" : "late"}, at most ${count(row.max_min)}`);
}

for (const kind of ["pointerover", "click"]) {
  $("heat").addEventListener(kind, (event) => {
    const name = event.target.dataset?.name;
    if (name) point(name);
  });
}

function drawScale() {
  const words = [`less than ${STEPS[0]}`, ...STEPS.map((step, n) => (n + 1 < STEPS.length ? `${step}–${STEPS[n + 1]}` : `${step} min or more`))];
  $("scale").replaceChildren(make("span", "", "Average delay of departure:"), ...words.map((word, n) => {
    const entry = make("span", "", "");
    entry.append(make("i", `late-${n}`), word);
    return entry;
  }));
}

// A plane's day

function drawPlanes(planes) {
  const follows = planes.length ? `the busiest of ${date(planes[0].day)}` : "the busiest";
  const options = [["", follows], ...planes.map((one) => [one.tailnum, `${one.tailnum} · ${one.flights} flights`])];
  if (chosen && !planes.some((one) => one.tailnum === chosen)) options.push([chosen, chosen]);
  const drawn = JSON.stringify(options);
  if ($("planes").dataset.drawn === drawn || document.activeElement === $("planes")) return;
  $("planes").dataset.drawn = drawn;
  $("planes").replaceChildren(...options.map(([value, words]) => {
    const option = make("option", "", words);
    option.value = value;
    return option;
  }));
  $("planes").value = chosen;
}

function drawPlane(plane) {
  say("tailnum", plane ? plane.tailnum : "–");
  if (!plane) {
    say("kind", "not in the cache yet");
    $("legs").replaceChildren();
    return;
  }
  const built = plane.plane && [plane.plane.manufacturer, plane.plane.model, `${plane.plane.seats} seats`, plane.plane.built && `built ${plane.plane.built}`];
  const late = plane.late_min == null ? null : `${minutesLate(plane.late_min)} in all`;
  const totals = [date(plane.day), `${count(plane.landed)} of ${count(plane.flights)} legs landed`, `${count(plane.miles)} miles`, late];
  say("kind", [...totals, ...(built || [])].filter(Boolean).join(" · "));
  const moments = plane.legs.flatMap((leg) => [leg.scheduled_departure, leg.scheduled_arrival, leg.departed_at, leg.landed_at]).filter(Boolean).map(Date.parse);
  const hour = 3600e3;
  const from = Math.floor(Math.min(...moments) / hour) * hour;
  const to = Math.ceil(Math.max(...moments) / hour) * hour;
  const place = (moment) => (100 * (moment - from)) / Math.max(to - from, hour);
  $("legs").replaceChildren(hoursLine(from, to, place), ...plane.legs.map((leg) => legLine(leg, place)));
}

function hoursLine(from, to, place) {
  const made = make("div", "leg hours");
  const track = make("div", "track");
  const step = Math.max(1, Math.ceil((to - from) / 3600e3 / 6)) * 3600e3;
  for (let at = from + step; at < to; at += step) {
    const mark = make("span", "", clock(at));
    mark.style.left = place(at) + "%";
    track.append(mark);
  }
  made.append(make("p"), track, make("p"));
  return made;
}

function legLine(leg, place) {
  const made = make("div", "leg");
  made.dataset.leg = leg.id;
  const where = make("div");
  where.append(make("b", "", `${leg.origin} → ${leg.airport ? leg.airport.faa : "–"}`), ` ${visible(leg.carrier)} ${leg.number}`);
  if (leg.airport) where.append(make("p", "where", leg.airport.name));
  const track = make("div", "track");
  track.append(bar("plan", leg.scheduled_departure, leg.scheduled_arrival, place));
  if (leg.departed_at) {
    const late = (leg.arr_delay_min ?? leg.dep_delay_min) > LATE_MIN ? " late" : "";
    track.append(bar(`flown${leg.landed_at ? "" : " open"}${late}`, leg.departed_at, leg.landed_at, place));
  }
  made.append(where, track, make("p", "word", standing(leg)));
  return made;
}

/** Without an end it is as long as the style says: nobody knows yet. */
function bar(className, begin, end, place) {
  const made = make("i", className);
  made.style.left = place(Date.parse(begin)) + "%";
  if (end) made.style.width = place(Date.parse(end)) - place(Date.parse(begin)) + "%";
  return made;
}

function standing(leg) {
  if (leg.landed_at) return `${clock(leg.landed_at)}, ${minutesLate(leg.arr_delay_min)}`;
  if (leg.status === "diverted") return "diverted";
  return leg.departed_at ? `left ${clock(leg.departed_at)}, ${minutesLate(leg.dep_delay_min)}` : `leaves ${clock(leg.scheduled_departure)}`;
}

$("planes").addEventListener("change", () => {
  chosen = $("planes").value;
  $("planes").blur();
  look();
});

// How fresh it is

function fresh(id, facts) {
  say(id, facts ? `position ${count(facts.position)} · ${facts.behind_s < 0.0005 ? "in step" : duration(facts.behind_s) + " behind"}` : "loading");
  $(id).classList.toggle("good", Boolean(facts) && facts.behind_s < 10);
  $(id).classList.toggle("warn", !facts || facts.behind_s >= 10);
}

function verdict(text, tone) {
  say("verdict", text);
  $("verdict").className = `verdict ${tone}`;
}

async function look() {
  const plane = chosen;
  try {
    const answer = await fetch("facts?plane=" + encodeURIComponent(plane), { cache: "no-store" });
    const facts = await answer.json();
    if (facts.error) return verdict(facts.error, "warn");
    if (plane !== chosen) return;
    heard = Date.now();
    drawDelays(facts.delays);
    drawPlanes(facts.planes);
    drawPlane(facts.plane);
    fresh("delays-fresh", facts.fresh.delays);
    fresh("plane-fresh", facts.fresh.plane_days);
    verdict(facts.delays.length ? "Live from the stores" : "The stores are still empty", facts.delays.length ? "good" : "warn");
  } catch (error) {
    console.info("headwater: no facts:", error.message);
    const age = heard ? `, as of ${duration((Date.now() - heard) / 1000)} ago` : "";
    verdict(`The demo does not answer${age}`, "bad");
  }
}

offerThemes();
$("legend").innerHTML = `<span><i></i>as scheduled</span><span><i class="flown"></i>as flown</span><span><i class="flown late"></i>more than ${LATE_MIN} min late</span>`;
drawScale();
for (;;) {
  if (document.visibilityState === "visible") await look();
  await new Promise((later) => setTimeout(later, EVERY_MS));
}
