//! The configuration as it is written. Defaults are those of the libraries, taken from them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_core::{node, shard};
use ostraca_store_sled::Options;
use ostraca_wire::Limits;
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, Gateway, Handoff, Peers, Rebalance, Role, UNHEARD_LEASES};
use super::guests::{Compiler, Components, Guests};
use crate::input::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) node: String,
    pub(super) data: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) advertise: Vec<String>,
    pub(super) roles: Vec<Role>,
    pub(super) join: Vec<String>,
    pub(super) namespace: String,
    pub(super) workers: usize,
    #[serde(with = "units::time")]
    pub(super) lease: Duration,
    #[serde(with = "units::time")]
    pub(super) renew: Duration,
    #[serde(with = "units::time")]
    pub(super) margin: Duration,
    pub(super) unheard_leases: u32,
    #[serde(with = "units::time")]
    pub(super) report_delay: Duration,
    #[serde(with = "units::time")]
    pub(super) candidate_step: Duration,
    pub(super) record: Option<PathBuf>,
    pub(super) cluster: Cluster,
    pub(super) identity: IdentityFiles,
    pub(super) network: Network,
    pub(super) peers: Peers,
    pub(super) gateway: Gateway,
    pub(super) handoff: Handoff,
    pub(super) rebalance: Rebalance,
    pub(super) guests: Guests,
    pub(super) components: Components,
    pub(super) compiler: Compiler,
    pub(super) entities: Entities,
    pub(super) store: Store,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct IdentityFiles {
    pub(super) ca: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Network {
    #[serde(with = "units::size")]
    pub(super) max_message: u64,
    pub(super) session_messages: u32,
    #[serde(with = "units::size")]
    pub(super) session_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) connection_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) principal_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) node_bytes: u64,
    #[serde(with = "units::time")]
    pub(super) reply_deadline: Duration,
    pub(super) max_streams: u32,
    pub(super) principal_streams: u32,
    pub(super) max_connections: u32,
    pub(super) principal_connections: u32,
    pub(super) reserved_connections: u32,
    pub(super) max_uploads: u32,
    pub(super) principal_uploads: u32,
    #[serde(with = "units::time")]
    pub(super) upload_wait: Duration,
    #[serde(with = "units::time")]
    pub(super) chunk_deadline: Duration,
    #[serde(with = "units::time")]
    pub(super) upload_deadline: Duration,
    #[serde(with = "units::time")]
    pub(super) hello_deadline: Duration,
    #[serde(with = "units::time")]
    pub(super) open_deadline: Duration,
    #[serde(with = "units::time")]
    pub(super) frame_deadline: Duration,
    #[serde(with = "units::size")]
    pub(super) stream_window: u64,
    #[serde(with = "units::size")]
    pub(super) connection_window: u64,
    #[serde(with = "units::size")]
    pub(super) send_window: u64,
    #[serde(with = "units::time")]
    pub(super) keep_alive: Duration,
    #[serde(with = "units::time")]
    pub(super) idle_timeout: Duration,
    #[serde(with = "units::size")]
    pub(super) socket_buffer: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Entities {
    #[serde(with = "units::time")]
    pub(super) order_wait: Duration,
    pub(super) lanes: u32,
    #[serde(with = "units::time")]
    pub(super) lane_life: Duration,
    #[serde(with = "units::time")]
    pub(super) stamp_ahead: Duration,
    #[serde(with = "units::size")]
    pub(super) unsettled_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) head_lane_bytes: u64,
    pub(super) gate: u32,
    pub(super) copies: u32,
    #[serde(with = "units::time")]
    pub(super) activation_wait: Duration,
    #[serde(with = "units::time")]
    pub(super) claim_retry: Duration,
    #[serde(with = "units::time")]
    pub(super) start_retry: Duration,
    #[serde(with = "units::time")]
    pub(super) stop_deadline: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Store {
    #[serde(with = "units::time")]
    pub(super) call_timeout: Duration,
    #[serde(with = "units::time")]
    pub(super) retry: Duration,
    pub(super) witness: PathBuf,
    #[serde(with = "units::size")]
    pub(super) cache_bytes: u64,
    #[serde(with = "units::time")]
    pub(super) flush_every: Duration,
    pub(super) queue_commits: u32,
    #[serde(with = "units::size")]
    pub(super) queue_bytes: u64,
    pub(super) queue_rows: u32,
    pub(super) queue_reads: u32,
    pub(super) batch_commits: u32,
    #[serde(with = "units::size")]
    pub(super) batch_bytes: u64,
    pub(super) batch_records: u32,
    pub(super) head_cache: u32,
    pub(super) readers: u32,
    #[serde(with = "units::size")]
    pub(super) low_water_bytes: u64,
    #[serde(with = "units::time")]
    pub(super) low_water_every: Duration,
    pub(super) watched_changes: u32,
    #[serde(with = "units::size")]
    pub(super) watched_bytes: u64,
}

