// Answers each message with itself, as a shared or dedicated worker and on a BroadcastChannel: the least that a call can take.
// It also reports when it learns that a client ended, by the client's lock and by its port.
const ends = new BroadcastChannel("ends");

function serve(port) {
  port.onmessage = ({ data }) => {
    if (typeof data?.lock !== "string") return port.postMessage(data);
    navigator.locks.request(data.lock, () => ends.postMessage(["lock", Date.now()]));
    port.onclose = () => ends.postMessage(["port", Date.now()]);
    port.postMessage("watching");
  };
}

if ("SharedWorkerGlobalScope" in globalThis) {
  globalThis.onconnect = ({ ports: [port] }) => serve(port);
  const answers = new BroadcastChannel("to page");
  new BroadcastChannel("to worker").onmessage = ({ data }) => answers.postMessage(data);
} else {
  serve(globalThis);
}
