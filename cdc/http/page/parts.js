// What every page is made with: its elements, their text, and the theme that its reader chooses.
import { visible } from "./words.js";

const THEMES = ["auto", "light", "dark"];

export const $ = (id) => document.getElementById(id);

export function say(id, text) {
  const place = typeof id === "string" ? $(id) : id;
  const shown = visible(text);
  if (place.textContent !== shown) place.textContent = shown;
}

export function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text != null) made.textContent = visible(text);
  return made;
}

/** To be called once, by a page with a button "theme": the reader's theme, which this browser remembers. */
export function offerThemes() {
  function wear(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    say("theme", "Theme: " + theme);
  }
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(localStorage.getItem("headwater-theme") ?? "auto") + 1) % THEMES.length];
    localStorage.setItem("headwater-theme", next);
    wear(next);
  });
  wear(localStorage.getItem("headwater-theme") ?? "auto");
}
