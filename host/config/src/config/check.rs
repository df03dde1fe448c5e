//! Checks the values of a configuration beyond what their types express.

use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::pools::check_name;
use ostraca_store_postgres::Options;
use ostraca_wasm::AddressRange;

use super::ConfigError;
use super::cluster_settings::ExplicitSettings;
use super::file::ConfigFile;
use super::node_sections::Role;
use super::postgres::TlsMode;
use crate::user_file::{SourceText, closest_name, units};

/// The default number of shards of a pool (M1).
pub const DEFAULT_SHARDS: u32 = 1024;
/// The maximum number of shards of all pools of a cluster: more would need too many rows of assignments.
pub const MAX_SHARDS: u32 = 65_536;
/// The maximum number of hosts that a first allocation may wait for.
pub const MAX_MIN_HOSTS: u32 = 10_000;

/// The maximum of `max-live-instances`, and of `max-live-memory` in bytes.
const MAX_LIVE_INSTANCES: u32 = 1_000_000;
const MAX_LIVE_MEMORY: u64 = 1 << 50;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn file(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    let good = (1..=64).contains(&file.node.len())
        && file.node.starts_with(|c: char| c.is_ascii_alphanumeric())
        && file.node.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if file.node.is_empty() {
        let help = "add `node = \"NAME\"`, with the name in the node's certificate";
        return Err(input.at(&["node"], "the key `node` is required".into(), Some(help.into())));
    }
    if !good {
        let why = "`node` must be 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit";
        return Err(input.at(&["node"], why.into(), None));
    }
    if file.namespace != "default" {
        let help = "leave it out, or write \"default\"";
        let why = "this release supports only the namespace `default`".into();
        return Err(input.at_with(
            codes::NOT_SUPPORTED_YET,
            &["namespace"],
            why,
            Some(help.into()),
        ));
    }
    if let Some(bad) = file.advertise.iter().find(|address| !is_address(address)) {
        let why = format!("{bad:?} is not an address that clients can connect to");
        let help = "write \"HOST:PORT\" with a numeric port";
        return Err(input.at(&["advertise"], why, Some(help.into())));
    }
    if file.workers > 1024 {
        return Err(range(input, &["workers"], "0", "1024"));
    }
    roles(input, file)?;
    postgres(input, file)?;
    file.etcd.check(input)?;
    file.kubernetes.check(input)?;
    file.health_check.check(input, file.kubernetes.url.is_some())?;
    if !file.etcd.endpoints.is_empty() && file.kubernetes.url.is_some() {
        let why = "the cluster's rows are in etcd or in Kubernetes: `etcd.endpoints` and `kubernetes.url` exclude each other";
        let help = "leave out one of the two";
        return Err(input.at(&["kubernetes", "url"], why.into(), Some(help.into())));
    }
    times(input, file)?;
    // A renewal must be confirmed within 80 % of the lease, and one may be lost (R8). If the file does not set
    // `lease`, the cluster's lease bounds the interval instead.
    let says_lease = ExplicitSettings::from_toml(input.text).contains("lease");
    if says_lease && file.renew_interval * 2 > file.lease.mul_f64(0.8) {
        let why = "`renew-interval` must be at most two fifths of `lease`: otherwise one late renewal ends the lease";
        return Err(input.at(&["renew-interval"], why.into(), None));
    }
    sizes(input, file)?;
    counts(input, file)?;
    pool_limits(input, file)?;
    addresses(input, file)?;
    http(input, file)?;
    traces(input, file)?;
    check_manager_silence(input, file)?;
    strategy(input, file)
}

/// How many roles `host.NAME` a node may have: its row has space for them.
const MAX_POOL_ROLES: usize = 16;

