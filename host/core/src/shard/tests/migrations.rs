//! Migrations between schemas, earlier revisions, and rollouts (R24).

use super::tells::tell;
use super::*;

/// Schema support of a component that migrates upwards to `version`.
fn schema(version: u32) -> SchemaSupport {
    SchemaSupport { version, newest: version }
}

fn earlier(revision: u64, version: u32) -> EarlierRevision {
    EarlierRevision { revision, schema: schema(version), has_stop_hook: false }
}

impl Harness {
    fn announce(&mut self, settings: TypeSettings) {
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    /// Revision 3 with schema 2, on a head that revision 2 wrote with schema 1.
    fn upgraded() -> Self {
        let mut harness = Self::serving();
        harness.head = Some(head(7, 2, 1));
        harness.announce(upgrade());
        harness
    }

    /// The pending migration: its generation, revision and source schema.
    fn migration(&mut self) -> (u64, u64, u32) {
        match self.next_action() {
            Action::Migrate { generation, revision, from_schema, .. } => {
                (generation, revision, from_schema)
            }
            other => panic!("{other:?}"),
        }
    }

    fn end_migration(&mut self, generation: u64, result: ActivationOutcome) {
        self.handle(Event::ActivationResult { entity: alice(), generation, result });
    }

    /// The reason of the next action, which reports a failed migration.
    fn failure(&mut self) -> (u64, u32, String) {
        match self.next_action() {
            Action::MigrationFailed { revision, from_schema, why, .. } => {
                (revision, from_schema, why.to_string())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn upgrade() -> TypeSettings {
    TypeSettings {
        revision: 3,
        schema: schema(2),
        earlier: vec![earlier(1, 0), earlier(2, 1)],
        ..TypeSettings::default()
    }
}

fn head(version: u64, revision: u64, schema: u32) -> Head {
    let mut head = Head { version, revision, ..Head::default() };
    head.set_schema(schema).expect("a small field");
    head
}

fn migrated() -> ActivationOutcome {
    ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true))
}

fn trapped(retry_after: Option<u32>) -> ActivationOutcome {
    let (code, message) = ("trap".into(), "unreachable".into());
    ActivationOutcome::Failed { code, message, retry_after }
}

#[test]
fn r24_a_migration_commits_before_the_message_runs() {
    let mut harness = Harness::upgraded();
    let token = harness.send(1, 0, MessageKind::Command);
    let (generation, revision, from) = harness.migration();
    assert_eq!((revision, from, harness.starts), (3, 1, 0));
    harness.end_migration(generation, migrated());
    assert!(harness.running.is_none() && harness.starts == 0, "not durable yet");
    let commit = &harness.commits[0];
    let of = (commit.expected_version, commit.head.revision, commit.head.schema().unwrap());
    assert_eq!((of, commit.writes.len()), ((7, 3, 2), 1));
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.starts, harness.started_revision, harness.loads), (1, 3, 2));
    harness.run();
    let commit = &harness.commits[0];
    assert_eq!((commit.head.version, commit.head.schema().unwrap()), (9, 2));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 9"));
    assert_eq!(harness.rooms, 1, "the slot of the migration was returned");
}

#[test]
fn r24_a_migration_without_writes_is_committed_too() {
    let mut harness = Harness::upgraded();
    harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    let nothing = turn(GuestReply::Result(Bytes::new()), false);
    harness.end_migration(generation, ActivationOutcome::Started(nothing));
    assert_eq!(harness.commits[0].head.schema().unwrap(), 2);
}

#[test]
fn r24_a_commit_during_a_migration_keeps_the_revision() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.handle(Event::Evict { entity: alice() });
    harness.announce(upgrade());
    harness.send(2, 0, MessageKind::Command);
    let (generation, revision, from) = harness.migration();
    assert_eq!((revision, from), (3, 0));
    // The target refuses the tell: it becomes a dead letter while the guest migrates.
    harness.answer_tell(Outcome::Final {
        reply: GuestReply::Error { code: "no".into(), message: String::new() },
        version: 1,
    });
    let head = &harness.commits[0].head;
    assert_eq!((head.version, head.revision, head.schema().unwrap()), (2, 1, 0));
    harness.settle(CommitOutcome::Committed);
    harness.end_migration(generation, trapped(None));
    assert_eq!(harness.failure().0, 3);
    assert_eq!(harness.started_revision, 1, "the earlier revision can still run");
}