/// The port that a node listens on unless it is told another.
const PORT: u16 = 7411;

impl Default for File {
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
            renew: Duration::from_millis(node::Settings::default().renew_interval),
            margin: Duration::from_millis(node::Settings::default().lease_margin),
            unheard_leases: UNHEARD_LEASES,
            report_delay: Duration::from_millis(node::Settings::default().report_delay),
            candidate_step: Duration::from_millis(node::Settings::default().campaign_stagger),
            record: None,
            cluster: Cluster::default(),
            identity: IdentityFiles::default(),
            network: Network::default(),
            peers: Peers::default(),
            gateway: Gateway::default(),
            handoff: Handoff::default(),
            rebalance: Rebalance::default(),
            guests: Guests::default(),
            components: Components::default(),
            compiler: Compiler::default(),
            entities: Entities::default(),
            store: Store::default(),
        }
    }
}

impl Default for IdentityFiles {
    fn default() -> Self {
        Self { ca: "ca/ca.pem".into(), certificate: "node.pem".into(), key: "node.key".into() }
    }
}

impl Default for Network {
    fn default() -> Self {
        let wire = Limits::default();
        Self {
            max_message: wire.max_message.into(),
            session_messages: wire.session_in_flight_messages,
            session_bytes: wire.session_in_flight_bytes,
            connection_bytes: wire.connection_bytes,
            principal_bytes: wire.principal_bytes,
            node_bytes: wire.node_bytes,
            reply_deadline: wire.reply_timeout,
            max_streams: wire.max_streams,
            principal_streams: small(wire.principal_streams),
            max_connections: small(wire.max_connections),
            principal_connections: small(wire.principal_connections),
            reserved_connections: small(wire.reserved_connections),
            max_uploads: small(wire.max_uploads),
            principal_uploads: small(wire.principal_uploads),
            upload_wait: wire.upload_queue_timeout,
            chunk_deadline: wire.upload_fragment_timeout,
            upload_deadline: wire.upload_timeout,
            hello_deadline: wire.hello_timeout,
            open_deadline: wire.open_timeout,
            frame_deadline: wire.frame_timeout,
            stream_window: wire.stream_receive_window.into(),
            connection_window: wire.connection_receive_window.into(),
            send_window: wire.send_window,
            keep_alive: wire.keep_alive_interval,
            idle_timeout: wire.idle_timeout,
            socket_buffer: wire.socket_buffer as u64,
        }
    }
}

impl Network {
    pub(super) fn limits(&self, component_limit: u64, peers: &Peers) -> Limits {
        let short = |of: u64| u32::try_from(of).unwrap_or(u32::MAX);
        Limits {
            max_message: short(self.max_message),
            // Room for the rest of the envelope.
            max_frame: short(self.max_message).saturating_add(64 << 10),
            session_in_flight_messages: self.session_messages,
            session_in_flight_bytes: self.session_bytes,
            connection_bytes: self.connection_bytes,
            principal_bytes: self.principal_bytes,
            node_bytes: self.node_bytes,
            reply_timeout: self.reply_deadline,
            max_streams: self.max_streams,
            principal_streams: self.principal_streams as usize,
            max_connections: self.max_connections as usize,
            principal_connections: self.principal_connections as usize,
            reserved_connections: self.reserved_connections as usize,
            max_component: component_limit,
            max_uploads: self.max_uploads as usize,
            principal_uploads: self.principal_uploads as usize,
            upload_queue_timeout: self.upload_wait,
            upload_fragment_timeout: self.chunk_deadline,
            upload_timeout: self.upload_deadline,
            hello_timeout: self.hello_deadline,
            open_timeout: self.open_deadline,
            frame_timeout: self.frame_deadline,
            stream_receive_window: short(self.stream_window),
            connection_receive_window: short(self.connection_window),
            send_window: self.send_window,
            keep_alive_interval: self.keep_alive,
            idle_timeout: self.idle_timeout,
            socket_buffer: large(self.socket_buffer),
            peers: peers.limits(),
        }
    }
}

