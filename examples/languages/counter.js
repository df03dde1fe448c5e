// The example `counter`, in JavaScript.

import { Refusal, entity, types } from "ostraca-entity";

export default entity({ initial: () => ({ value: 0 }) })
  .command(
    "add",
    {
      summary: "Adds to the value, and returns it.",
      parameters: { by: types.integer({ minimum: 0 }) },
      result: types.integer(),
    },
    (state, { by }) => {
      if (!Number.isSafeInteger(state.value + by)) throw new Refusal("overflow", "the counter would overflow");
      state.value += by;
      return state.value;
    },
  )
  .query("get", { summary: "Returns the value.", result: types.integer() }, (state) => state.value);