#[test]
fn r24_an_entity_without_a_turn_of_its_guest_is_new() {
    let mut harness = Harness::serving();
    // Only a commit without the guest has written it.
    harness.head = Some(Head { version: 3, ..Head::default() });
    harness.announce(upgrade());
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    let head = &harness.commits[0].head;
    assert_eq!((head.version, head.revision, head.schema().unwrap()), (4, 3, 2));
}

#[test]
fn r24_a_new_entity_gets_the_schema_without_migration() {
    let mut harness = Harness::serving();
    harness.announce(upgrade());
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    let head = &harness.commits[0].head;
    assert_eq!((head.version, head.revision, head.schema().unwrap()), (1, 3, 2));
}

#[test]
fn r24_without_schemas_nothing_is_migrated_or_stored() {
    let mut harness = Harness::serving();
    harness.head = Some(Head { version: 3, revision: 1, ..Head::default() });
    harness.announce(TypeSettings { revision: 2, ..TypeSettings::default() });
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    assert!(harness.commits[0].head.extensions.is_empty());
}

#[test]
fn r24_an_entity_that_cannot_migrate_serves_on_its_revision() {
    let refused = GuestReply::Error { code: "refused".into(), message: "no owner".into() };
    let refused = ActivationOutcome::Started(turn(refused, false));
    for (result, why) in [(trapped(None), "trap: unreachable"), (refused, "refused: no owner")] {
        let mut harness = Harness::upgraded();
        let token = harness.send(1, 0, MessageKind::Command);
        let (generation, ..) = harness.migration();
        harness.end_migration(generation, result);
        assert_eq!(harness.failure(), (3, 1, why.into()));
        assert_eq!((harness.starts, harness.started_revision), (1, 2));
        assert_eq!(harness.machine.running_revision(&alice()), Some(2));
        assert_eq!(harness.machine.failed_migration(&alice()).map(|it| it.0), Some(3));
        harness.run();
        let head = &harness.commits[0].head;
        assert_eq!((head.version, head.revision, head.schema().unwrap()), (8, 2, 1));
        harness.settle(CommitOutcome::Committed);
        assert_eq!(harness.code_of(token).as_deref(), Some("final 8"));
        // The next start does not try again.
        harness.handle(Event::Evict { entity: alice() });
        harness.send(2, 1, MessageKind::Command);
        assert_eq!((harness.starts, harness.started_revision), (2, 2));
        // The next deployment does.
        harness.run();
        harness.settle(CommitOutcome::Committed);
        harness.announce(TypeSettings { revision: 4, ..upgrade() });
        harness.send(3, 2, MessageKind::Command);
        let (_, revision, from) = harness.migration();
        assert_eq!((revision, from), (4, 1));
    }
}

#[test]
fn r24_a_migration_too_large_for_any_store_is_given_up() {
    let mut harness = Harness::upgraded();
    harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, migrated());
    harness.settle(CommitOutcome::Refused(CommitRefusal::TooLarge("18 MiB".into())));
    assert_eq!(harness.failure(), (3, 1, "turn-too-large: 18 MiB".into()));
    assert_eq!((harness.starts, harness.started_revision), (1, 2));
}

#[test]
fn r24_a_migration_that_the_node_failed_is_tried_again() {
    let mut harness = Harness::upgraded();
    let token = harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, trapped(Some(50)));
    assert!(harness.may_be_sent_again(token));
    harness.send(1, 0, MessageKind::Command);
    let (_, revision, from) = harness.migration();
    assert_eq!((revision, from, harness.rooms), (3, 1, 1));
}

#[test]
fn r24_an_uncommitted_migration_runs_again() {
    let mut harness = Harness::upgraded();
    let token = harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, migrated());
    let outcome = CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 8 });
    harness.settle(outcome);
    assert_eq!(harness.code_of(token), None, "the message waits");
    let (generation, _, from) = harness.migration();
    assert_eq!(from, 1, "the head is read again");
    harness.end_migration(generation, migrated());
    harness.settle(CommitOutcome::Committed);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 9"));
}