/// Checks `join` against the roles: the store node joins no other node, and all others need an address to join.
fn roles(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    if file.roles.is_empty() {
        let help = "list some, or leave `roles` out to give the node all of them";
        return Err(input.at(&["roles"], "a node needs a role".into(), Some(help.into())));
    }
    let of_pools = Role::to_pool_roles(&file.roles).len();
    if of_pools > MAX_POOL_ROLES {
        let why = format!("{of_pools} roles of pools, at most {MAX_POOL_ROLES} are possible");
        return Err(input.at(&["roles"], why, Some("let pools share a role".into())));
    }
    let store = file.roles.contains(&Role::Store);
    if store && file.has_database() {
        let why = "with `postgres.url`, no node has the role `store`: the state is in the database";
        return Err(input.at(&["roles"], why.into(), Some("leave `store` out".into())));
    }
    let rows = file.place_of_rows();
    if let (Some(setting), Some(first)) = (rows, file.join.first()) {
        let why = format!("with `{setting}`, a node joins no others; `join` lists {first}");
        let help = "leave it out: the nodes find each other through the cluster's rows";
        return Err(input.at(&["join"], why, Some(help.into())));
    }
    match (store || rows.is_some(), file.join.first()) {
        (true, Some(first)) => {
            let why = format!(
                "a node with the role `store` cannot join others, since they join it; `join` lists {first}"
            );
            let help = "leave `join` out, or set `roles` without `store`: `roles = [\"manager\", \"host\", \"gateway\"]`";
            Err(input.at(&["join"], why, Some(help.into())))
        }
        (false, None) => {
            let why = "a node without the role `store` needs a node to join";
            let help = "add `join = [\"HOST:PORT\"]` with the address of a node of the cluster, or give `--join HOST:PORT`";
            Err(input.at(&["roles"], why.into(), Some(help.into())))
        }
        _ => match file.join.iter().find(|address| !is_address(address)) {
            Some(bad) => {
                let why = format!("{bad:?} is not an address to join");
                let help = "write \"HOST:PORT\" with a numeric port";
                Err(input.at(&["join"], why, Some(help.into())))
            }
            None => Ok(()),
        },
    }
}

/// Checks the address of the database, and that nobody can listen to or change what is sent there unless that is wanted.
fn postgres(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    let databases = &file.postgres.databases;
    let Some(url) = &file.postgres.url else {
        return match databases.is_empty() {
            true => Ok(()),
            false => {
                let why = "`databases` are in addition to the one under `url`".into();
                Err(input.at(&["postgres", "databases"], why, Some("add `url`".into())))
            }
        };
    };
    let further = databases.iter().map(|url| ("databases", url));
    for (setting, url) in [("url", url)].into_iter().chain(further) {
        let place = ["postgres", setting];
        if let Err(why) = Options::check_url(url) {
            let help = "write \"host=HOST user=USER dbname=DATABASE\"";
            let what = if setting == "url" { "`url`" } else { "an entry of `databases`" };
            let why = format!("{what} is not the address of a database: {why}");
            return Err(input.at(&place, why, Some(help.into())));
        }
        if file.postgres.tls.is_none() && !Options::is_local(url) {
            let help =
                "add `tls = \"verify\"`, or `tls = \"off\"` if the network itself is protected";
            let why = "`tls` must be set for a database on another machine".into();
            return Err(input.at(&place, why, Some(help.into())));
        }
    }
    if file.postgres.ca_file.is_some() && file.postgres.tls != Some(TlsMode::Verify) {
        let why = "`ca-file` is used only with `tls = \"verify\"`".into();
        return Err(input.at(&["postgres", "ca-file"], why, None));
    }
    Ok(())
}

fn traces(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    for (name, value) in &file.traces.headers {
        if !ostraca_trace::is_valid_header(name, value) {
            let why = format!("{name:?} is not a valid header, or its value is not");
            return Err(input.at(&["traces", "headers"], why, None));
        }
    }
    let Some(endpoint) = &file.traces.endpoint else { return Ok(()) };
    let url = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let is_url = url.is_some_and(|rest| rest.split('/').next().is_some_and(|it| !it.is_empty()));
    if is_url && endpoint.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let why = "`traces.endpoint` must be the URL of a collector";
    let help = "for example \"http://127.0.0.1:4318/v1/traces\"";
    Err(input.at(&["traces", "endpoint"], why.into(), Some(help.into())))
}

