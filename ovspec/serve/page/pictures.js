// Pictures of a message: chosen or pasted, as data URLs.

// Longer sides are drawn smaller: a camera's picture has more bytes than a server takes, and models read fewer pixels.
const LONGEST = 1536;

let waiting = [];

export const pictures = () => waiting;

// Show pictures that are sent with the next message; pressed, one is left out.
export function setPictures(place, urls) {
  waiting = [...urls];
  place.hidden = !waiting.length;
  place.replaceChildren(...waiting.map((url, index) => {
    const away = document.createElement("button"), shown = document.createElement("img");
    Object.assign(shown, { src: url, alt: `Picture ${index + 1}` });
    Object.assign(away, { className: "small", onclick: () => setPictures(place, waiting.filter((_, other) => other !== index)) });
    away.setAttribute("aria-label", `Leave picture ${index + 1} out`);
    away.append(shown);
    return away;
  }));
}

function urlOf(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(new Error(`${file.name} can't be read: choose it again.`));
    reader.readAsDataURL(file);
  });
}

function drawn(url, name) {
  return new Promise((done, fail) => {
    const picture = new Image();
    picture.onload = () => {
      const scale = LONGEST / Math.max(picture.naturalWidth, picture.naturalHeight);
      if (scale >= 1) return done(url);
      const canvas = document.createElement("canvas");
      Object.assign(canvas, { width: Math.ceil(picture.naturalWidth * scale), height: Math.ceil(picture.naturalHeight * scale) });
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      return done(canvas.toDataURL("image/jpeg", 0.92));
    };
    picture.onerror = () => fail(new Error(`${name} is no picture that this browser shows: choose a PNG, JPEG, WebP, GIF or BMP file.`));
    picture.src = url;
  });
}

// Add files to the next message.
export async function addPictures(place, files) {
  const added = [];
  for (const file of files) added.push(await drawn(await urlOf(file), file.name));
  setPictures(place, [...waiting, ...added]);
}

// A message as the server takes it.
export function asSent({ role, content, pictures: urls }) {
  if (!urls || !urls.length) return { role, content };
  return { role, content: [...urls.map(url => ({ type: "image_url", image_url: { url } })), { type: "text", text: content }] };
}
