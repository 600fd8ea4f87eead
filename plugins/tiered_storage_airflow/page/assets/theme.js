// Airflow keeps the theme that somebody chose in its page; without one the system's holds.
"use strict";
const chosen = window.localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") {
  document.documentElement.dataset.theme = chosen;
}
