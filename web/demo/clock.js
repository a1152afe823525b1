// Says how long a comparison takes: the time of its steps so far tells the rest.
const SOFTWARE = "This adapter of WebGPU is software, which compiles the programs of a model for some seconds for each user.";

export class Clock {
  #timer;
  #step = "";
  #started = 0;
  #ended = [];
  #steps = 0;
  #note = "";

  constructor(say) {
    this.say = say;
  }

  /** Begins a comparison of so many steps of equal work. */
  start(steps, isSoftware) {
    this.stop("");
    this.#steps = steps;
    this.#ended = [];
    this.#step = "";
    this.#note = isSoftware ? SOFTWARE : "";
    this.#timer = setInterval(() => this.#show(), 1000);
  }

  /** Begins a step, which ends the one before. */
  step(text) {
    const now = performance.now();
    if (this.#step !== "") this.#ended.push(now - this.#started);
    this.#step = text;
    this.#started = now;
    this.#show();
  }

  stop(text) {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.say(text);
  }

  #show() {
    if (this.#step === "") return;
    const passed = performance.now() - this.#started;
    const [first] = this.#ended;
    const rest = first === undefined ? undefined : Math.max(0, this.#steps - this.#ended.length) * first - passed;
    const parts = [`${this.#step}, for ${Math.round(passed / 1000)} s.`];
    if (rest === undefined) parts.push(this.#note);
    else if (rest > 1000) parts.push(`About ${Math.round(rest / 1000)} s left.`);
    this.say(parts.filter((part) => part !== "").join(" "));
  }
}
