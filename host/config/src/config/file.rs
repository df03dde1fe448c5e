//! The configuration as written in its file. Defaults come from the libraries.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_core::{node, shard};
use ostraca_store_sled::Options;
use ostraca_wire::Limits;
use serde::{Deserialize, Serialize};

use super::etcd::EtcdSection;
use super::guests::{CompilerSection, ComponentsSection, GuestsSection, OutgoingHttpSection};
use super::health_check::HealthCheckSection;
use super::http::HttpSection;
use super::kubernetes::KubernetesSection;
use super::metrics::MetricsSection;
use super::node_sections::{
    ClusterSection, DEFAULT_MANAGER_SILENCE_LEASES, GatewaySection, HandOffSection, PeersSection,
    RebalanceSection, Role,
};
use super::numbers::{millis, saturating_u32, saturating_usize};
use super::partition::PartitionSection;
use super::postgres::PostgresSection;
use super::rows_store::RowsStore;
use super::traces::TracesSection;
use crate::user_file::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ConfigFile {
    pub(super) node: String,
    pub(super) data: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) advertise: Vec<String>,
    pub(super) roles: Vec<Role>,
    pub(super) join: Vec<String>,
    pub(super) namespace: String,
    pub(super) workers: usize,
    #[serde(with = "units::duration")]
    pub(super) lease: Duration,
    #[serde(with = "units::duration")]
    pub(super) renew_interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) lease_margin: Duration,
    pub(super) manager_silence_leases: u32,
    #[serde(with = "units::duration")]
    pub(super) report_delay: Duration,
    pub(super) weight: u32,
    #[serde(with = "units::duration")]
    pub(super) campaign_stagger: Duration,
    pub(super) recording_dir: Option<PathBuf>,
    pub(super) cluster: ClusterSection,
    pub(super) identity: IdentityFiles,
    pub(super) network: NetworkSection,
    pub(super) peers: PeersSection,
    pub(super) gateway: GatewaySection,
    pub(super) http: HttpSection,
    pub(super) metrics: MetricsSection,
    pub(super) traces: TracesSection,
    pub(super) hand_off: HandOffSection,
    pub(super) rebalance: RebalanceSection,
    pub(super) guests: GuestsSection,
    pub(super) components: ComponentsSection,
    pub(super) compiler: CompilerSection,
    pub(super) outgoing_http: OutgoingHttpSection,
    pub(super) entities: EntitiesSection,
    pub(super) store: StoreSection,
    pub(super) postgres: PostgresSection,
    pub(super) etcd: EtcdSection,
    pub(super) kubernetes: KubernetesSection,
    pub(super) health_check: HealthCheckSection,
    pub(super) partition: PartitionSection,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct IdentityFiles {
    pub(super) ca: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) secret_keys: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NetworkSection {
    #[serde(with = "units::size")]
    pub(super) max_message: u64,
    pub(super) session_in_flight_messages: u32,
    #[serde(with = "units::size")]
    pub(super) session_in_flight_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) connection_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) principal_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) node_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) reply_timeout: Duration,
    pub(super) max_streams: u32,
    pub(super) principal_streams: u32,
    pub(super) max_connections: u32,
    pub(super) principal_connections: u32,
    pub(super) reserved_connections: u32,
    pub(super) max_uploads: u32,
    pub(super) principal_uploads: u32,
    #[serde(with = "units::duration")]
    pub(super) upload_queue_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) upload_fragment_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) upload_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) hello_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) open_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) frame_timeout: Duration,
    #[serde(with = "units::size")]
    pub(super) stream_receive_window: u64,
    #[serde(with = "units::size")]
    pub(super) connection_receive_window: u64,
    #[serde(with = "units::size")]
    pub(super) send_window: u64,
    #[serde(with = "units::duration")]
    pub(super) keep_alive_interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) idle_timeout: Duration,
    #[serde(with = "units::size")]
    pub(super) socket_buffer: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct EntitiesSection {
    #[serde(with = "units::duration")]
    pub(super) order_timeout: Duration,
    pub(super) max_lanes: u32,
    #[serde(with = "units::duration")]
    pub(super) lane_ttl: Duration,
    #[serde(with = "units::duration")]
    pub(super) idempotency_ttl: Duration,
    pub(super) idempotency_keys: u32,
    #[serde(with = "units::size")]
    pub(super) idempotency_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) max_clock_skew: Duration,
    #[serde(with = "units::size")]
    pub(super) unsettled_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) inline_lane_bytes: u64,
    pub(super) max_gated_turns: u32,
    pub(super) max_copies: u32,
    #[serde(with = "units::duration")]
    pub(super) instance_slot_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) claim_backoff: Duration,
    #[serde(with = "units::duration")]
    pub(super) start_backoff: Duration,
    #[serde(with = "units::duration")]
    pub(super) stop_timeout: Duration,
    pub(super) max_timer_entities: u32,
    pub(super) timer_page: u32,
    pub(super) purge_page: u32,
    pub(super) fan_out_page: u32,
    pub(super) timer_attempts: u32,
    #[serde(with = "units::duration")]
    pub(super) timer_backoff: Duration,
    #[serde(with = "units::duration")]
    pub(super) timer_max_backoff: Duration,
    pub(super) tell_targets: u32,
    pub(super) tell_attempts: u32,
    #[serde(with = "units::duration")]
    pub(super) tell_backoff: Duration,
    #[serde(with = "units::duration")]
    pub(super) tell_max_backoff: Duration,
    pub(super) max_ask_depth: u32,
    pub(super) max_channel_reads: u32,
    #[serde(with = "units::size")]
    pub(super) channel_buffer: u64,
    pub(super) max_stopped: u32,
    pub(super) recovery_starts: u32,
    pub(super) recovery_rate: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct StoreSection {
    #[serde(with = "units::duration")]
    pub(super) call_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) retry_interval: Duration,
    pub(super) witness: PathBuf,
    #[serde(with = "units::size")]
    pub(super) cache_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) flush_interval: Duration,
    pub(super) queue_commits: u32,
    #[serde(with = "units::size")]
    pub(super) queue_bytes: u64,
    pub(super) queue_metadata_ops: u32,
    pub(super) queue_reads: u32,
    pub(super) batch_commits: u32,
    #[serde(with = "units::size")]
    pub(super) batch_bytes: u64,
    pub(super) batch_records: u32,
    pub(super) head_cache: u32,
    pub(super) readers: u32,
    #[serde(with = "units::size")]
    pub(super) low_water_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) low_water_check_interval: Duration,
    pub(super) watch_history_changes: u32,
    pub(super) backup_changes: u32,
    #[serde(with = "units::size")]
    pub(super) watch_history_bytes: u64,
}

