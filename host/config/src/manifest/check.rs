//! Checks the values of a manifest beyond what their types express.

use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::names;
use ostraca_core::shard::OnFailure;

use super::file::{ChannelsSection, GrantsSection, ManifestFile, NOTHING, QUERIES, in_namespace};
use super::{Access, ChannelsKeep, Lifecycle, Manifest, ManifestError, ManifestLimits};
use crate::policy::check_principal_pattern;
use crate::user_file::{SourceText, units};

const NAME: usize = 64;
const SECOND: Duration = Duration::from_secs(1);

/// The largest allowed `turn-bytes`, `reply`, `timer-bytes` and `timers`. A turn writes the first two, together with
/// the unsettled replies of its session (half of `unsettled-bytes`, 4 MiB at most), the head, and its timers (1 MiB at
/// most, with names and fixed parts). No store of the cluster, local or remote, accepts more in one commit.
const MOST_TURN_BYTES: u64 = 8 << 20;
const MOST_REPLY: u64 = 4 << 20;
const MOST_TIMER_BYTES: u64 = 512 << 10;
const MOST_TIMERS: u32 = 1_000;
/// The largest allowed outbox: all of it is loaded with its entity. `turn-bytes` bounds a turn's tells as well, counted
/// separately from its state, so a type that may tell has [`MOST_COMMIT`] as a further limit. With the names, bodies and failures of so many tells, an entity still fits into one
/// frame between nodes.
const MOST_OUTBOX: u32 = 5_000;
const MOST_OUTBOX_BYTES: u64 = 4 << 20;
/// The longest time to live: a century.
const MOST_TIME_TO_LIVE: Duration = Duration::from_secs(36_500 * 86_400);
/// The largest allowed journal. Nothing loads all of it.
const MOST_JOURNAL: u64 = 1 << 40;
/// The highest limits on channels, whose extents are in each head of their entity, and on the items of a turn, with
/// which it deletes about as many old ones. An item fits into a frame to a client.
const MOST_CHANNELS: u32 = 64;
const MOST_ITEMS: u32 = 1_000;
const MOST_ITEM: u64 = 1 << 20;
/// The largest allowed `keep-items` and `keep-bytes`.
const MOST_KEPT: (u32, u64) = (100_000, 1 << 30);
/// The highest limits on the asks that a turn may start, and on the bytes of their bodies and answers. While the turn
/// waits, both stay in the node's memory.
const MOST_ASKS: u32 = 10_000;
const MOST_ASK_BYTES: u64 = 64 << 20;
/// The same for HTTP calls and the bytes of their requests and responses.
const MOST_HTTP_CALLS: u32 = 1_000;
const MOST_HTTP_BYTES: u64 = 64 << 20;
/// The largest allowed sum of state, tells and reply of one turn.
const MOST_COMMIT: u64 = MOST_TURN_BYTES + MOST_REPLY;
const _: () = assert!(
    (MOST_COMMIT + (4 << 20) + (1 << 20) + (1 << 20)) as usize
        <= ostraca_store::entity::MAX_COMMIT_BYTES
);

