//! The databases that a shard's data can be in, and how a claim moves the data from one to another (R26).
//!
//! The claimant names the database in which it claims the shard. If the data is in another one, its claim first marks
//! the data there as moved, which ends every earlier claim, and then fails until the copy is complete. Any later claim
//! continues, whoever sends it, and copies anew if it names yet another database.

use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome};

use super::{Image, Store, StoreMutation};

/// The mark in the database that a shard's data leaves: no commit takes effect there any more, under whatever epoch.
#[derive(Clone, Debug)]
pub struct MovedMark {
    /// The claim that moves the data.
    by: Claim,
    /// The database to which the data is copied.
    to: u64,
    /// How many further claims fail because the copy is not complete.
    left: u64,
}

impl MovedMark {
    /// The database to which the data is copied.
    pub(super) fn to(&self) -> u64 {
        self.to
    }
}

/// How far a move has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The database that the data is in.
    pub database: u64,
    /// The claim that moves the data, if it is being moved.
    pub mover: Option<Claim>,
}

/// A copy that a disabled rule takes while the shard's owner continues to commit.
#[derive(Clone, Debug)]
pub(super) struct UnfencedCopy {
    image: Image,
    /// How many commits of the owner the copy does not contain until it replaces the data.
    left: u64,
}

impl Image {
    /// The claim that a further claim must supersede: the one that moves the data, or else the one that stands.
    #[must_use]
    pub fn last_claim(&self) -> Option<&Claim> {
        self.moved.as_ref().map(|mark| &mark.by).or(self.claim.as_ref())
    }
}

impl Store {
    /// Where the data is, as applied.
    #[must_use]
    pub fn place(&self) -> Place {
        let mover = self.cache.moved.as_ref().map(|mark| mark.by.clone());
        Place { database: self.cache.database, mover }
    }

    /// Claims the shard in a database. If its data has yet to be copied there, this claim and `attempts` - 1 more fail.
    pub(super) fn claim_in(&mut self, claim: &Claim, to: u64, attempts: u64) -> ClaimOutcome {
        if let Some(current) = self.cache.last_claim().filter(|it| !claim.supersedes(it)) {
            return ClaimOutcome::Refused { current: Box::new(current.clone()) };
        }
        if self.cache.database == to && self.cache.moved.is_none() {
            return self.claim(claim);
        }
        let left = match &self.cache.moved {
            Some(mark) if mark.to == to => mark.left,
            _ => attempts,
        };
        if self.has_mutation(StoreMutation::CopyWithoutMark) && self.copied.is_none() {
            self.copied = Some(Box::new(Image { moved: None, ..self.cache.clone() }));
        }
        if left > 0 {
            self.cache.moved = Some(MovedMark { by: claim.clone(), to, left: left - 1 });
            return ClaimOutcome::Failed("the shard is being moved to another database".into());
        }
        if let Some(copy) = self.copied.take() {
            self.former = Some(Box::new(std::mem::replace(&mut self.cache, *copy)));
        }
        self.cache.moved = None;
        self.cache.database = to;
        self.cache.claim = Some(claim.clone());
        ClaimOutcome::Granted
    }

    /// The claim that ends every commit because the data is being moved.
    pub(super) fn fenced_by_move(&self) -> Option<&Claim> {
        let mark = self.cache.moved.as_ref();
        mark.filter(|_| !self.has_mutation(StoreMutation::CopyWithoutMark)).map(|mark| &mark.by)
    }

    /// Without the mark, the former database still accepts the commits of its last claim.
    pub(super) fn commit_in_former(&mut self, commit: &Commit) -> Option<CommitOutcome> {
        let mut former = self.former.take()?;
        let accepts = former.claim.as_ref() == Some(&*commit.claim);
        let outcome = accepts.then(|| {
            std::mem::swap(&mut self.cache, &mut former);
            let outcome = self.commit_here(commit.clone());
            std::mem::swap(&mut self.cache, &mut former);
            outcome
        });
        self.former = Some(former);
        outcome
    }

    /// Moves the data while its owner continues to commit, for [`StoreMutation::MoveOutsideHandOff`].
    pub fn move_outside_hand_off(&mut self, to: u64) {
        if self.has_mutation(StoreMutation::MoveOutsideHandOff) {
            let image = Image { database: to, moved: None, ..self.cache.clone() };
            self.unfenced = Some(UnfencedCopy { image, left: 3 });
        }
    }

    /// A commit took effect: the copy that does not contain it may be complete.
    pub(super) fn on_committed(&mut self) {
        let Some(copy) = &mut self.unfenced else { return };
        copy.left -= 1;
        if copy.left == 0
            && let Some(copy) = self.unfenced.take()
        {
            let claim = self.cache.claim.take();
            self.cache = Image { claim, ..copy.image };
        }
    }
}
