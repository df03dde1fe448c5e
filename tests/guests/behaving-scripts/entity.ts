// The guest `behaving` in TypeScript.

import {
  AskError, Refusal, ask, context, emit, entity, journal, lifecycle, subscribe, tell, timers, types,
} from "ostraca-entity";

interface State {
  value: number;
  fired: string[];
  noted: string[];
}

const { array, integer, nothing, string } = types;
const me = () => context.self.entityType;

export default entity<State>({ initial: () => ({ value: 0, fired: [], noted: [] }) })
  .command("add", { summary: "Adds to the value, and returns it.", parameters: { by: integer() }, result: integer() }, (state, { by }) => {
    if (by === 0) {
      state.value = -1;
      throw new Refusal("nothing-to-add", "add something");
    }
    state.value += by;
    return state.value;
  })
  .query("get", { result: integer() }, (state) => state.value)
  .command("later", { parameters: { text: string, ms: integer() }, result: nothing }, (_, { text, ms }) => {
    timers.set("note", { after: ms }, text);
  })
  .onTimer((state, { payload }) => {
    state.fired.push(payload);
  })
  .query("fired", { result: array(string) }, (state) => state.fired)
  .command("tell", { parameters: { id: string, times: integer() }, result: nothing }, (_, { id, times }) => {
    for (let at = 0; at < times; at++) {
      tell(me(), id, "add", 1);
    }
  })
  .command("ask", { parameters: { id: string, by: integer() }, result: string }, (_, { id, by }) => {
    try {
      return String(ask(me(), id, "add", by));
    } catch (error) {
      if (error instanceof AskError) {
        return error.code;
      }
      throw error;
    }
  })
  .command("append", { parameters: { text: string }, result: integer() }, (_, { text }) => journal.append(text))
  .query("events", { result: array(string) }, () => journal.read().events.map(({ event }) => event))
  .command("post", { parameters: { text: string }, result: nothing }, (_, { text }) => emit("posts", text))
  .command("follow", { parameters: { id: string }, result: nothing }, (_, { id }) => subscribe(me(), id, "posts", "noted"))
  .command("noted", { parameters: { text: string }, result: nothing }, (state, { text }) => {
    state.noted.push(text);
  })
  .query("notes", { result: array(string) }, (state) => state.noted)
  .command("end", { result: nothing }, () => lifecycle.delete())
  .query("draw", { result: array(integer()) }, () => [Math.random(), Math.random()].map((it) => Math.floor(it * 2 ** 32)))
  .command("fail", { result: nothing }, () => {
    throw new Error("it fails");
  });
