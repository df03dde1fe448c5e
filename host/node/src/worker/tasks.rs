//! A worker's futures, in groups that take turns: the store's answers, each type's turns, each type's stop hooks.
//!
//! A guest that runs for long yields after each slice. In one queue, a type with hundreds of running instances would
//! have hundreds of slices for each one of its neighbours; here each group has one share, and its futures share that.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, SelectAll, Stream, StreamExt};

use super::completions::Completion;

/// Whose futures share a share of the worker's time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TaskGroupKey {
    /// Answers of the store, and what is known already.
    StoreCalls,
    /// Starts and messages of a type.
    Turns(Arc<str>),
    /// Stop hooks of a type.
    StopHooks(Arc<str>),
}

/// All of them.
#[derive(Default)]
pub(super) struct Tasks {
    groups: HashMap<TaskGroupKey, Rc<Group>>,
    /// Those with futures, in the order in which they are ready. One that is looked at goes to the end.
    active: SelectAll<Active>,
}

#[derive(Default)]
struct Group {
    tasks: RefCell<FuturesUnordered<LocalBoxFuture<'static, Completion>>>,
    active: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

struct Active(Rc<Group>);

impl Tasks {
    pub(super) fn push(&mut self, share: TaskGroupKey, task: LocalBoxFuture<'static, Completion>) {
        let group = self.groups.entry(share).or_default();
        group.tasks.borrow_mut().push(task);
        if !group.active.replace(true) {
            self.active.push(Active(group.clone()));
        } else if let Some(waker) = group.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Something that is known already.
    pub(super) fn push_ready(&mut self, done: Completion) {
        self.push(TaskGroupKey::StoreCalls, Box::pin(std::future::ready(done)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }
}

impl Stream for Tasks {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Completion>> {
        self.active.poll_next_unpin(context)
    }
}

impl Stream for Active {
    type Item = Completion;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Completion>> {
        let next = self.0.tasks.borrow_mut().poll_next_unpin(context);
        *self.0.waker.borrow_mut() = Some(context.waker().clone());
        if matches!(next, Poll::Ready(None)) {
            self.0.active.set(false);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use ostraca_core::ids::Entity;

    use super::super::completions::StartOutcome;
    use super::super::machines::{MachineId, MachineTable};
    use super::*;

    /// A future that yields so many times, and counts.
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
        // It runs, and its neighbour comes later.
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
        assert!(meanwhile <= 5 * modest.get(), "{meanwhile} slices beside {}", modest.get());
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