fn http(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    let http = &file.http;
    let Some(listen) = http.listen else { return Ok(()) };
    if !file.roles.contains(&Role::Gateway) {
        let why =
            "the HTTP gateway needs the role `gateway`: without it, the node accepts no messages";
        return Err(input.at(&["http", "listen"], why.into(), None));
    }
    match (&http.certificate, &http.key) {
        (Some(_), None) => {
            let why = "`http.certificate` needs `http.key`";
            return Err(input.at(&["http", "certificate"], why.into(), None));
        }
        (None, Some(_)) => {
            let why = "`http.key` needs `http.certificate`";
            return Err(input.at(&["http", "key"], why.into(), None));
        }
        (None, None) if !listen.ip().is_loopback() => {
            let why = format!("others can reach {listen}, and would send their tokens in clear");
            let help = "set `http.certificate` and `http.key`, or listen on 127.0.0.1 behind a proxy with TLS";
            return Err(input.at(&["http", "listen"], why, Some(help.into())));
        }
        _ => {}
    }
    if http.default_timeout > http.max_timeout {
        let why = "`default-timeout` must not be longer than `max-timeout`";
        return Err(input.at(&["http", "default-timeout"], why.into(), None));
    }
    Ok(())
}

/// A node that receives its hand-off request in time must not conclude that the manager is unresponsive.
fn check_manager_silence(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    if u128::from(file.manager_silence_ms())
        > (file.hand_off.ack_timeout + file.hand_off.stop_resend_interval * 2).as_millis()
    {
        return Ok(());
    }
    let why = "`manager-silence-leases` leases must be longer than `hand-off.ack-timeout` plus twice `hand-off.stop-resend-interval`: otherwise a node re-registers before it receives the hand-off request";
    Err(input.at(&["manager-silence-leases"], why.into(), None))
}

fn addresses(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    for range in &file.outgoing_http.allow_addresses {
        if let Err(why) = range.parse::<AddressRange>() {
            let help = "write a range such as \"10.0.0.0/8\", or one address";
            return Err(input.at(&["outgoing-http", "allow-addresses"], why, Some(help.into())));
        }
    }
    Ok(())
}