pub(super) fn manifest(
    input: &SourceText<'_>,
    file: ManifestFile,
) -> Result<Manifest, ManifestError> {
    required(input, "type", &file.entity_type, "type = \"counter\"")?;
    required(input, "component", &file.component, "component = \"target/ostraca/counter.wasm\"")?;
    name(input, "type", &file.entity_type)?;
    if !file.namespace.is_empty() {
        names::check_namespace(&file.namespace)
            .map_err(|why| input.at(&["namespace"], format!("the namespace {why}"), None))?;
    }
    name(input, "pool", &file.pool)?;
    let shard_key =
        ShardKeyRule::parse(&file.shard_key).map_err(|why| input.at(&["shard-key"], why, None))?;
    let reentrant_queries = match file.reentrant.as_str() {
        NOTHING => false,
        QUERIES => true,
        other => {
            let why = format!("`reentrant` cannot be {other:?}");
            return Err(input.at(
                &["reentrant"],
                why,
                Some("write \"queries\" or \"nothing\"".into()),
            ));
        }
    };
    let limits = limits(input, &file)?;
    let day = Duration::from_secs(86_400);
    if file.lifecycle.idle_timeout < Duration::from_millis(100) || file.lifecycle.idle_timeout > day
    {
        return Err(range(input, &["lifecycle", "idle-timeout"], "100 ms", "24 h"));
    }
    let ChannelsSection { keep_items, keep_bytes } = file.channels;
    if keep_items > MOST_KEPT.0 {
        return Err(range(input, &["channels", "keep-items"], "0", &MOST_KEPT.0.to_string()));
    }
    if !(1..=MOST_KEPT.1).contains(&keep_bytes) {
        let most = units::format_size(MOST_KEPT.1);
        return Err(range(input, &["channels", "keep-bytes"], &units::format_size(1), &most));
    }
    let time_to_live = file.lifecycle.time_to_live;
    if !time_to_live.is_zero() && !(SECOND..=MOST_TIME_TO_LIVE).contains(&time_to_live) {
        return Err(range(input, &["lifecycle", "time-to-live"], "1 s", "36500 days"));
    }
    let on_failure = on_failure(input, &file.lifecycle.on_failure)?;
    let GrantsSection { ask, tell, http, secrets, settings, topics } = &file.grants;
    if !topics.is_empty() {
        let what = "a grant of `topics`";
        return Err(not_yet(input, &["grants", "topics"], what, "leave it out"));
    }
    if let Some(wrong) = http.iter().find(|granted| !is_host(granted)) {
        let why = format!("{wrong:?} is not the name of a host");
        let help = "write \"HOST\" or \"HOST:PORT\", in lower case, without a scheme, a path or a wildcard";
        return Err(input.at(&["grants", "http"], why, Some(help.into())));
    }
    for (key, types) in [("tell", tell), ("ask", ask)] {
        if let Some(wrong) = types.iter().find(|granted| !is_name(granted)) {
            let why = format!("{wrong:?} is not the name of a type");
            return Err(input.at(&["grants", key], why, None));
        }
    }
    for (key, names) in [("secrets", secrets), ("settings", settings)] {
        if let Some(wrong) = names.iter().find(|granted| !is_variable_name(granted)) {
            let why = format!("{wrong:?} is not the name of a secret or a setting");
            let help = format!(
                "write 1 to {NAME} letters, digits, dots, dashes and underscores, starting with a letter or digit"
            );
            return Err(input.at(&["grants", key], why, Some(help)));
        }
    }
    if !tell.is_empty() {
        check_commit(input, &limits)?;
    }
    access(input, &file.access.send)?;
    let send = file.access.send.into_iter().map(|it| in_namespace(&file.namespace, it)).collect();
    Ok(Manifest {
        entity_type: names::qualified(&file.namespace, &file.entity_type).into_owned(),
        component: file.component,
        pool: file.pool,
        shard_key,
        reentrant_queries,
        limits,
        lifecycle: Lifecycle {
            idle_timeout: file.lifecycle.idle_timeout,
            remember_entities: file.lifecycle.remember_entities,
            time_to_live: file.lifecycle.time_to_live,
            on_failure,
        },
        channels: ChannelsKeep { keep_items, keep_bytes },
        grants: super::Grants {
            ask: file.grants.ask,
            tell: file.grants.tell,
            http: file.grants.http,
            secrets: file.grants.secrets,
            settings: file.grants.settings,
        },
        access: Access { send },
    })
}

