//! A worker's futures, in groups that take turns: the store's responses, each type's turns, each type's stop hooks.
//!
//! A guest that runs for a long time yields after each slice. In a single queue, a type with hundreds of running
//! instances would get hundreds of slices for each slice of its neighbours. Here each group has one share,
//! which its futures divide among themselves.
//!
//! Some slices are still long, because an instruction that copies or fills memory cannot be interrupted. A group
//! whose last slice was long counts as slow until it has a short one. While other groups have work, slow groups get
//! half of the time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt, StreamFuture};

use super::completions::Completion;

/// A slice of at least this length makes its group slow.
const LONG_SLICE: Duration = Duration::from_millis(1);

/// Identifies a group, whose futures divide one share of the worker's time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TaskGroupKey {
    /// Responses of the store, and results that are already known.
    StoreCalls,
    /// Starts and messages of a type.
    Turns(Arc<str>),
    /// Stop hooks of a type.
    StopHooks(Arc<str>),
}

/// All groups of a worker.
#[derive(Default)]
pub(super) struct Tasks {
    groups: HashMap<TaskGroupKey, Rc<Group>>,
    /// Groups with futures, in the order in which they became ready. A group that is polled goes to the end.
    quick: Ready,
    slow: Ready,
    /// Time that quick groups get before a slow one is polled again, if they have work.
    owed: Duration,
}

type Ready = FuturesUnordered<StreamFuture<Active>>;

