// The later version of `behaving`, whose state has another layout.

import { Refusal, entity, types } from "ostraca-entity";

interface State {
  sum: number;
}

function migrate(old: { value?: number }, from: number): State {
  if (old.value === undefined) {
    throw new Refusal("no-value", `schema ${from}`);
  }
  return { sum: old.value + 1_000 };
}

export default entity<State>({ initial: () => ({ sum: 0 }), schema: 1, migrate })
  .command("add", { parameters: { by: types.integer() }, result: types.integer() }, (state, { by }) => (state.sum += by))
  .query("get", { result: types.integer() }, (state) => state.sum);