/// The strategy after a failure (K33).
fn on_failure(input: &SourceText<'_>, text: &str) -> Result<OnFailure, ManifestError> {
    let path = ["lifecycle", "on-failure"];
    let known = [OnFailure::Restart, OnFailure::Resume, OnFailure::Stop, OnFailure::Escalate];
    known.into_iter().find(|strategy| strategy.name() == text).ok_or_else(|| {
        let why = format!("{text:?} is not a strategy");
        let help = "write \"restart\", \"resume\", \"stop\" or \"escalate\"";
        input.at(&path, why, Some(help.into()))
    })
}

fn required(
    input: &SourceText<'_>,
    key: &str,
    value: &str,
    example: &str,
) -> Result<(), ManifestError> {
    if !value.is_empty() {
        return Ok(());
    }
    Err(input.at(&[key], format!("the key `{key}` is required"), Some(format!("add `{example}`"))))
}

fn name(input: &SourceText<'_>, key: &str, value: &str) -> Result<(), ManifestError> {
    if is_name(value) {
        return Ok(());
    }
    let why = format!(
        "`{key}` must be 1 to {NAME} letters, digits, dots, dashes and underscores, starting with a letter or digit"
    );
    Err(input.at(&[key], why, None))
}

fn is_name(value: &str) -> bool {
    value.len() <= NAME
        && value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Whether this can be the name of a secret or a setting.
#[must_use]
pub fn is_variable_name(name: &str) -> bool {
    is_name(name)
}

/// Whether an HTTP grant is a host's name or address, possibly with a port.
fn is_host(granted: &str) -> bool {
    let is_port = |port: &str| {
        !port.starts_with('0')
            && port.bytes().all(|b| b.is_ascii_digit())
            && port.parse::<u16>().is_ok()
    };
    if let Some(rest) = granted.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        let shown = address.parse::<std::net::Ipv6Addr>().map(|address| address.to_string());
        let port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return shown.is_ok_and(|shown| shown == address) && port;
    }
    let (name, port) = match granted.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (granted, None),
    };
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
    };
    name.len() <= 253 && name.split('.').all(is_label) && port.is_none_or(is_port)
}