/// The default port.
const PORT: u16 = 7411;

impl Default for ConfigFile {
    fn default() -> Self {
        Self {
            node: String::new(),
            data: ".".into(),
            listen: (Ipv4Addr::LOCALHOST, PORT).into(),
            advertise: Vec::new(),
            roles: Role::ALL.into(),
            join: Vec::new(),
            namespace: "default".into(),
            workers: 0,
            lease: Duration::from_millis(node::Settings::default().lease),
            renew_interval: Duration::from_millis(node::Settings::default().renew_interval),
            lease_margin: Duration::from_millis(node::Settings::default().lease_margin),
            manager_silence_leases: DEFAULT_MANAGER_SILENCE_LEASES,
            report_delay: Duration::from_millis(node::Settings::default().report_delay),
            weight: 1,
            campaign_stagger: Duration::from_millis(node::Settings::default().campaign_stagger),
            recording_dir: None,
            cluster: ClusterSection::default(),
            identity: IdentityFiles::default(),
            network: NetworkSection::default(),
            peers: PeersSection::default(),
            gateway: GatewaySection::default(),
            http: HttpSection::default(),
            metrics: MetricsSection::default(),
            traces: TracesSection::default(),
            hand_off: HandOffSection::default(),
            rebalance: RebalanceSection::default(),
            guests: GuestsSection::default(),
            components: ComponentsSection::default(),
            compiler: CompilerSection::default(),
            outgoing_http: OutgoingHttpSection::default(),
            entities: EntitiesSection::default(),
            store: StoreSection::default(),
            postgres: PostgresSection::default(),
            etcd: EtcdSection::default(),
            kubernetes: KubernetesSection::default(),
            health_check: HealthCheckSection::default(),
            partition: PartitionSection::default(),
        }
    }
}

