//! Control over the instance's lifecycle.
//!
//! An entity that is *remembered* has an instance wherever its shard is: after a hand-off, a crash or a restart of the
//! cluster it is started without a message, with [`StartReason::Remembered`](crate::StartReason::Remembered). The mark
//! is committed with the turn. With `remember-entities = true` under `[lifecycle]` in the manifest, every entity of the
//! type is remembered from its first message on.

use std::time::{Duration, SystemTime};

/// Asks the host to drop this instance after the turn. The state is kept, and the next message or due timer starts a
/// new instance.
pub fn passivate() {
    crate::host::passivate();
}

/// Sets how long this instance is kept without a message or a due timer, counted from the end of this turn and of each
/// later one. Then the host drops it as after [`passivate`], also if the entity is remembered. The delay replaces the
/// type's `idle-timeout`, which applies again with `None`. It ends with the instance, so set it in `start` if it should
/// always apply.
///
/// ```
/// # use std::time::Duration;
/// # use ostraca_sdk::lifecycle;
/// # fn closing() {
/// lifecycle::passivate_after(Duration::from_secs(5));
/// # }
/// ```
pub fn passivate_after(delay: impl Into<Option<Duration>>) {
    let ms = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    crate::host::passivate_after(delay.into().map(ms));
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

/// Sets when the host deletes this entity, without calling it and even if it sleeps; never early. The time holds until
/// another one is set. With `None`, `time-to-live` of the manifest applies again, if there is one. Traps in a query.
pub fn expire_at(time: impl Into<Option<SystemTime>>) {
    let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ms = |time| u64::try_from(since(time).as_millis()).unwrap_or(u64::MAX);
    crate::host::set_expiry(time.into().map(ms));
}

/// Like [`expire_at`], with a time from now on.
pub fn expire_after(time: Duration) {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    crate::host::set_expiry(Some(crate::host::now().saturating_add(ms)));
}

/// When the host deletes this entity: the time before this turn, or the one that this turn has set.
pub fn expires_at() -> Option<SystemTime> {
    let at = crate::host::expires_at()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(at))
}

/// Whether the entity is remembered. A turn sees its own changes.
pub fn is_remembered() -> bool {
    crate::host::is_remembered()
}
