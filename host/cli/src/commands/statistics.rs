//! `ostraca shards --stats`: what shards do and hold, by pool, by type and by shard (K37, K38).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_client::{ShardFigures, ShardPause, ShardStatistics};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::args::{Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// How many shards are shown, those with the most turns.
const SHOWN: usize = 20;

/// One shard, with its rates over the interval.
struct Line<'a> {
    now: &'a ShardFigures,
    pool: &'a str,
    turns_per_second: u64,
    committed_per_second: u64,
    /// How long its last pause took, in microseconds.
    last_pause_us: Option<u64>,
}

pub(crate) async fn run(global: &Global, interval: Duration) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let before = connection::with_spinner("contacting the nodes", client.shard_figures()).await?;
    let start = Instant::now();
    sleep(interval).await;
    let now = client.shard_figures().await?;
    let elapsed = start.elapsed();
    let (pauses, shards) = (client.pauses().await?, client.shards().await?);
    connection::disconnect(client).await;
    let pools: BTreeMap<_, _> = shards.iter().map(|it| (it.shard, it.pool.as_str())).collect();
    let mut lines = lines(&before, &now, elapsed, &pauses);
    for line in &mut lines {
        line.pool = pools.get(&line.now.shard).copied().unwrap_or_default();
    }
    match global.output {
        OutputFormat::Json => output::json(&to_json(&lines, &now)),
        OutputFormat::Table => print(&mut lines, &now),
    }
    Ok(Exit::Done)
}

fn lines<'a>(
    before: &ShardStatistics,
    now: &'a ShardStatistics,
    elapsed: Duration,
    pauses: &[ShardPause],
) -> Vec<Line<'a>> {
    let before: BTreeMap<_, _> =
        before.shards.iter().map(|it| ((it.shard, it.epoch), it)).collect();
    // The list begins with the oldest one.
    let pauses: BTreeMap<_, _> = pauses.iter().map(|it| (it.shard, it.duration_us)).collect();
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let lines = now.shards.iter().map(|now| {
        let before = before.get(&(now.shard, now.epoch));
        let rate = |of: fn(&ShardFigures) -> u64| {
            let before = before.map_or(0, |before| of(before));
            of(now).saturating_sub(before).saturating_mul(1_000) / millis
        };
        Line {
            now,
            pool: "",
            turns_per_second: rate(|it| it.turns),
            committed_per_second: rate(|it| it.committed_bytes),
            last_pause_us: pauses.get(&now.shard).copied(),
        }
    });
    lines.collect()
}

fn live(figures: &ShardFigures) -> u64 {
    figures.live.values().sum()
}

/// What is stored, and whether all of it has been counted.
#[derive(Clone, Copy)]
struct Stored {
    entities: u64,
    state_bytes: u64,
    is_counted: bool,
}

impl Stored {
    const NOTHING: Self = Self { entities: 0, state_bytes: 0, is_counted: true };

    fn add(&mut self, figures: &ShardFigures, entity_type: Option<&str>) {
        self.is_counted &= figures.stored_is_counted;
        for (name, stored) in &figures.stored {
            if entity_type.is_none_or(|wanted| wanted == name) {
                self.entities += stored.entities;
                self.state_bytes += stored.state_bytes;
            }
        }
    }

    /// A figure that is higher in truth, if not everything has been counted.
    fn columns(self) -> [String; 2] {
        let least = if self.is_counted { "" } else { ">= " };
        [format!("{least}{}", self.entities), format!("{least}{}", output::size(self.state_bytes))]
    }
}