impl Default for IdentityFiles {
    fn default() -> Self {
        Self {
            ca: "ca/ca.pem".into(),
            certificate: "node.pem".into(),
            key: "node.key".into(),
            secret_keys: "ca/secret.key".into(),
        }
    }
}

impl IdentityFiles {
    /// The same files, with relative paths resolved against this directory.
    pub(super) fn in_directory(&self, data: &Path) -> Self {
        Self {
            ca: data.join(&self.ca),
            certificate: data.join(&self.certificate),
            key: data.join(&self.key),
            secret_keys: data.join(&self.secret_keys),
        }
    }
}

impl Default for NetworkSection {
    fn default() -> Self {
        let wire = Limits::default();
        Self {
            max_message: wire.max_message.into(),
            session_in_flight_messages: wire.session_in_flight_messages,
            session_in_flight_bytes: wire.session_in_flight_bytes,
            connection_bytes: wire.connection_bytes,
            principal_bytes: wire.principal_bytes,
            node_bytes: wire.node_bytes,
            reply_timeout: wire.reply_timeout,
            max_streams: wire.max_streams,
            principal_streams: saturating_u32(wire.principal_streams),
            max_connections: saturating_u32(wire.max_connections),
            principal_connections: saturating_u32(wire.principal_connections),
            reserved_connections: saturating_u32(wire.reserved_connections),
            max_uploads: saturating_u32(wire.max_uploads),
            principal_uploads: saturating_u32(wire.principal_uploads),
            upload_queue_timeout: wire.upload_queue_timeout,
            upload_fragment_timeout: wire.upload_fragment_timeout,
            upload_timeout: wire.upload_timeout,
            hello_timeout: wire.hello_timeout,
            open_timeout: wire.open_timeout,
            frame_timeout: wire.frame_timeout,
            stream_receive_window: wire.stream_receive_window.into(),
            connection_receive_window: wire.connection_receive_window.into(),
            send_window: wire.send_window,
            keep_alive_interval: wire.keep_alive_interval,
            idle_timeout: wire.idle_timeout,
            socket_buffer: wire.socket_buffer as u64,
        }
    }
}

impl NetworkSection {
    pub(super) fn limits(&self, component_limit: u64, peers: &PeersSection) -> Limits {
        let short = |of: u64| u32::try_from(of).unwrap_or(u32::MAX);
        Limits {
            max_message: short(self.max_message),
            // Leaves space for the rest of the envelope.
            max_frame: short(self.max_message).saturating_add(64 << 10),
            session_in_flight_messages: self.session_in_flight_messages,
            session_in_flight_bytes: self.session_in_flight_bytes,
            connection_bytes: self.connection_bytes,
            principal_bytes: self.principal_bytes,
            node_bytes: self.node_bytes,
            reply_timeout: self.reply_timeout,
            max_streams: self.max_streams,
            principal_streams: self.principal_streams as usize,
            max_connections: self.max_connections as usize,
            principal_connections: self.principal_connections as usize,
            reserved_connections: self.reserved_connections as usize,
            max_component: component_limit,
            max_uploads: self.max_uploads as usize,
            principal_uploads: self.principal_uploads as usize,
            upload_queue_timeout: self.upload_queue_timeout,
            upload_fragment_timeout: self.upload_fragment_timeout,
            upload_timeout: self.upload_timeout,
            hello_timeout: self.hello_timeout,
            open_timeout: self.open_timeout,
            frame_timeout: self.frame_timeout,
            stream_receive_window: short(self.stream_receive_window),
            connection_receive_window: short(self.connection_receive_window),
            send_window: self.send_window,
            keep_alive_interval: self.keep_alive_interval,
            idle_timeout: self.idle_timeout,
            socket_buffer: saturating_usize(self.socket_buffer),
            peers: peers.limits(),
        }
    }
}

