// The data of a page that is one file: compressed islands, unpacked when they are first looked at.

async function unpack(id) {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the report (it needs DecompressionStream, in browsers since 2023)");
  const packed = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const islands = new Map();
function island(data, i) {
  const number = Math.floor(i / data.chunk);
  if (!islands.has(number)) islands.set(number, unpack(`chunk-${number}`));
  return islands.get(number);
}

// Where a page has its data from; `live.js` is the other one.
const source = {
  overview: () => unpack("overview"),
  sample: async (data, i) => { const chunk = await island(data, i); return { sample: chunk.samples[i % data.chunk], vocabulary: chunk.vocabulary }; },
  answers: async (data, i) => (await island(data, i))[i % data.chunk],
  follow: (data) => `report of ${day(data.made)}`,
};