fn limits(input: &SourceText<'_>, file: &ManifestFile) -> Result<ManifestLimits, ManifestError> {
    let it = &file.limits;
    let sizes: [(&str, u64, u64, u64); 12] = [
        ("memory", it.memory, 64 << 10, 4 << 30),
        ("state", it.state, 1, 64 << 20),
        ("turn-bytes", it.turn_bytes, 1, MOST_TURN_BYTES),
        ("timer-bytes", it.timer_bytes, 1, MOST_TIMER_BYTES),
        ("outbox-bytes", it.outbox_bytes, 1, MOST_OUTBOX_BYTES),
        ("journal", it.journal, 1, MOST_JOURNAL),
        ("item", it.item, 1, MOST_ITEM),
        ("ask-bytes", it.ask_bytes, 1, MOST_ASK_BYTES),
        ("http-bytes", it.http_bytes, 1, MOST_HTTP_BYTES),
        ("message", it.message, 1, 64 << 20),
        ("reply", it.reply, 1, MOST_REPLY),
        ("log-line-bytes", it.log_line_bytes, 16, 1 << 20),
    ];
    for (key, value, least, most) in sizes {
        if !(least..=most).contains(&value) {
            let (least, most) = (units::format_size(least), units::format_size(most));
            return Err(range(input, &["limits", key], &least, &most));
        }
    }
    let times = [
        ("timer-interval", it.timer_interval, Duration::from_millis(10), 24 * 3_600 * SECOND),
        ("ask-timeout", it.ask_timeout, Duration::from_millis(1), 300 * SECOND),
        ("http-timeout", it.http_timeout, Duration::from_millis(1), 300 * SECOND),
        ("turn-time", it.turn_time, Duration::from_millis(1), 60 * SECOND),
        ("activation-time", it.activation_time, Duration::from_millis(1), 60 * SECOND),
    ];
    for (key, value, least, most) in times {
        if !(least..=most).contains(&value) {
            let (least, most) = (units::format_duration(least), units::format_duration(most));
            return Err(range(input, &["limits", key], &least, &most));
        }
    }
    let counts = [
        ("keys", it.keys, 1_000_000),
        ("turn-keys", it.turn_keys, 16_384),
        ("timers", it.timers, MOST_TIMERS),
        ("outbox", it.outbox, MOST_OUTBOX),
        ("channels", it.channels, MOST_CHANNELS),
        ("items", it.items, MOST_ITEMS),
        ("asks", it.asks, MOST_ASKS),
        ("http-calls", it.http_calls, MOST_HTTP_CALLS),
        ("table-elements", it.table_elements, 10_000_000),
        ("mailbox", it.mailbox, 1_000_000),
        ("subscriptions", it.subscriptions, 100_000),
        ("log-lines-per-second", it.log_lines_per_second, 1_000_000),
    ];
    for (key, value, most) in counts {
        if !(1..=most).contains(&value) {
            return Err(range(input, &["limits", key], "1", &most.to_string()));
        }
    }
    Ok(ManifestLimits {
        memory: it.memory,
        table_elements: it.table_elements,
        turn_time: it.turn_time,
        activation_time: it.activation_time,
        state: it.state,
        keys: it.keys,
        turn_keys: it.turn_keys,
        turn_bytes: it.turn_bytes,
        timers: it.timers,
        timer_bytes: it.timer_bytes,
        timer_interval: it.timer_interval,
        outbox: it.outbox,
        outbox_bytes: it.outbox_bytes,
        journal: it.journal,
        channels: it.channels,
        items: it.items,
        item: it.item,
        asks: it.asks,
        ask_bytes: it.ask_bytes,
        ask_timeout: it.ask_timeout,
        http_calls: it.http_calls,
        http_bytes: it.http_bytes,
        http_timeout: it.http_timeout,
        message: it.message,
        reply: it.reply,
        mailbox: it.mailbox,
        subscriptions: it.subscriptions,
        log_lines_per_second: it.log_lines_per_second,
        log_line_bytes: it.log_line_bytes,
    })
}

/// Refuses limits under which a turn could write and tell more than any store accepts in one commit.
fn check_commit(input: &SourceText<'_>, limits: &ManifestLimits) -> Result<(), ManifestError> {
    let tells = limits.outbox_bytes.min(limits.turn_bytes);
    let sum = limits.turn_bytes + tells + limits.reply;
    if sum <= MOST_COMMIT {
        return Ok(());
    }
    let why = format!(
        "`turn-bytes`, `outbox-bytes` and `reply` allow turns of {}; one commit holds {}",
        units::format_size(sum),
        units::format_size(MOST_COMMIT)
    );
    Err(input.at(&["limits", "outbox-bytes"], why, Some("lower one of the three".into())))
}

fn access(input: &SourceText<'_>, send: &[String]) -> Result<(), ManifestError> {
    for (index, rule) in send.iter().enumerate() {
        if let Err(why) = check_principal_pattern(rule, &["client", "token", "entity"]) {
            let help = "write \"*\", \"client/NAME\", \"token/ISSUER/SUBJECT\", \"entity/TYPE\", or the beginning of one with a `*` at the end";
            let path = ["access", "send", &index.to_string()];
            return Err(input.at(&path, why, Some(help.into())));
        }
    }
    Ok(())
}

fn range(input: &SourceText<'_>, path: &[&str], least: &str, most: &str) -> ManifestError {
    let key = path.last().copied().unwrap_or_default();
    input.at(path, format!("`{key}` must be from {least} to {most}"), None)
}

fn not_yet(input: &SourceText<'_>, path: &[&str], what: &str, help: &str) -> ManifestError {
    let why = format!("this release does not support {what} yet");
    input.at_with(codes::NOT_SUPPORTED_YET, path, why, Some(help.into()))
}