impl Default for EntitiesSection {
    fn default() -> Self {
        let shard = shard::Settings::default();
        Self {
            order_timeout: Duration::from_millis(shard.order_timeout),
            max_lanes: saturating_u32(shard.max_lanes),
            lane_ttl: Duration::from_millis(shard.lane_ttl),
            idempotency_ttl: Duration::from_millis(shard.idempotency_ttl),
            idempotency_keys: saturating_u32(shard.idempotency_keys),
            idempotency_bytes: shard.idempotency_bytes as u64,
            max_clock_skew: Duration::from_millis(shard.max_clock_skew),
            unsettled_bytes: shard.unsettled_bytes as u64,
            inline_lane_bytes: shard.inline_lane_bytes as u64,
            max_gated_turns: saturating_u32(shard.max_gated_turns),
            max_copies: saturating_u32(shard.max_copies),
            instance_slot_timeout: Duration::from_millis(shard.instance_slot_timeout),
            claim_backoff: Duration::from_millis(shard.claim_backoff),
            start_backoff: Duration::from_millis(shard.start_backoff),
            stop_timeout: Duration::from_millis(shard.stop_timeout),
            max_timer_entities: saturating_u32(shard.max_timer_entities),
            timer_page: saturating_u32(shard.timer_page),
            purge_page: saturating_u32(shard.purge_page),
            fan_out_page: saturating_u32(shard.fan_out_page),
            timer_attempts: shard.timer_attempts,
            timer_backoff: Duration::from_millis(shard.timer_backoff),
            timer_max_backoff: Duration::from_millis(shard.timer_max_backoff),
            tell_targets: saturating_u32(shard.tell_targets),
            tell_attempts: shard.tell_attempts,
            tell_backoff: Duration::from_millis(shard.tell_backoff),
            tell_max_backoff: Duration::from_millis(shard.tell_max_backoff),
            max_ask_depth: saturating_u32(shard.max_ask_depth),
            max_channel_reads: saturating_u32(shard.max_channel_reads),
            channel_buffer: shard.channel_buffer,
            max_stopped: saturating_u32(shard.max_stopped),
            recovery_starts: saturating_u32(shard.recovery_starts),
            recovery_rate: shard.recovery_rate,
        }
    }
}

impl EntitiesSection {
    pub(super) fn settings(&self) -> shard::Settings {
        shard::Settings {
            order_timeout: millis(self.order_timeout),
            max_lanes: self.max_lanes as usize,
            lane_ttl: millis(self.lane_ttl),
            idempotency_ttl: millis(self.idempotency_ttl),
            idempotency_keys: self.idempotency_keys as usize,
            idempotency_bytes: saturating_usize(self.idempotency_bytes),
            max_clock_skew: millis(self.max_clock_skew),
            unsettled_bytes: saturating_usize(self.unsettled_bytes),
            inline_lane_bytes: saturating_usize(self.inline_lane_bytes),
            max_gated_turns: self.max_gated_turns as usize,
            max_copies: self.max_copies as usize,
            instance_slot_timeout: millis(self.instance_slot_timeout),
            claim_backoff: millis(self.claim_backoff),
            start_backoff: millis(self.start_backoff),
            stop_timeout: millis(self.stop_timeout),
            max_timer_entities: self.max_timer_entities as usize,
            timer_page: self.timer_page as usize,
            purge_page: self.purge_page as usize,
            fan_out_page: self.fan_out_page as usize,
            timer_attempts: self.timer_attempts,
            timer_backoff: millis(self.timer_backoff),
            timer_max_backoff: millis(self.timer_max_backoff),
            tell_targets: self.tell_targets as usize,
            tell_attempts: self.tell_attempts,
            tell_backoff: millis(self.tell_backoff),
            tell_max_backoff: millis(self.tell_max_backoff),
            max_ask_depth: self.max_ask_depth as usize,
            max_channel_reads: self.max_channel_reads as usize,
            channel_buffer: self.channel_buffer,
            max_stopped: self.max_stopped as usize,
            recovery_starts: self.recovery_starts as usize,
            recovery_rate: self.recovery_rate,
            mutations: Vec::new(),
        }
    }
}