#[derive(Default)]
struct Group {
    tasks: RefCell<FuturesUnordered<LocalBoxFuture<'static, Completion>>>,
    active: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A group with futures. Yields `None` after a long slice that completed nothing.
struct Active {
    group: Rc<Group>,
    /// Duration of the last slice.
    slice: Duration,
}

impl Tasks {
    pub(super) fn push(&mut self, share: TaskGroupKey, task: LocalBoxFuture<'static, Completion>) {
        let group = self.groups.entry(share).or_default();
        group.tasks.borrow_mut().push(task);
        if !group.active.replace(true) {
            let active = Active { group: group.clone(), slice: Duration::ZERO };
            self.quick.push(active.into_future());
        } else if let Some(waker) = group.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Adds a result that is already known.
    pub(super) fn push_ready(&mut self, done: Completion) {
        self.push(TaskGroupKey::StoreCalls, Box::pin(std::future::ready(done)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.quick.is_empty() && self.slow.is_empty()
    }

    /// Polls groups of one kind until one of them has had a slice.
    fn poll_groups(&mut self, slow: bool, context: &mut Context<'_>) -> Option<Option<Completion>> {
        loop {
            let groups = if slow { &mut self.slow } else { &mut self.quick };
            let Poll::Ready(Some((item, active))) = groups.poll_next_unpin(context) else {
                return None;
            };
            let slice = active.slice;
            let Some(done) = item else {
                // The group has no futures left.
                continue;
            };
            self.owed = if slow { slice } else { self.owed.saturating_sub(slice) };
            let groups = if slice >= LONG_SLICE { &mut self.slow } else { &mut self.quick };
            groups.push(active.into_future());
            return Some(done);
        }
    }
}

impl Stream for Tasks {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Completion>> {
        let slow_first = self.owed.is_zero();
        let polled = self.poll_groups(slow_first, context);
        match polled.or_else(|| self.poll_groups(!slow_first, context)) {
            Some(Some(done)) => Poll::Ready(Some(done)),
            Some(None) => {
                // Lets the worker handle other work before the next slice.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None if self.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Stream for Active {
    type Item = Option<Completion>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let began = Instant::now();
        let next = self.group.tasks.borrow_mut().poll_next_unpin(context);
        self.slice = began.elapsed();
        *self.group.waker.borrow_mut() = Some(context.waker().clone());
        match next {
            Poll::Ready(None) => {
                self.group.active.set(false);
                Poll::Ready(None)
            }
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.slice >= LONG_SLICE => Poll::Ready(Some(None)),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use ostraca_core::ids::Entity;

    use super::super::completions::StartOutcome;
    use super::super::machines::{MachineId, MachineTable};
    use super::*;

    /// A future that yields this many times, and counts its polls.
    fn spin(
        slices: usize,
        done: Completion,
        count: Rc<Cell<usize>>,
    ) -> LocalBoxFuture<'static, Completion> {
        let (mut left, mut done) = (slices, Some(done));
        Box::pin(poll_fn(move |context| {
            count.set(count.get() + 1);
            if left == 0 {
                return done.take().map_or(Poll::Pending, Poll::Ready);
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn done(id: MachineId, name: &str) -> Completion {
        Completion::Started(id, Entity::new("t", name), 1, StartOutcome::UnknownType)
    }

    #[tokio::test]
    async fn a_type_with_many_running_instances_has_one_share() {
        let id = MachineTable::unknown();
        let mut tasks = Tasks::default();
        let (greedy, modest) = (Rc::<Cell<usize>>::default(), Rc::<Cell<usize>>::default());
        for _ in 0..400 {
            let share = TaskGroupKey::Turns("greedy".into());
            tasks.push(share, spin(10_000, done(id, "greedy"), greedy.clone()));
        }
        // The group is already running when its neighbour is added.
        for _ in 0..10 {
            assert!(futures::poll!(tasks.next()).is_pending());
        }
        let before = greedy.get();
        tasks.push(
            TaskGroupKey::Turns("modest".into()),
            spin(20, done(id, "modest"), modest.clone()),
        );
        let first = tasks.next().await;
        assert!(
            matches!(first, Some(Completion::Started(_, entity, ..)) if &*entity.id == "modest")
        );
        let meanwhile = greedy.get() - before;
        assert!(meanwhile <= 5 * modest.get(), "{meanwhile} greedy slices for {}", modest.get());
    }

    /// A future that occupies the worker for a long slice at each poll, and counts its polls.
    fn drag(
        slices: usize,
        done: Completion,
        count: Rc<Cell<usize>>,
    ) -> LocalBoxFuture<'static, Completion> {
        let mut inner = spin(slices, done, count);
        Box::pin(poll_fn(move |context| {
            std::thread::sleep(2 * LONG_SLICE);
            inner.as_mut().poll(context)
        }))
    }

    /// The number of long slices that run, in addition to those in progress, before a short future of another group
    /// completes.
    async fn long_slices_beside(work: usize) -> usize {
        let id = MachineTable::unknown();
        let mut tasks = Tasks::default();
        let dragged = Rc::<Cell<usize>>::default();
        for _ in 0..8 {
            let drag = drag(1_000, done(id, "dragging"), dragged.clone());
            tasks.push(TaskGroupKey::Turns("dragging".into()), drag);
        }
        for _ in 0..4 {
            assert!(futures::poll!(tasks.next()).is_pending());
        }
        let before = dragged.get();
        for _ in 0..work {
            tasks.push(
                TaskGroupKey::Turns("modest".into()),
                spin(0, done(id, "modest"), Rc::default()),
            );
        }
        for _ in 0..work {
            assert!(tasks.next().await.is_some());
        }
        dragged.get() - before
    }

    #[tokio::test]
    async fn short_slices_go_before_long_ones_that_were_just_served() {
        // If futures were served in order of arrival, there would be as many long slices as short futures.
        let long = long_slices_beside(50).await;
        assert!(long <= 10, "{long} long slices");
    }

    #[tokio::test]
    async fn long_slices_get_their_half_beside_endless_short_ones() {
        let id = MachineTable::unknown();
        let mut tasks = Tasks::default();
        let dragged = Rc::<Cell<usize>>::default();
        tasks.push(
            TaskGroupKey::Turns("dragging".into()),
            drag(1_000, done(id, "drag"), dragged.clone()),
        );
        assert!(futures::poll!(tasks.next()).is_pending());
        let before = dragged.get();
        let began = Instant::now();
        let mut short = Duration::ZERO;
        while dragged.get() < before + 5 {
            assert!(began.elapsed() < Duration::from_secs(60), "the long slices starve");
            let modest = spin(0, done(id, "modest"), Rc::default());
            tasks.push(TaskGroupKey::Turns("modest".into()), modest);
            let polled = Instant::now();
            let long = dragged.get();
            let _ = futures::poll!(tasks.next());
            if dragged.get() == long {
                short += polled.elapsed();
            }
        }
        assert!(!short.is_zero(), "the short slices starve");
    }

    #[tokio::test]
    async fn a_task_group_that_ran_empty_is_reused() {
        let id = MachineTable::unknown();
        let mut tasks = Tasks::default();
        for _ in 0..3 {
            for name in ["a", "b"] {
                tasks
                    .push(TaskGroupKey::Turns(name.into()), spin(2, done(id, name), Rc::default()));
                tasks.push_ready(done(id, name));
            }
            for _ in 0..4 {
                assert!(tasks.next().await.is_some());
            }
            assert!(tasks.next().await.is_none());
            assert!(tasks.is_empty());
        }
    }
}
