//! `ostraca watch TYPE/ID [CHANNEL]`: prints the items that an entity emits.

use ostraca_client::{ChannelEvent, ChannelItem, Client, Entity, SubscribeFrom};
use ostraca_codes::codes;
use serde_json::{Value, json};

use super::send;
use crate::args::{Global, OutputFormat, Watch};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Watch) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let client = connection::connect(global).await?;
    let channel = match &args.channel {
        Some(channel) => channel.clone(),
        None => only_channel(&client, &entity).await?,
    };
    let from = match (args.oldest, &args.after, args.after_version) {
        (true, ..) => SubscribeFrom::Oldest,
        (_, Some(cursor), _) => SubscribeFrom::After(cursor.clone()),
        (_, _, Some(version)) => SubscribeFrom::AfterVersion(version),
        _ => SubscribeFrom::Now,
    };
    let mut subscription = client.subscribe(&entity, &channel, from);
    let mut left = args.count;
    while left != Some(0) {
        match subscription.next().await? {
            ChannelEvent::Item(item) => {
                print(global, &item);
                left = left.map(|left| left - 1);
            }
            ChannelEvent::Lost(count) => print_lost(global, count),
        }
    }
    drop(subscription);
    connection::disconnect(client).await;
    Ok(Exit::Done)
}

/// The entity's channel, if it has emitted on one only.
async fn only_channel(client: &Client, entity: &Entity) -> Result<String, Failure> {
    let detail = client.inspect(entity, false).await?;
    match &detail.channels[..] {
        [only] => Ok(only.name.clone()),
        [] => {
            let text = format!("{entity} has not emitted on any channel yet");
            let help = format!("name the channel to wait for: ostraca watch {entity} CHANNEL");
            Err(Failure::usage(codes::USAGE, text).help(help))
        }
        several => {
            let names: Vec<_> = several.iter().map(|channel| &*channel.name).collect();
            let text = format!("{entity} has several channels");
            let help = format!("name one of them: {}", names.join(", "));
            Err(Failure::usage(codes::USAGE, text).help(help))
        }
    }
}

fn print(global: &Global, item: &ChannelItem) {
    if global.output == OutputFormat::Table {
        return output::bytes(&item.data);
    }
    let (text, value) = match std::str::from_utf8(&item.data) {
        Ok(text) => (Some(text), serde_json::from_str::<Value>(text).ok()),
        Err(_) => (None, None),
    };
    // An item that is not JSON is shown as text, or else as hexadecimal digits.
    let hex = text.is_none().then(|| super::deployments::hex(&item.data));
    let text = text.filter(|_| value.is_none());
    output::json_line(&json!({
        "cursor": item.cursor, "version": item.version, "unix_ms": item.utc_ms,
        "timestamp": output::wall(item.utc_ms), "item": value, "text": text, "hex": hex,
    }));
}

fn print_lost(global: &Global, count: Option<u64>) {
    match (global.output, count) {
        (OutputFormat::Json, count) => output::json_line(&json!({ "lost": count })),
        (OutputFormat::Table, Some(1)) => output::line("… 1 item is no longer available"),
        (OutputFormat::Table, Some(count)) => {
            output::line(&format!("… {count} items are no longer available"));
        }
        (OutputFormat::Table, None) => {
            output::line(
                "… some items may be missing: the entity's history has changed, or begins later",
            );
        }
    }
}
