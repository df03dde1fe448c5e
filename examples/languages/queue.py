"""A queue of jobs. Each is leased to one worker at a time, and offered again if that worker does not finish in time."""

from __future__ import annotations

from typing import Any, TypedDict

from ostraca_entity import Entity, Firing, Refusal, command, emit, query, timers

ATTEMPTS = 3
"""After so many attempts, a job is set aside."""


class Job(TypedDict):
    id: int
    work: Any
    attempt: int


class Queue(Entity):
    def __init__(self) -> None:
        self.next = 1
        self.jobs: list[Job] = []
        self.workers: dict[str, str] = {}
        self.late: list[Job] = []

    @command
    def add(self, work: Any) -> int:
        """Adds a job, and returns its id."""
        job: Job = {"id": self.next, "work": work, "attempt": 0}
        self.next += 1
        self.jobs.append(job)
        emit("changes", {"id": job["id"], "what": "added"})
        return job["id"]

    @command
    def take(self, worker: str, ms: int) -> Job | None:
        """Leases the oldest waiting job to a worker, for some milliseconds; null if none waits."""
        job = next((it for it in self.jobs if str(it["id"]) not in self.workers), None)
        if job is None:
            return None
        self.workers[str(job["id"])] = worker
        job["attempt"] += 1
        # It fires once, whatever happens to the node in the meantime.
        timers.set(f"job-{job['id']}", after=ms, payload=job["id"])
        emit("changes", {"id": job["id"], "what": "taken"})
        return job

    @command
    def finish(self, id: int, worker: str) -> None:
        """Removes a job that the worker has done."""
        if self.workers.get(str(id)) != worker:
            raise Refusal("not-leased", f"{worker} has no lease of job {id}")
        self._remove(id)
        timers.cancel(f"job-{id}")
        emit("changes", {"id": id, "what": "finished"})

    def on_timer(self, firing: Firing) -> None:
        job = next((it for it in self.jobs if it["id"] == firing.payload), None)
        if job is None:
            return
        self.workers.pop(str(job["id"]), None)
        if job["attempt"] < ATTEMPTS:
            emit("changes", {"id": job["id"], "what": "expired"})
            return
        self._remove(job["id"])
        self.late.append(job)
        emit("changes", {"id": job["id"], "what": "set aside"})

    @query
    def waiting(self) -> int:
        """Returns how many jobs wait."""
        return len(self.jobs) - len(self.workers)

    @query
    def abandoned(self) -> list[Job]:
        """Returns the jobs that were tried too often."""
        return self.late

    def _remove(self, id: int) -> None:
        self.jobs = [it for it in self.jobs if it["id"] != id]
        self.workers.pop(str(id), None)