impl Default for Entities {
    fn default() -> Self {
        let shard = shard::Settings::default();
        Self {
            order_wait: Duration::from_millis(shard.order_timeout),
            lanes: small(shard.max_lanes),
            lane_life: Duration::from_millis(shard.lane_ttl),
            stamp_ahead: Duration::from_millis(shard.max_clock_skew),
            unsettled_bytes: shard.unsettled_bytes as u64,
            head_lane_bytes: shard.inline_lane_bytes as u64,
            gate: small(shard.max_gated_turns),
            copies: small(shard.max_copies),
            activation_wait: Duration::from_millis(shard.instance_slot_timeout),
            claim_retry: Duration::from_millis(shard.claim_backoff),
            start_retry: Duration::from_millis(shard.start_backoff),
            stop_deadline: Duration::from_millis(shard.stop_timeout),
        }
    }
}

impl Entities {
    pub(super) fn settings(&self) -> shard::Settings {
        shard::Settings {
            order_timeout: millis(self.order_wait),
            max_lanes: self.lanes as usize,
            lane_ttl: millis(self.lane_life),
            max_clock_skew: millis(self.stamp_ahead),
            unsettled_bytes: large(self.unsettled_bytes),
            inline_lane_bytes: large(self.head_lane_bytes),
            max_gated_turns: self.gate as usize,
            max_copies: self.copies as usize,
            instance_slot_timeout: millis(self.activation_wait),
            claim_backoff: millis(self.claim_retry),
            start_backoff: millis(self.start_retry),
            stop_timeout: millis(self.stop_deadline),
            mutations: Vec::new(),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        let sled = Options::default();
        Self {
            call_timeout: Duration::from_secs(5),
            retry: Duration::from_millis(node::Settings::default().store_retry_interval),
            witness: "witness".into(),
            cache_bytes: sled.cache_bytes,
            flush_every: sled.flush_interval,
            queue_commits: small(sled.queue_commits),
            queue_bytes: sled.queue_bytes as u64,
            queue_rows: small(sled.queue_metadata_ops),
            queue_reads: small(sled.queue_reads),
            batch_commits: small(sled.batch_commits),
            batch_bytes: sled.batch_bytes as u64,
            batch_records: small(sled.batch_records),
            head_cache: small(sled.head_cache),
            readers: small(sled.readers),
            low_water_bytes: sled.low_water_bytes,
            low_water_every: sled.low_water_check_interval,
            watched_changes: small(sled.watch_history_changes),
            watched_bytes: sled.watch_history_bytes as u64,
        }
    }
}

impl Store {
    pub(super) fn options(&self, data: &Path) -> Options {
        Options {
            cluster: None,
            witness: Some(data.join(&self.witness)),
            cache_bytes: self.cache_bytes,
            flush_interval: self.flush_every,
            queue_commits: self.queue_commits as usize,
            queue_bytes: large(self.queue_bytes),
            queue_metadata_ops: self.queue_rows as usize,
            queue_reads: self.queue_reads as usize,
            batch_commits: self.batch_commits as usize,
            batch_bytes: large(self.batch_bytes),
            batch_records: self.batch_records as usize,
            head_cache: self.head_cache as usize,
            readers: self.readers as usize,
            low_water_bytes: self.low_water_bytes,
            low_water_check_interval: self.low_water_every,
            watch_history_changes: self.watched_changes as usize,
            watch_history_bytes: large(self.watched_bytes),
        }
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(super) fn large(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
