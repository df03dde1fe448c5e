//! `placer PROFILE POOL LIST [SECONDS]`: keeps the shards of a pool where a list of partitions says.
//!
//! PROFILE is the profile of a principal with the permission `operate`. LIST is a file that the other system, or a script
//! that asks it, replaces when partitions move. The list is read, and the cluster told, at each interval (10 s by
//! default): much more often than `rebalance.external-timeout`, after which the cluster would place the shards itself.
//! The pool needs the strategy `external`: `ostraca pool create orders --strategy external`.

#![allow(clippy::print_stdout, reason = "it prints how much is in place")]

use std::path::PathBuf;
use std::time::Duration;

use ostraca_client::{Client, PlacementRequest, Profile};
use placer::{parse, placement};

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |name: &str| arguments.next().ok_or(format!("name the {name}"));
    let profile = Profile::load(&PathBuf::from(argument("profile")?))?;
    let (pool, list) = (argument("pool")?, PathBuf::from(argument("list of partitions")?));
    let seconds = argument("interval").map_or(Ok(10), |text| text.parse())?;
    let client = Client::connect(profile).await?;
    let mut ticks = tokio::time::interval(Duration::from_secs(seconds));
    let mut last = String::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            stop = tokio::signal::ctrl_c() => {
                stop?;
                client.close().await;
                return Ok(());
            }
        }
        // The list, or the cluster, may be unavailable for a moment: the cluster keeps to what was said last.
        let said = match tell(&client, &pool, &list).await {
            Ok(said) => said,
            Err(error) => format!("failed: {error}"),
        };
        if said != last {
            println!("{said}");
            last = said;
        }
    }
}

async fn tell(client: &Client, pool: &str, list: &PathBuf) -> Result<String, Failure> {
    let partitions = parse(&std::fs::read_to_string(list)?)?;
    let pools = client.pools(None).await?;
    let pool = pools.iter().find(|it| it.name == pool).ok_or("the cluster has no such pool")?;
    let placement = Some(placement(pool, &partitions));
    let state = client.placement(PlacementRequest { placement, ..Default::default() }).await?;
    let info = state.placements.into_iter().find(|it| it.pool == pool.name).unwrap_or_default();
    let note = if info.has_effect { "" } else { ", but the pool's strategy is not `external`" };
    Ok(format!("{} of {} shards are in place{note}", info.in_place, info.wanted))
}