impl Default for StoreSection {
    fn default() -> Self {
        let sled = Options::default();
        Self {
            call_timeout: Duration::from_secs(5),
            retry_interval: Duration::from_millis(node::Settings::default().store_retry_interval),
            witness: "witness".into(),
            cache_bytes: sled.cache_bytes,
            flush_interval: sled.flush_interval,
            queue_commits: saturating_u32(sled.queue_commits),
            queue_bytes: sled.queue_bytes as u64,
            queue_metadata_ops: saturating_u32(sled.queue_metadata_ops),
            queue_reads: saturating_u32(sled.queue_reads),
            batch_commits: saturating_u32(sled.batch_commits),
            batch_bytes: sled.batch_bytes as u64,
            batch_records: saturating_u32(sled.batch_records),
            head_cache: saturating_u32(sled.head_cache),
            readers: saturating_u32(sled.readers),
            low_water_bytes: sled.low_water_bytes,
            low_water_check_interval: sled.low_water_check_interval,
            watch_history_changes: saturating_u32(sled.watch_history_changes),
            backup_changes: saturating_u32(sled.backup_changes),
            watch_history_bytes: sled.watch_history_bytes as u64,
        }
    }
}

impl StoreSection {
    pub(super) fn options(&self, data: &Path) -> Options {
        Options {
            cluster: None,
            witness: Some(data.join(&self.witness)),
            cache_bytes: self.cache_bytes,
            flush_interval: self.flush_interval,
            queue_commits: self.queue_commits as usize,
            queue_bytes: saturating_usize(self.queue_bytes),
            queue_metadata_ops: self.queue_metadata_ops as usize,
            queue_reads: self.queue_reads as usize,
            batch_commits: self.batch_commits as usize,
            batch_bytes: saturating_usize(self.batch_bytes),
            batch_records: self.batch_records as usize,
            head_cache: self.head_cache as usize,
            readers: self.readers as usize,
            low_water_bytes: self.low_water_bytes,
            low_water_check_interval: self.low_water_check_interval,
            watch_history_changes: self.watch_history_changes as usize,
            backup_changes: self.backup_changes as usize,
            watch_history_bytes: saturating_usize(self.watch_history_bytes),
            on_batch: None,
        }
    }
}

impl ConfigFile {
    /// Settings of the stores in PostgreSQL, with the limits of the section `store` for queues and batches; `None` if they
    /// are not there.
    pub(super) fn postgres_options(&self, data: &Path) -> Option<ostraca_store_postgres::Options> {
        self.postgres.options(data, self.lease).map(|options| self.with_store_limits(options))
    }

    /// Settings of the further databases with the state of entities.
    pub(super) fn further_databases(&self, data: &Path) -> Vec<ostraca_store_postgres::Options> {
        let databases = self.postgres.further(data, self.lease).into_iter();
        databases.map(|options| self.with_store_limits(options)).collect()
    }

