// Requests to the service, with the token of this tab if it has one.

const TOKEN = "offsetmgr-token";
const CLIENT = "page";

/** The service's answer that something did not work; `status` is 0 where it did not answer. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body.message ?? `the service answered ${status}`);
    this.status = status;
    this.code = body.code ?? "";
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

let onUnauthorized = () => {};
let aheadMs = 0;

/** Return the time by the clock of the service, in seconds since 1970. */
export function now() {
  return (Date.now() - aheadMs) / 1000;
}

/** Have `callback` called with the service's message when it wants a (better) token. */
export function whenUnauthorized(callback) {
  onUnauthorized = callback;
}

/** Return what the service answers to a GET; of a list in `query` each value, of null nothing. */
export async function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).flatMap(
    ([name, value]) => (value === null ? [] : [value].flat().map((each) => [name, each])),
  );
  const search = new URLSearchParams(given).toString();
  return exactly(await request(search ? `${path}?${search}` : path, { signal }));
}

/** Return what the service answers to a POST. */
export async function post(path, body) {
  const headers = { "Content-Type": "application/json", "Offsetmgr-Client": CLIENT };
  const text = JSON.stringify(body, (_, value) => (
    typeof value === "bigint" ? JSON.rawJSON(value) : value
  ));
  return exactly(await request(path, { method: "POST", headers, body: text }));
}

/** Return the JSON of an answer; an offset that a number cannot hold is a BigInt. */
async function exactly(answer) {
  const text = await answer.text();
  const exact = (_, value, { source = "" } = {}) => (
    Number.isInteger(value) && !Number.isSafeInteger(value) && /^\d+$/.test(source)
      ? BigInt(source) : value
  );
  // Numbers that begin with 16 digits; a fraction may have as many, and is left alone.
  return /[,:[]\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text);
}

/**
 * Yield the events that follow `lastId` ({id, name, data}) until the service ends the stream; the
 * first, "connected", says that it is open.
 */
export async function* events(lastId, signal) {
  const headers = { "Last-Event-ID": lastId };
  const answer = await request("v1/events?only=failed", { headers, signal });
  yield { id: "", name: "connected", data: null };
  let text = "";
  for await (const chunk of chunks(answer.body.pipeThrough(new TextDecoderStream()))) {
    const blocks = (text + chunk).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      if (event.data) {
        yield event;
      }
    }
  }
}

function parsed(block) {
  const event = { id: "", name: "", data: null };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    const value = line.slice(colon + 2);
    if (line.startsWith("id:")) {
      event.id = value;
    } else if (line.startsWith("event:")) {
      event.name = value;
    } else if (line.startsWith("data:")) {
      event.data = JSON.parse(value);
    }
  }
  return event;
}

// Not every browser can iterate over a stream.
async function* chunks(stream) {
  const reader = stream.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    yield part.value;
  }
}

async function request(path, options) {
  const headers = { ...options.headers };
  const given = token.get();
  if (given !== null) {
    headers.Authorization = `Bearer ${given}`;
  }
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new ApiError(0, { message: "the service does not answer", code: "unreachable" });
  }
  const sentMs = Date.parse(answer.headers.get("Date") ?? "");
  if (sentMs) {
    const ahead = Date.now() - sentMs; // of whole seconds, some time ago
    aheadMs = Math.abs(ahead) > 2_000 ? ahead : 0;
  }
  if (answer.ok) {
    return answer;
  }
  const body = await answer.json().catch(() => ({}));
  const error = new ApiError(answer.status, body.error ?? {});
  if (answer.status === 401) {
    onUnauthorized(error.message, given !== null);
  }
  throw error;
}
