// Asks again and again while somebody looks.

// A slow answer, such as the lag of 10,000 partitions, is asked for less often.
const SHARE = 4;

/** Calls `load(signal)`, then `show(answer)` or `fail(error)`, again and again until `stop()`. */
export class Poll {
  #load;
  #show;
  #fail;
  #everyMs;
  #inBackground;
  #timer = 0;
  #abort = new AbortController();
  #onVisible = () => document.hidden || this.now();

  /** It asks in a hidden tab only if `inBackground`. */
  constructor(load, show, fail, { everyMs = 5_000, inBackground = false } = {}) {
    this.#load = load;
    this.#show = show;
    this.#fail = fail;
    this.#everyMs = everyMs;
    this.#inBackground = inBackground;
    document.addEventListener("visibilitychange", this.#onVisible);
    this.now();
  }

  /** Ask at once, and forget a question under way. */
  now() {
    clearTimeout(this.#timer);
    this.#abort.abort();
    this.#abort = new AbortController();
    this.#ask(this.#abort.signal);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#abort.abort();
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  async #ask(signal) {
    const begun = performance.now();
    try {
      const answer = await this.#load(signal);
      if (!signal.aborted) {
        this.#show(answer);
      }
    } catch (error) {
      if (!signal.aborted) {
        this.#fail(error);
      }
    }
    if (!signal.aborted && (this.#inBackground || !document.hidden)) {
      const wait = Math.max(this.#everyMs, SHARE * (performance.now() - begun));
      this.#timer = setTimeout(() => this.now(), wait);
    }
  }
}
