// Values that the browser keeps for this page, as JSON.

// A value, or `otherwise` where none is kept, or the browser keeps nothing.
export function load(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) || otherwise;
  } catch {
    return otherwise;
  }
}

// Whether the browser keeps it: its place may be full, or it allows none.
export function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