fn strategy(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    let name = &file.rebalance.strategy;
    let error = match BuiltinStrategy::from_name(name) {
        Ok(BuiltinStrategy::Stateless) => {
            let why =
                "the strategy `stateless` is for single pools: the pool `default` needs a manager";
            let help =
                "create a pool with it: `ostraca pool create NAME --shards N --strategy stateless`";
            return Err(input.at(&["rebalance", "strategy"], why.into(), Some(help.into())));
        }
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let near = closest_name(name, BuiltinStrategy::ALL.map(BuiltinStrategy::name));
    let help = near.map(|near| format!("did you mean `{near}`?"));
    Err(input.at(&["rebalance", "strategy"], error.to_string(), help))
}

fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

fn times(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    let (network, entities, store) = (&file.network, &file.entities, &file.store);
    let (hand_off, partition) = (&file.hand_off, &file.partition);
    let all = [
        (["", "lease"], file.lease, 100 * MS, HOUR),
        (["", "renew-interval"], file.renew_interval, 10 * MS, HOUR),
        (["", "lease-margin"], file.lease_margin, 10 * MS, HOUR),
        (["", "report-delay"], file.report_delay, MS, HOUR),
        (["", "campaign-stagger"], file.campaign_stagger, MS, HOUR),
        (["network", "hello-timeout"], network.hello_timeout, 100 * MS, HOUR),
        (["network", "open-timeout"], network.open_timeout, 100 * MS, HOUR),
        (["network", "frame-timeout"], network.frame_timeout, 100 * MS, HOUR),
        (["network", "reply-timeout"], network.reply_timeout, 100 * MS, HOUR),
        (["network", "upload-fragment-timeout"], network.upload_fragment_timeout, 100 * MS, HOUR),
        (["network", "upload-timeout"], network.upload_timeout, 100 * MS, 24 * HOUR),
        (["network", "upload-queue-timeout"], network.upload_queue_timeout, Duration::ZERO, HOUR),
        (["network", "keep-alive-interval"], network.keep_alive_interval, 100 * MS, HOUR),
        (["network", "idle-timeout"], network.idle_timeout, 200 * MS, HOUR),
        (["peers", "keep-alive-interval"], file.peers.keep_alive_interval, 10 * MS, HOUR),
        (["peers", "idle-timeout"], file.peers.idle_timeout, 20 * MS, HOUR),
        (["gateway", "buffer-timeout"], file.gateway.buffer_timeout, MS, HOUR),
        (["gateway", "max-backoff"], file.gateway.max_backoff, MS, HOUR),
        (["gateway", "default-timeout"], file.gateway.default_timeout, MS, 24 * HOUR),
        (["gateway", "max-timeout"], file.gateway.max_timeout, MS, 24 * HOUR),
        (["traces", "interval"], file.traces.interval, 10 * MS, HOUR),
        (["traces", "timeout"], file.traces.timeout, 10 * MS, HOUR),
        (["http", "header-timeout"], file.http.header_timeout, 10 * MS, HOUR),
        (["http", "body-timeout"], file.http.body_timeout, 10 * MS, HOUR),
        (["http", "default-timeout"], file.http.default_timeout, MS, 24 * HOUR),
        (["http", "max-timeout"], file.http.max_timeout, MS, 24 * HOUR),
        (["hand-off", "ack-timeout"], hand_off.ack_timeout, MS, HOUR),
        (["hand-off", "stop-resend-interval"], hand_off.stop_resend_interval, 10 * MS, HOUR),
        (["hand-off", "timeout"], hand_off.timeout, 10 * MS, 24 * HOUR),
        (["hand-off", "shard-start-timeout"], hand_off.shard_start_timeout, 10 * MS, 24 * HOUR),
        (["rebalance", "interval"], file.rebalance.interval, 10 * MS, 24 * HOUR),
        (["rebalance", "retry-interval"], file.rebalance.retry_interval, 10 * MS, HOUR),
        (["rebalance", "load-interval"], file.rebalance.load_interval, 100 * MS, HOUR),
        (["rebalance", "external-timeout"], file.rebalance.external_timeout, 100 * MS, 24 * HOUR),
        (["guests", "tick-interval"], file.guests.tick_interval, MS, 1_000 * MS),
        (["guests", "deploy-wait-timeout"], file.guests.deploy_wait_timeout, Duration::ZERO, HOUR),
        (["guests", "turn-time-ceiling"], file.guests.turn_time_ceiling, MS, 60_000 * MS),
        (["compiler", "timeout"], file.compiler.timeout, 100 * MS, HOUR),
        (["entities", "order-timeout"], entities.order_timeout, MS, HOUR),
        (["entities", "max-clock-skew"], entities.max_clock_skew, 1_000 * MS, HOUR),
        (["entities", "lane-ttl"], entities.lane_ttl, 1_000 * MS, 24 * 30 * HOUR),
        (["entities", "idempotency-ttl"], entities.idempotency_ttl, 1_000 * MS, 24 * 30 * HOUR),
        (["entities", "instance-slot-timeout"], entities.instance_slot_timeout, MS, HOUR),
        (["entities", "claim-backoff"], entities.claim_backoff, MS, HOUR),
        (["entities", "start-backoff"], entities.start_backoff, MS, HOUR),
        (["entities", "stop-timeout"], entities.stop_timeout, MS, HOUR),
        (["entities", "timer-backoff"], entities.timer_backoff, 10 * MS, HOUR),
        (["entities", "timer-max-backoff"], entities.timer_max_backoff, 10 * MS, 24 * HOUR),
        (["entities", "tell-backoff"], entities.tell_backoff, 10 * MS, HOUR),
        (["entities", "tell-max-backoff"], entities.tell_max_backoff, 10 * MS, 24 * HOUR),
        (["postgres", "connect-timeout"], file.postgres.connect_timeout, 10 * MS, HOUR),
        (["postgres", "statement-timeout"], file.postgres.statement_timeout, 10 * MS, HOUR),
        (["postgres", "watch-interval"], file.postgres.watch_interval, MS, HOUR),
        (["etcd", "connect-timeout"], file.etcd.connect_timeout, 10 * MS, HOUR),
        (["etcd", "attempt-timeout"], file.etcd.attempt_timeout, 10 * MS, HOUR),
        (["etcd", "watch-timeout"], file.etcd.watch_timeout, 10 * MS, HOUR),
        (["kubernetes", "connect-timeout"], file.kubernetes.connect_timeout, 10 * MS, HOUR),
        (["kubernetes", "attempt-timeout"], file.kubernetes.attempt_timeout, 10 * MS, HOUR),
        (["kubernetes", "watch-timeout"], file.kubernetes.watch_timeout, 10 * MS, HOUR),
        (["health-check", "interval"], file.health_check.interval, 10 * MS, HOUR),
        (["health-check", "timeout"], file.health_check.timeout, 10 * MS, HOUR),
        (["partition", "keep-alive-interval"], partition.keep_alive_interval, 10 * MS, HOUR),
        (["partition", "arbiter-timeout"], partition.arbiter_timeout, 10 * MS, HOUR),
        (["partition", "arbiter-flag-timeout"], partition.arbiter_flag_timeout, 10 * MS, HOUR),
        (["store", "call-timeout"], store.call_timeout, 10 * MS, HOUR),
        (["store", "retry-interval"], store.retry_interval, 10 * MS, HOUR),
        (["store", "flush-interval"], store.flush_interval, 10 * MS, 60_000 * MS),
        (["store", "low-water-check-interval"], store.low_water_check_interval, 10 * MS, HOUR),
    ];
    for (path, value, least, most) in all {
        if !(least..=most).contains(&value) {
            return Err(range(
                input,
                &path,
                &units::format_duration(least),
                &units::format_duration(most),
            ));
        }
    }
    for (section, keep_alive, idle) in [
        ("network", network.keep_alive_interval, network.idle_timeout),
        ("peers", file.peers.keep_alive_interval, file.peers.idle_timeout),
    ] {
        if keep_alive * 2 > idle {
            let why = "`keep-alive-interval` must be at most half of `idle-timeout`: otherwise idle connections close";
            return Err(input.at(&[section, "keep-alive-interval"], why.into(), None));
        }
    }
    if partition.arbiter_flag_timeout < partition.keep_alive_interval * 2 {
        let why = "`arbiter-flag-timeout` must be at least twice `keep-alive-interval`: the winner sends its flag once in each interval, and one may be lost";
        return Err(input.at(&["partition", "arbiter-flag-timeout"], why.into(), None));
    }
    if partition.arbiter_timeout < partition.arbiter_flag_timeout {
        let why = "`arbiter-timeout` must not be shorter than `arbiter-flag-timeout`: otherwise the lease is taken again before the last losers have ended";
        return Err(input.at(&["partition", "arbiter-timeout"], why.into(), None));
    }
    if file.gateway.default_timeout > file.gateway.max_timeout {
        let why = "`default-timeout` must not be longer than `max-timeout`";
        return Err(input.at(&["gateway", "default-timeout"], why.into(), None));
    }
    if hand_off.ack_timeout + entities.stop_timeout >= hand_off.timeout {
        let why = "`timeout` must be longer than `ack-timeout` and `entities.stop-timeout` together: otherwise a slow stop is aborted";
        return Err(input.at(&["hand-off", "timeout"], why.into(), None));
    }
    Ok(())
}

fn sizes(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let (network, guests, entities, store) =
        (&file.network, &file.guests, &file.entities, &file.store);
    let all = [
        // The body of a command that handles 256 dead letters has 2 KiB.
        (["network", "max-message"], network.max_message, 4 * KIB, 32 * MIB),
        (["http", "max-header-bytes"], file.http.max_header_bytes, 8 * KIB, MIB),
        (["http", "max-body-bytes"], file.http.max_body_bytes, MIB, 2 * GIB),
        (["network", "session-in-flight-bytes"], network.session_in_flight_bytes, KIB, GIB),
        // Pages of channels may use half of each: the page on its way to a client and the next one.
        (["network", "connection-bytes"], network.connection_bytes, MIB, 64 * GIB),
        (["network", "principal-bytes"], network.principal_bytes, MIB, 64 * GIB),
        (["network", "node-bytes"], network.node_bytes, MIB, 1024 * GIB),
        (["network", "stream-receive-window"], network.stream_receive_window, 16 * KIB, GIB),
        (
            ["network", "connection-receive-window"],
            network.connection_receive_window,
            16 * KIB,
            GIB,
        ),
        (["network", "send-window"], network.send_window, 16 * KIB, GIB),
        (["network", "socket-buffer"], network.socket_buffer, 4 * KIB, GIB),
        (["peers", "max-frame"], file.peers.max_frame, 20 * MIB, GIB),
        (["peers", "in-flight-message-bytes"], file.peers.in_flight_message_bytes, KIB, 64 * GIB),
        (["peers", "in-flight-request-bytes"], file.peers.in_flight_request_bytes, KIB, 64 * GIB),
        (["peers", "control-message-bytes"], file.peers.control_message_bytes, KIB, 64 * GIB),
        (["gateway", "buffered-bytes"], file.gateway.buffered_bytes, 0, 64 * GIB),
        (["gateway", "link-bytes"], file.gateway.link_bytes, KIB, 64 * GIB),
        (["guests", "pooled-instance-memory"], guests.pooled_instance_memory, 64 * KIB, 4 * GIB),
        (["guests", "max-live-memory"], guests.max_live_memory, 16 * MIB, MAX_LIVE_MEMORY),
        (["guests", "compile-cache-limit"], guests.compile_cache_limit, MIB, 1024 * GIB),
        (["guests", "component-limit"], guests.component_limit, KIB, GIB),
        (["guests", "wasm-stack"], guests.wasm_stack, 64 * KIB, 64 * MIB),
        (["guests", "memory-ceiling"], guests.memory_ceiling, 64 * KIB, 4 * GIB),
        // They are a part of the type's row, which has at most 64 KiB, as has the block of one method.
        (["components", "schema-bytes"], file.components.schema_bytes, 0, 60 * KIB),
        (["compiler", "max-memory"], file.compiler.max_memory, 0, 1024 * GIB),
        // One session may use half of this, and the whole session is written with each of its turns.
        (["entities", "unsettled-bytes"], entities.unsettled_bytes, KIB, 8 * MIB),
        (["entities", "idempotency-bytes"], entities.idempotency_bytes, KIB, 8 * MIB),
        (["entities", "inline-lane-bytes"], entities.inline_lane_bytes, 0, 64 * KIB),
        (["store", "cache-bytes"], store.cache_bytes, MIB, 1024 * GIB),
        (["store", "queue-bytes"], store.queue_bytes, MIB, 64 * GIB),
        (["store", "batch-bytes"], store.batch_bytes, 64 * KIB, GIB),
        (["store", "low-water-bytes"], store.low_water_bytes, 0, 1024 * 1024 * GIB),
        (["store", "watch-history-bytes"], store.watch_history_bytes, 64 * KIB, GIB),
        (["etcd", "batch-bytes"], file.etcd.batch_bytes, 64 * KIB, GIB),
    ];
    for (path, value, least, most) in all {
        if !(least..=most).contains(&value) {
            return Err(range(input, &path, &units::format_size(least), &units::format_size(most)));
        }
    }
    let (connection, principal) = (network.connection_bytes, network.principal_bytes);
    if connection > principal || principal > network.node_bytes {
        let why = "`connection-bytes` must not exceed `principal-bytes`, nor `principal-bytes` exceed `node-bytes`";
        return Err(input.at(&["network", "principal-bytes"], why.into(), None));
    }
    Ok(())
}

fn counts(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    const MILLION: u32 = 1_000_000;
    let (network, entities, store) = (&file.network, &file.entities, &file.store);
    let components = &file.components;
    let all = [
        (["network", "session-in-flight-messages"], network.session_in_flight_messages, MILLION),
        (["network", "max-streams"], network.max_streams, MILLION),
        (["network", "max-connections"], network.max_connections, MILLION),
        (["network", "principal-streams"], network.principal_streams, 10 * MILLION),
        (["network", "principal-connections"], network.principal_connections, MILLION),
        (["network", "max-uploads"], network.max_uploads, 64),
        (["network", "principal-uploads"], network.principal_uploads, 64),
        (["cluster", "shards"], file.cluster.shards.unwrap_or(1), MAX_SHARDS),
        (["peers", "max-connections"], file.peers.max_connections, 65_536),
        (["peers", "in-flight-messages"], file.peers.in_flight_messages, 10 * MILLION),
        (["peers", "in-flight-requests"], file.peers.in_flight_requests, 10 * MILLION),
        (["peers", "control-messages"], file.peers.control_messages, 10 * MILLION),
        (["gateway", "buffered-messages"], file.gateway.buffered_messages, 10 * MILLION),
        (["gateway", "max-channel-feeds"], file.gateway.max_channel_feeds, MILLION),
        (["metrics", "max-methods"], file.metrics.max_methods, 100_000),
        (["traces", "max-rate"], file.traces.max_rate, MILLION),
        (["traces", "max-queued-spans"], file.traces.max_queued_spans, MILLION),
        (["gateway", "link-messages"], file.gateway.link_messages, 10 * MILLION),
        (["hand-off", "max-drain-hand-offs"], file.hand_off.max_drain_hand_offs, MAX_SHARDS),
        (["", "weight"], file.weight, 1_000),
        (["hand-off", "max-relocations"], file.hand_off.max_relocations, MAX_SHARDS),
        (["rebalance", "load-tolerance"], file.rebalance.load_tolerance, 1_000),
        (["rebalance", "min-hosts"], file.rebalance.min_hosts, MAX_MIN_HOSTS),
        (["rebalance", "max-hand-offs"], file.rebalance.max_hand_offs, MAX_SHARDS),
        (["rebalance", "max-pins"], file.rebalance.max_pins, 4_096),
        (["rebalance", "least-shard-threshold"], file.rebalance.least_shard_threshold, MAX_SHARDS),
        (
            ["rebalance", "least-shard-max-moving"],
            file.rebalance.least_shard_max_moving,
            MAX_SHARDS,
        ),
        (["partition", "keep-alive-failures"], file.partition.keep_alive_failures, 1_000),
        (["", "manager-silence-leases"], file.manager_silence_leases, 1_000),
        (
            ["guests", "max-live-instances"],
            file.guests.max_live_instances.unwrap_or(1),
            MAX_LIVE_INSTANCES,
        ),
        (["components", "core-instances"], components.core_instances, 10_000),
        (["components", "component-instances"], components.component_instances, 10_000),
        (["components", "memories"], components.memories, 1_000),
        (["components", "tables"], components.tables, 10_000),
        (["components", "functions"], components.functions, 10 * MILLION),
        (["components", "types"], components.types, MILLION),
        (["components", "definitions"], components.definitions, 10 * MILLION),
        (["compiler", "max-concurrent"], file.compiler.max_concurrent, 64),
        (["outgoing-http", "max-connections"], file.outgoing_http.max_connections, 65_536),
        (["entities", "max-lanes"], entities.max_lanes, MILLION),
        (["entities", "idempotency-keys"], entities.idempotency_keys, 50_000),
        (["entities", "max-ask-depth"], entities.max_ask_depth, 64),
        (["entities", "max-channel-reads"], entities.max_channel_reads, MILLION),
        (["entities", "purge-page"], entities.purge_page, 10_000),
        (["entities", "fan-out-page"], entities.fan_out_page, 1_000),
        (["entities", "max-stopped"], entities.max_stopped, MILLION),
        (["entities", "recovery-starts"], entities.recovery_starts, 10_000),
        (["entities", "max-gated-turns"], entities.max_gated_turns, MILLION),
        (["entities", "max-copies"], entities.max_copies, MILLION),
        (["postgres", "writers"], file.postgres.writers, 1_000),
        (["postgres", "readers"], file.postgres.readers, 1_000),
        (["postgres", "row-changes"], file.postgres.row_changes, 10 * MILLION),
        (["etcd", "batch-rows"], file.etcd.batch_rows, 100_000),
        (["kubernetes", "connections"], file.kubernetes.connections, 1_000),
        (["kubernetes", "page-rows"], file.kubernetes.page_rows, 100_000),
        (["store", "queue-commits"], store.queue_commits, 10 * MILLION),
        (["store", "queue-metadata-ops"], store.queue_metadata_ops, 10 * MILLION),
        (["store", "queue-reads"], store.queue_reads, 10 * MILLION),
        (["store", "batch-commits"], store.batch_commits, MILLION),
        (["store", "batch-records"], store.batch_records, MILLION),
        (["store", "head-cache"], store.head_cache, 10 * MILLION),
        (["store", "readers"], store.readers, 64),
        (["store", "watch-history-changes"], store.watch_history_changes, 10 * MILLION),
        (["store", "backup-changes"], store.backup_changes, 100 * MILLION),
    ];
    if network.reserved_connections > MILLION {
        return Err(range(input, &["network", "reserved-connections"], "0", "1000000"));
    }
    for (path, value, most) in all {
        if !(1..=most).contains(&value) {
            return Err(range(input, &path, "1", &most.to_string()));
        }
    }
    Ok(())
}

/// Checks the names of pools and their limits.
fn pool_limits(input: &SourceText<'_>, file: &ConfigFile) -> Result<(), ConfigError> {
    const LEAST_MEMORY: u64 = 1 << 20;
    for (pool, limits) in &file.guests.pools {
        check_name(pool).map_err(|why| {
            let help = "write the name of a pool, as in `ostraca pool list`";
            input.at(&["guests", "pools", pool], format!("the pool {why}"), Some(help.into()))
        })?;
        let at = |key| ["guests", "pools", pool, key];
        let instances = limits.max_live_instances.unwrap_or(1);
        if !(1..=MAX_LIVE_INSTANCES).contains(&instances) {
            let most = MAX_LIVE_INSTANCES.to_string();
            return Err(range(input, &at("max-live-instances"), "1", &most));
        }
        let memory = limits.max_live_memory.unwrap_or(LEAST_MEMORY);
        if !(LEAST_MEMORY..=MAX_LIVE_MEMORY).contains(&memory) {
            let [least, most] = [LEAST_MEMORY, MAX_LIVE_MEMORY].map(units::format_size);
            return Err(range(input, &at("max-live-memory"), &least, &most));
        }
    }
    Ok(())
}

fn range(input: &SourceText<'_>, path: &[&str], least: &str, most: &str) -> ConfigError {
    let key = path.last().copied().unwrap_or_default();
    // Top-level keys are listed under an empty section, so that all paths have the same length.
    let path = path.strip_prefix(&[""]).unwrap_or(path);
    input.at(path, format!("`{key}` must be from {least} to {most}"), None)
}
