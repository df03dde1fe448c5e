// A queue of jobs. Each is leased to one worker at a time, and offered again if that worker does not finish in time.

import { Refusal, emit, entity, timers, types } from "ostraca-entity";

/** After so many attempts, a job is set aside. */
const ATTEMPTS = 3;

interface Job {
  id: number;
  work: unknown;
  attempt: number;
  worker: string | null;
}

interface State {
  next: number;
  jobs: Job[];
  setAside: Job[];
}

const { any, array, integer, nothing, nullable, object, string } = types;
const job = types.named("Job", object({ id: integer(), work: any, attempt: integer() }));
const id = integer({ minimum: 1 });
const timer = (id: number) => `job-${id}`;
const shown = ({ id, work, attempt }: Job) => ({ id, work, attempt });

function leased(state: State, id: number, worker: string): Job {
  const found = state.jobs.find((it) => it.id === id && it.worker === worker);
  if (found === undefined) throw new Refusal("not-leased", `${worker} has no lease of job ${id}`);
  return found;
}

export default entity<State>({ initial: () => ({ next: 1, jobs: [], setAside: [] }) })
  .command(
    "add",
    { summary: "Adds a job, and returns its id.", parameters: { work: any }, result: integer() },
    (state, { work }) => {
      const id = state.next++;
      state.jobs.push({ id, work, attempt: 0, worker: null });
      emit("changes", { id, what: "added" });
      return id;
    },
  )
  .command(
    "take",
    {
      summary: "Leases the oldest waiting job to a worker, for some milliseconds; null if none waits.",
      parameters: { worker: string, ms: integer({ minimum: 1, maximum: 3_600_000 }) },
      result: nullable(job),
    },
    (state, { worker, ms }) => {
      const found = state.jobs.find((it) => it.worker === null);
      if (found === undefined) return null;
      found.worker = worker;
      found.attempt += 1;
      // It fires once, whatever happens to the node in the meantime.
      timers.set(timer(found.id), { after: ms }, found.id);
      emit("changes", { id: found.id, what: "taken" });
      return shown(found);
    },
  )
  .command("finish", { summary: "Removes a job that the worker has done.", parameters: { id, worker: string }, result: nothing }, (state, args) => {
    const done = leased(state, args.id, args.worker);
    state.jobs = state.jobs.filter((it) => it !== done);
    timers.cancel(timer(done.id));
    emit("changes", { id: done.id, what: "finished" });
  })
  .onTimer((state, { payload }) => {
    const late = state.jobs.find((it) => it.id === payload);
    if (late === undefined) return;
    late.worker = null;
    if (late.attempt < ATTEMPTS) {
      emit("changes", { id: late.id, what: "expired" });
      return;
    }
    state.jobs = state.jobs.filter((it) => it !== late);
    state.setAside.push(late);
    emit("changes", { id: late.id, what: "set aside" });
  })
  .query("waiting", { summary: "Returns how many jobs wait.", result: integer() }, (state) => state.jobs.filter((it) => it.worker === null).length)
  .query("abandoned", { summary: "Returns the jobs that were tried too often.", result: array(job) }, (state) => state.setAside.map(shown));