/// What a pool or a shard does and holds, in the columns behind its name.
fn columns(lines: &[&Line<'_>]) -> [String; 7] {
    let sum = |of: &dyn Fn(&Line<'_>) -> u64| lines.iter().map(|line| of(line)).sum::<u64>();
    let mut stored = Stored::NOTHING;
    lines.iter().for_each(|line| stored.add(line.now, None));
    let [entities, state] = stored.columns();
    [
        entities,
        state,
        sum(&|line| live(line.now)).to_string(),
        sum(&|line| line.turns_per_second).to_string(),
        format!("{}/s", output::size(sum(&|line| line.committed_per_second))),
        output::size(sum(&|line| line.now.memory_bytes)),
        sum(&|line| line.now.queued).to_string(),
    ]
}

fn print(lines: &mut [Line<'_>], now: &ShardStatistics) {
    let mut pools: BTreeMap<&str, Vec<&Line<'_>>> = BTreeMap::new();
    let mut types: BTreeMap<&str, u64> = BTreeMap::new();
    for line in lines.iter() {
        pools.entry(line.pool).or_default().push(line);
        for (name, count) in &line.now.live {
            *types.entry(name).or_default() += count;
        }
        for name in line.now.stored.keys() {
            types.entry(name).or_default();
        }
    }
    let rows = pools.iter().map(|(name, lines)| {
        let [stored, state, live, turns, written, memory, queued] = columns(lines);
        let shards = lines.len().to_string();
        [(*name).to_owned(), shards, stored, state, live, turns, written, memory, queued]
    });
    let headers =
        ["POOL", "SHARDS", "STORED", "STATE", "LIVE", "TURNS/S", "WRITTEN", "MEMORY", "QUEUED"];
    output::table(headers, rows.collect());
    if !types.is_empty() {
        output::line("");
        let rows = types.iter().map(|(name, live)| {
            let mut stored = Stored::NOTHING;
            lines.iter().for_each(|line| stored.add(line.now, Some(name)));
            let [entities, state] = stored.columns();
            [(*name).to_owned(), entities, state, live.to_string()]
        });
        output::table(["TYPE", "STORED", "STATE", "LIVE"], rows.collect());
    }
    lines.sort_by_key(|line| (std::cmp::Reverse(line.turns_per_second), line.now.shard));
    output::line("");
    let rows = lines.iter().take(SHOWN).map(|line| {
        let [stored, state, live, turns, written, memory, queued] = columns(&[line]);
        let pause = line.last_pause_us.map_or_else(String::new, |us| format!("{} ms", us / 1_000));
        let shard = line.now.shard.to_string();
        let owner = line.now.owner.clone();
        [shard, owner, stored, state, live, turns, written, memory, queued, pause]
    });
    let headers = [
        "SHARD",
        "OWNER",
        "STORED",
        "STATE",
        "LIVE",
        "TURNS/S",
        "WRITTEN",
        "MEMORY",
        "QUEUED",
        "LAST PAUSE",
    ];
    output::table(headers, rows.collect());
    let counting = lines.iter().filter(|line| !line.now.stored_is_counted).count();
    if counting > 0 {
        output::line(&format!(
            "{counting} of {} shards are still being counted: ask again for what they store",
            lines.len()
        ));
    }
    if lines.len() > SHOWN {
        output::line(&format!(
            "and {} more shards: `--output json` prints all of them",
            lines.len() - SHOWN
        ));
    }
    for issue in &now.unresponsive {
        output::line(&format!("{} did not respond: {}", issue.node, issue.reason));
    }
}

/// By type; `null` while it has not been counted.
fn stored_json(figures: &ShardFigures) -> Value {
    if !figures.stored_is_counted {
        return Value::Null;
    }
    let by_type = figures.stored.iter().map(|(name, stored)| {
        let value = json!({ "entities": stored.entities, "state_bytes": stored.state_bytes });
        (name.clone(), value)
    });
    Value::Object(by_type.collect())
}

fn to_json(lines: &[Line<'_>], now: &ShardStatistics) -> Value {
    let shards = lines.iter().map(|line| {
        let it = line.now;
        json!({
            "shard": it.shard, "pool": line.pool, "owner": it.owner, "epoch": it.epoch,
            "serving": it.serving, "live": it.live, "stored": stored_json(it), "turns": it.turns,
            "turns_per_second": line.turns_per_second, "committed_bytes": it.committed_bytes,
            "committed_bytes_per_second": line.committed_per_second,
            "memory_bytes": it.memory_bytes, "queued": it.queued,
            "last_pause_us": line.last_pause_us,
        })
    });
    let unresponsive = now.unresponsive.iter();
    let unresponsive =
        unresponsive.map(|issue| json!({ "node": issue.node, "reason": issue.reason }));
    json!({
        "shards": shards.collect::<Vec<_>>(),
        "unresponsive": unresponsive.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use ostraca_client::StoredEntities;

    use super::*;

    fn figures(shard: u32, epoch: u64, turns: u64) -> ShardFigures {
        let live = [("cart".to_owned(), 2), ("order".to_owned(), 1)].into();
        ShardFigures {
            shard,
            epoch,
            turns,
            committed_bytes: turns * 100,
            live,
            ..ShardFigures::default()
        }
    }

    #[test]
    fn k38_what_is_not_counted_is_shown_as_a_minimum() {
        let mut counted = figures(1, 1, 0);
        counted.stored_is_counted = true;
        let stored = |entities| StoredEntities { entities, state_bytes: entities * 1_024 };
        counted.stored = [("cart".to_owned(), stored(3)), ("order".to_owned(), stored(4))].into();
        let mut all = Stored::NOTHING;
        all.add(&counted, None);
        assert_eq!(all.columns(), ["7", "7.0 KiB"]);
        let mut carts = Stored::NOTHING;
        carts.add(&counted, Some("cart"));
        assert_eq!(carts.columns()[0], "3");
        all.add(&figures(2, 1, 0), None);
        assert_eq!(all.columns()[0], ">= 7");
        assert_eq!(stored_json(&figures(2, 1, 0)), Value::Null);
        assert_eq!(stored_json(&counted)["order"]["state_bytes"], 4_096);
    }

    #[test]
    fn k38_rates_are_differences_under_one_owner() {
        let of = |shards| ShardStatistics { shards, ..ShardStatistics::default() };
        let before = of(vec![figures(1, 4, 1_000), figures(2, 1, 500)]);
        // The second shard has another owner, which has counted from 0 on.
        let now = of(vec![figures(1, 4, 1_300), figures(2, 2, 40)]);
        let pause = |duration_us| ShardPause { shard: 2, duration_us, ..ShardPause::default() };
        let lines = lines(&before, &now, Duration::from_secs(2), &[pause(9_000), pause(7_000)]);
        let rates: Vec<_> =
            lines.iter().map(|it| (it.turns_per_second, it.committed_per_second)).collect();
        assert_eq!(rates, [(150, 15_000), (20, 2_000)]);
        assert_eq!((lines[0].last_pause_us, lines[1].last_pause_us), (None, Some(7_000)));
        assert_eq!(columns(&[&lines[0], &lines[1]])[2..4], ["6", "170"]);
    }
}