    fn with_store_limits(
        &self,
        options: ostraca_store_postgres::Options,
    ) -> ostraca_store_postgres::Options {
        let store = &self.store;
        ostraca_store_postgres::Options {
            call_timeout: store.call_timeout.min(self.lease),
            batch_commits: store.batch_commits as usize,
            batch_bytes: saturating_usize(store.batch_bytes),
            queue_commits: store.queue_commits as usize,
            queue_bytes: saturating_usize(store.queue_bytes),
            queue_rows: store.queue_metadata_ops as usize,
            queue_reads: store.queue_reads as usize,
            watch_history_changes: store.watch_history_changes as usize,
            watch_history_bytes: saturating_usize(store.watch_history_bytes),
            ..options
        }
    }

    /// The store with only the cluster's rows, with the limits of the section `store` for queues; `None` if there is
    /// none.
    pub(super) fn rows_store(&self, data: &Path) -> Option<RowsStore> {
        let store = &self.store;
        let call_timeout = store.call_timeout.min(self.lease);
        let queue_rows = store.queue_metadata_ops as usize;
        let watch_history_changes = store.watch_history_changes as usize;
        let watch_history_bytes = saturating_usize(store.watch_history_bytes);
        if let Some(options) = self.etcd.options(data, self.lease) {
            return Some(RowsStore::Etcd(ostraca_store_etcd::Options {
                call_timeout,
                queue_rows,
                watch_history_changes,
                watch_history_bytes,
                ..options
            }));
        }
        let options = self.kubernetes.options(data, self.lease)?;
        Some(RowsStore::Kubernetes(ostraca_store_kubernetes::Options {
            call_timeout,
            queue_rows,
            watch_history_changes,
            watch_history_bytes,
            ..options
        }))
    }

    /// Whether the state of entities is in a database.
    pub(super) fn has_database(&self) -> bool {
        self.postgres.url.is_some()
    }

    /// The setting that says where the cluster's rows are, if they are not in the node with the role `store`.
    pub(super) fn place_of_rows(&self) -> Option<&'static str> {
        if !self.etcd.endpoints.is_empty() {
            return Some("etcd.endpoints");
        }
        if self.kubernetes.url.is_some() {
            return Some("kubernetes.url");
        }
        self.has_database().then_some("postgres.url")
    }

    /// Settings of the node's state machine.
    pub(super) fn node_settings(&self) -> node::Settings {
        let settings = node::Settings {
            settings_revision: 0,
            lease: millis(self.lease),
            renew_interval: millis(self.renew_interval),
            lease_margin: millis(self.lease_margin),
            store_retry_interval: millis(self.store.retry_interval),
            ack_timeout: millis(self.hand_off.ack_timeout),
            stop_resend_interval: millis(self.hand_off.stop_resend_interval),
            hand_off_timeout: millis(self.hand_off.timeout),
            max_drain_hand_offs: self.hand_off.max_drain_hand_offs as usize,
            max_escalations: self.hand_off.max_escalations as usize,
            escalation_period: millis(self.hand_off.escalation_period),
            max_relocations: self.hand_off.max_relocations as usize,
            strategies: self.rebalance.strategies(),
            external_timeout: millis(self.rebalance.external_timeout),
            shard_start_timeout: millis(self.hand_off.shard_start_timeout),
            min_hosts: self.rebalance.min_hosts as usize,
            max_rebalance_hand_offs: self.rebalance.max_hand_offs as usize,
            rebalance_interval: millis(self.rebalance.interval),
            rebalance_retry_interval: millis(self.rebalance.retry_interval),
            report_delay: millis(self.report_delay),
            manager_silence_timeout: self.manager_silence_ms(),
            campaign_stagger: millis(self.campaign_stagger),
            // The lock on the store's directory proves that no earlier incarnation of this node has it open (R7).
            // Elsewhere, another process could renew the lease under this node's name.
            embedded_store: self.roles.contains(&Role::Store) && self.place_of_rows().is_none(),
            ..node::Settings::default()
        };
        self.partition.apply(settings)
    }

    /// `manager-silence-leases` as a time, in milliseconds.
    pub(super) fn manager_silence_ms(&self) -> u64 {
        millis(self.lease).saturating_mul(self.manager_silence_leases.into())
    }
}