#[test]
fn r24_a_schema_above_the_components_is_refused() {
    let mut harness = Harness::serving();
    harness.head = Some(head(7, 2, 3));
    harness.announce(upgrade());
    let token = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(token).as_deref(), Some("schema-too-high"));
    assert!(harness.may_be_sent_again(token) && harness.pending_actions.is_empty());
    // Unless the component migrates back from it.
    let schema = SchemaSupport { version: 2, newest: 3 };
    harness.announce(TypeSettings { revision: 4, schema, ..upgrade() });
    harness.send(1, 0, MessageKind::Command);
    let (generation, revision, from) = harness.migration();
    assert_eq!((revision, from), (4, 3));
    harness.end_migration(generation, migrated());
    assert_eq!(harness.commits[0].head.schema().unwrap(), 2);
}

#[test]
fn r24_no_revision_below_the_heads_runs_after_a_failure() {
    let mut harness = Harness::upgraded();
    // Revision 2 is the last one with this schema, but a later one wrote the head.
    harness.head = Some(head(7, 3, 1));
    let token = harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, trapped(None));
    assert_eq!(harness.code_of(token).as_deref(), Some("migration-failed"));
    assert_eq!(harness.starts, 0);
}

#[test]
fn a_migrating_shard_stops_after_the_commit() {
    let mut harness = Harness::upgraded();
    let token = harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(harness.code_of(token).as_deref(), Some("rebalancing"));
    harness.end_migration(generation, migrated());
    assert_eq!(harness.stopped, 0, "its commit is pending");
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.stopped, harness.rooms), (1, 0));
}

#[test]
fn a_remembered_entity_is_migrated_without_a_message() {
    let mut harness = Harness::new(Settings::default());
    harness.head = Some(Head { remembered: true, ..head(7, 2, 1) });
    harness.marks = Some(vec![alice()]);
    harness.announce(upgrade());
    harness.grant();
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, migrated());
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.starts, harness.started_revision), (1, 3));
}

#[test]
fn a_live_instance_is_replaced_to_migrate() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.announce(TypeSettings { earlier: vec![earlier(1, 0)], ..upgrade() });
    assert_eq!(harness.dropped, 1);
    harness.send(2, 1, MessageKind::Command);
    let (_, revision, from) = harness.migration();
    assert_eq!((revision, from), (3, 0));
}

/// Revision 3, where only some entities have left revision 2, all with schema 1.
fn rolling(shards: u32, per_mille: u16) -> TypeSettings {
    TypeSettings {
        schema: schema(1),
        rollout: Some(Rollout { from: 2, shards, per_mille }),
        ..upgrade()
    }
}

#[test]
fn r24_a_rollout_starts_entities_by_shard_and_share() {
    for (shards, per_mille, revision) in [(0, 0, 2), (1, 0, 3), (0, 1_000, 3)] {
        let mut harness = Harness::serving();
        harness.head = Some(head(7, 2, 1));
        harness.announce(rolling(shards, per_mille));
        harness.send(1, 0, MessageKind::Command);
        assert_eq!(harness.started_revision, revision, "{shards} shards, {per_mille} per mille");
    }
}

#[test]
fn r24_a_rollout_replaces_only_instances_that_it_reaches() {
    let mut harness = Harness::serving();
    harness.head = Some(head(7, 2, 1));
    harness.announce(rolling(0, 0));
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.announce(TypeSettings {
        rollout: Some(Rollout { from: 2, shards: 0, per_mille: 1 }),
        ..rolling(0, 0)
    });
    assert_eq!(harness.dropped, 0);
    harness.announce(rolling(1, 0));
    assert_eq!(harness.dropped, 1);
    harness.send(2, 1, MessageKind::Command);
    assert_eq!(harness.started_revision, 3);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    // A rollout that shrinks leaves what the newer revision wrote on it.
    harness.announce(rolling(0, 0));
    harness.handle(Event::Evict { entity: alice() });
    harness.send(3, 2, MessageKind::Command);
    assert_eq!(harness.started_revision, 3);
}

#[test]
fn a_share_of_a_rollout_is_stable_and_of_its_size() {
    let included = |per_mille| {
        let rollout = Rollout { from: 1, shards: 0, per_mille };
        let ids = (0..10_000).map(|id| format!("entity-{id}"));
        ids.filter(|id| rollout.includes(ShardId(1), id)).collect::<Vec<_>>()
    };
    let (few, many) = (included(50), included(200));
    assert!((400..600).contains(&few.len()) && (1_850..2_150).contains(&many.len()));
    assert!(few.iter().all(|id| many.contains(id)), "a larger share keeps the smaller one's");
    assert_eq!((included(0).len(), included(1_000).len()), (0, 10_000));
}

