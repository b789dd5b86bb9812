// The stream of commit errors, gathered by group and code: one cause is one entry.

import { events, now } from "./api.js";

const MOST_CAUSES = 200;
const MOST_PARTITIONS = 1_000;
const LONGEST_WAIT_MS = 30_000;

class Failures {
  /** By group and code, the newest last: {group, error, times, firstAt, lastAt, partitions}. */
  causes = new Map();
  /** Events that the service dropped because this page was too slow. */
  dropped = 0;
  /** Why nothing is read at the moment; "" while the stream is open. */
  trouble = "";
  #abort = new AbortController();
  #lastId = "0"; // from the oldest failure that the service remembers
  #listeners = new Set();
  #told = false;
  #onVisible = () => this.#restart();

  /** Begin to read; `onCount` hears how many causes there are. */
  start(onCount) {
    this.listen(() => onCount(this.causes.size));
    document.addEventListener("visibilitychange", this.#onVisible);
    this.#restart();
    this.#tell();
  }

  /** Stop reading and forget everything. */
  stop() {
    document.removeEventListener("visibilitychange", this.#onVisible);
    this.#abort.abort();
    this.causes.clear();
    this.#listeners.clear();
    this.#lastId = "0";
    this.dropped = 0;
  }

  /** Call `changed` after changes, at most once in a frame; return what ends that. */
  listen(changed) {
    this.#listeners.add(changed);
    return () => this.#listeners.delete(changed);
  }

  /** Read while the tab is visible: a browser has few connections for all tabs of a service. */
  #restart() {
    this.#abort.abort();
    if (!document.hidden) {
      this.#abort = new AbortController();
      this.#read(this.#abort.signal);
    }
  }

  async #read(signal) {
    let wait = 1_000;
    while (!signal.aborted) {
      try {
        for await (const event of events(this.#lastId, signal)) {
          wait = 1_000;
          this.trouble = "";
          this.#take(event);
        }
        this.trouble = "The service ended the stream.";
      } catch (error) {
        this.trouble = `No commit errors are read: ${error.message}.`;
      }
      if (signal.aborted) {
        return;
      }
      this.#tell();
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  #take({ id, name, data }) {
    this.#lastId = id || this.#lastId;
    if (name === "dropped") {
      this.dropped += data.count;
    } else if (name === "failed") {
      const { group, topic, partition, error } = data;
      const at = data.at ?? now();
      const key = `${error.code} ${group}`;
      const known = this.causes.get(key);
      const cause = known ?? { key, group, times: 0, firstAt: at, partitions: new Set() };
      cause.error = error;
      cause.lastAt = at;
      cause.times += 1;
      if (cause.partitions.size < MOST_PARTITIONS) {
        cause.partitions.add(`${topic} ${partition}`);
      }
      this.causes.delete(key);
      this.causes.set(key, cause);
      if (this.causes.size > MOST_CAUSES) {
        this.causes.delete(this.causes.keys().next().value);
      }
    }
    this.#tell();
  }

  #tell() {
    if (!this.#told) {
      this.#told = true;
      requestAnimationFrame(() => {
        this.#told = false;
        this.#listeners.forEach((each) => each());
      });
    }
  }
}

export const failures = new Failures();
