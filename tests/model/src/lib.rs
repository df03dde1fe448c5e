//! A model of a small cluster whose actors are the production core, for stateright to go through all its
//! states: three nodes, two of which may manage, one shard or two.
//!
//! Real: each node's [`Machine`](ostraca_core::node::Machine), its strategy, and the rule by which one
//! claim follows another. In small: the `ClusterStore` (linearizable compare-and-set, a watch, answers), the
//! `EntityStore`'s claims, a shard's machine (it claims, serves and stops, each a step of its own), and
//! messages between nodes, in order on each link.
//!
//! A model is only as good as what it leaves out is harmless. Left out here, and why:
//! - Times move back as time passes, and revisions and counts of renewals are renumbered in their
//!   order: the machine only compares them. What is older than every lease is equally old, and what is due
//!   is equally due. Random numbers are no part of a state.
//! - Revisions count a row, not the store: the machine compares them of one row only.
//! - Clocks run alike and time passes in beats of one renewal; a lease is 3, the margin 1. Drift is the
//!   simulator's.
//! - Time passes only when everything in transit has arrived, unless a fault of the budget holds it up: a cut, a
//!   watch behind, a stopped process, a copy, a late request. So no mere slowness spans a beat.
//! - A renewal, its answer and its notification are one step where nothing is queued before them, and a watch
//!   that is behind tells the last of several renewals only.
//! - A control message is not queued twice, and a report to a node that does not know yet that it manages is not sent:
//!   as if lost.
//! - A node makes its calls to the `ClusterStore` one after the other.
//! - Hand-offs are not given up, and balancing is not asked for: only joins, leaves and drains move shards.
//!   Two shards of three nodes have nothing to balance. The `EntityStore` always answers, and no manager is
//!   silent for so long that an incarnation ends itself.
//!
//! What would make many states of one, and is made one, without a loss:
//! - State that no node will ever read again is discarded: in machines, on links, in the history that rules
//!   look at ([`pruning`]). It rests on what only rises (revisions, epochs, terms) and what never comes back (a
//!   incarnation, an epoch that was given up). This is also checked: [`proof`] runs each machine beside one that forgets
//!   nothing, and redelivers, in every later step, what was discarded.
//! - That a manager has news to decide from is no part of a state. Wherever it would do something at its next
//!   event though nothing else changes, such an event is a step of its own, a nudge.
//! - A copy is made when its original is heard or lost. Made sooner it would be one more thing under way that
//!   nobody looks at, and heard before its original it would be the original, with this as the copy: they
//!   are alike, and the link is free sooner.
//! - A lost request is a late one that never arrives: nothing in the model has to wait for it.
//! - Not used: symmetry (no two of the three nodes are alike: one may not manage, one manages, one stands by),
//!   and orders of steps that commute (a crash may come between any two of them, and does).
//!
//! For what is checked, see [`rules`]. Most rules are checked in the step that could violate them, so no
//! state carries more history than they need. A cluster at rest, whose next beat changes nothing, must serve
//! every shard: that is how a step that never comes would be found; a cycle of several states would not be.

pub mod faults;
pub mod hosted;
pub mod model;
pub mod proof;
pub mod pruning;
pub mod rules;
pub mod run;
pub mod scope;
pub mod state;
pub mod step;
pub mod time;
pub mod world;