impl Harness {
    /// Sends an operator's request to restart alice. Returns the flags of the answer.
    pub(super) fn request_restart(&mut self, sequence: u64) -> Option<u8> {
        let message = Message {
            id: MessageId { session: ScopedSessionId([7; 16]), sequence },
            kind: MessageKind::Query,
            method: OperatorCommand::RestartEntity.method().into(),
            body: Bytes::new(),
            ..self.template()
        };
        let token = self.post(message);
        self.replies.iter().find(|(other, _)| *other == token).and_then(
            |(_, outcome)| match outcome {
                Outcome::Final { reply: GuestReply::Result(body), .. } => body.first().copied(),
                _ => None,
            },
        )
    }
}

#[test]
fn r24_an_operator_repeats_a_failed_migration() {
    for is_idle in [true, false] {
        let mut harness = Harness::upgraded();
        harness.send(1, 0, MessageKind::Command);
        let (generation, ..) = harness.migration();
        harness.end_migration(generation, trapped(None));
        harness.failure();
        assert_eq!(harness.started_revision, 2, "an earlier revision runs");
        harness.run();
        harness.settle(CommitOutcome::Committed);
        if !is_idle {
            harness.handle(Event::Evict { entity: alice() });
        }
        assert!(harness.machine.failed_migration(&alice()).is_some());
        assert_eq!(harness.request_restart(1), Some(MIGRATION_HAD_FAILED));
        assert_eq!(harness.machine.failed_migration(&alice()), None);
        assert_eq!(harness.dropped, 2, "no instance of the earlier revision remains");
        assert_eq!(harness.request_restart(2), Some(0));
        harness.send(2, 1, MessageKind::Command);
        let (generation, revision, _) = harness.migration();
        assert_eq!(revision, 3);
        harness.end_migration(generation, migrated());
        harness.settle(CommitOutcome::Committed);
        assert_eq!(harness.started_revision, 3);
    }
}

#[test]
fn r24_an_entity_that_cannot_run_migrates_on_request() {
    let mut harness = Harness::serving();
    harness.head = Some(head(7, 2, 1));
    // No earlier revision has its schema.
    harness.announce(TypeSettings { earlier: vec![earlier(1, 0)], ..upgrade() });
    let refused = harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, trapped(None));
    harness.failure();
    assert_eq!(harness.code_of(refused).as_deref(), Some("migration-failed"));
    assert_eq!(harness.request_restart(1), Some(MIGRATION_HAD_FAILED));
    let again = harness.send(2, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, migrated());
    harness.settle(CommitOutcome::Committed);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(again).as_deref(), Some("final 9"));
}

#[test]
fn k31_a_remembered_entity_migrates_on_request_by_itself() {
    let mut harness = Harness::serving();
    let mut remembered = head(7, 2, 1);
    remembered.remembered = true;
    harness.head = Some(remembered);
    harness.announce(TypeSettings { earlier: vec![earlier(1, 0)], ..upgrade() });
    harness.send(1, 0, MessageKind::Command);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, trapped(None));
    harness.failure();
    assert_eq!(harness.request_restart(1), Some(MIGRATION_HAD_FAILED));
    harness.tick(harness.now + 1);
    let (generation, ..) = harness.migration();
    harness.end_migration(generation, migrated());
    harness.settle(CommitOutcome::Committed);
}

#[test]
fn k31_recovery_takes_over_a_migration_of_a_message() {
    let mut harness = Harness::new(Settings::default());
    harness.head = Some(Head { remembered: true, ..head(7, 2, 1) });
    harness.marks = None;
    harness.grant();
    harness.announce(upgrade());
    let deadline = Some(harness.now + 50);
    let token = harness.post(Message { deadline, ..harness.template() });
    let (generation, ..) = harness.migration();
    // Its mark is read while the migration runs. The message ends before the entity is loaded again.
    let number = *harness.mark_scans.last().expect("a scan");
    harness.handle(Event::RememberedScanned { number, page: Ok((vec![alice()], false)) });
    harness.end_migration(generation, migrated());
    harness.silent = true;
    harness.settle(CommitOutcome::Committed);
    let load = harness.next_action();
    harness.tick(harness.now + 60);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    harness.silent = false;
    harness.answer_load(&load);
    harness.tick(harness.now + 1);
    assert_eq!(harness.reasons, [StartReason::Remembered]);
}
