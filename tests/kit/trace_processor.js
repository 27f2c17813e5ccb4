// Runs the trace_processor of a Perfetto UI, which is WebAssembly made for a browser's worker, in node.
// node trace_processor.js FOLDER: requests come on stdin, each behind its length in four bytes; replies go to stdout.
const fs = require("fs");
const path = require("path");

process.on("uncaughtException", (error) => {
  console.error(String(error.stack).slice(-2000));
  process.exit(1);
});
const folder = process.argv[2];
const bytes = (url) => {
  const data = fs.readFileSync(path.join(folder, path.basename(String(url))));
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
};

// What the bundle expects of a worker.
const scope = {
  self: { location: { href: "http://localhost/engine_bundle.js" } },
  location: { protocol: "http:", host: "localhost" },
  process: undefined,
  WorkerGlobalScope: class {},
  XMLHttpRequest: class {
    open(method, url) { this.url = url; }
    send() { this.response = bytes(this.url); }
  },
  console: { log() {}, warn() {}, error: console.error },
};
new Function(...Object.keys(scope), fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"))(...Object.values(scope));

const port = {
  postMessage(data) {
    for (let at = 0; at < data.length; ) at += fs.writeSync(1, data, at);
  },
};
scope.self.onmessage({ data: port });

function read(count) {
  const data = Buffer.alloc(count);
  for (let at = 0; at < count; ) {
    const got = fs.readSync(0, data, at, count - at, null);
    if (got === 0) process.exit(0);
    at += got;
  }
  return data;
}

setTimeout(() => {  // when the promises of the start are fulfilled
  for (;;) {
    const request = read(read(4).readUInt32LE(0));
    port.onmessage({ data: new Uint8Array(request.buffer, request.byteOffset, request.length) });
  }
}, 50);
