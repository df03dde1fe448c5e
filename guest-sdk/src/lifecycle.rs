//! Control over the instance's lifecycle.
//!
//! An entity that is *remembered* has an instance wherever its shard is: after a hand-off, a crash or a restart of the
//! cluster it is started without a message, with [`StartReason::Remembered`](crate::StartReason::Remembered). The mark
//! is committed with the turn. With `remember-entities = true` under `[lifecycle]` in the manifest, every entity of the
//! type is remembered from its first message on.

/// Asks the host to drop this instance after the turn. The state is kept, and the next message or due timer starts a
/// new instance.
pub fn passivate() {
    crate::host::passivate();
}

/// Marks the entity as remembered. Traps in a query.
pub fn remember() {
    crate::host::set_remembered(true);
}

/// Removes the mark of a remembered entity. Its instance is kept until it is idle; [`passivate`] drops it after the
/// turn. Traps in a query.
pub fn forget() {
    crate::host::set_remembered(false);
}

/// Deletes this entity when the turn ends: its state, timers, delayed tells, journal, dead letters, and the mark of a
/// remembered entity. The reply and the tells of the turn are committed with the deletion; whatever else the turn
/// writes is discarded. A turn that is refused or fails deletes nothing. The next message starts the entity anew, with
/// [`StartReason::FirstMessage`](crate::StartReason::FirstMessage). No message that the entity has handled runs again.
/// Traps in a query and in the hooks `start` and `stop`.
pub fn delete() {
    crate::host::delete_entity();
}

/// Whether the entity is remembered. A turn sees its own changes.
pub fn is_remembered() -> bool {
    crate::host::is_remembered()
}
