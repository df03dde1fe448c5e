//! Subscriptions: one per stream.

use std::sync::Arc;

use ostraca_codes::codes;
use ostraca_core::names;
use ostraca_core::shard::check_channel_name;
use prost::Message;
use tokio::sync::mpsc;

use super::{ClientInfo, Inner, Service, stopping};
use crate::budget::Charge;
use crate::close_code::CloseCode;
use crate::error::{Error, problem};
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::subscription_frame::Frame;
use crate::proto::{
    ChannelItems, LostItems, Problem, Subscribe, SubscriptionFrame, SubscriptionPosition,
};

/// Maximum length of a type's name in bytes.
const TYPE: usize = 255;
/// Maximum length of an entity id in bytes.
const ID: usize = 512;

/// One step of a subscription.
#[derive(Clone, Debug)]
pub enum SubscriptionEvent {
    /// Where the subscription stands.
    Position(SubscriptionPosition),
    /// The subscriber has missed items.
    Lost(LostItems),
    /// The next items, and their charge against the client's budgets, which is held until QUIC has taken them.
    Items(Arc<ChannelItems>, Arc<Charge>),
    /// Why the subscription ends.
    Problem(Problem),
}

pub(super) async fn serve<S: Service>(
    shared: &Inner<S>,
    peer: &Arc<ClientInfo>,
    request: Subscribe,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let most = match peer.limits.max_frame {
        0 => usize::MAX,
        announced => announced as usize,
    };
    // Its name in the cluster, as the service also finds it.
    let entity_type = names::qualified(&request.namespace, &request.r#type).into_owned();
    let mut events = match check(&request) {
        Ok(()) => shared.service.handle_subscription(peer, request).await,
        Err(problem) => Err(problem),
    }
    .unwrap_or_else(ended_by);
    loop {
        let event = tokio::select! {
            () = shared.stopping.cancelled() => return Err(stopping()),
            () = writer.taken() => return Ok(()),
            event = events.recv() => event,
        };
        let Some(mut event) = event else { return Err(stopping()) };
        // What was permitted when it began may not be any more.
        if let SubscriptionEvent::Items(..) = event
            && let Err(problem) = shared.service.check_subscription(peer, &entity_type)
        {
            event = SubscriptionEvent::Problem(problem);
        }
        let _charge = match &event {
            SubscriptionEvent::Items(_, charge) => Some(charge.clone()),
            _ => None,
        };
        let frames = frames(event, most);
        let last = frames.last().and_then(|frame| frame.frame.as_ref());
        let is_last = matches!(last, Some(Frame::Problem(_)));
        for frame in &frames {
            writer.put(frame);
        }
        // A client that does not read must not keep the node from stopping.
        tokio::select! {
            () = shared.stopping.cancelled() => return Err(stopping()),
            flushed = writer.flush_within(shared.limits.reply_timeout) => flushed?,
        }
        if is_last {
            writer.finish();
            reader.stop(CloseCode::Done);
            return Ok(());
        }
    }
}

/// A subscription that has ended with a problem.
fn ended_by(problem: Problem) -> mpsc::Receiver<SubscriptionEvent> {
    let (sender, receiver) = mpsc::channel(1);
    // The channel has room for one.
    let _ = sender.try_send(SubscriptionEvent::Problem(problem));
    receiver
}

pub(super) fn check(request: &Subscribe) -> Result<(), Problem> {
    let invalid = |text: String| Err(problem(codes::INVALID_REQUEST, text));
    let (of_type, of_id) = (request.r#type.len(), request.id.len());
    if !(1..=TYPE).contains(&of_type) {
        return invalid(format!("type is {of_type} bytes, must be 1 to {TYPE}"));
    }
    if !(1..=ID).contains(&of_id) {
        return invalid(format!("entity id is {of_id} bytes, must be 1 to {ID}"));
    }
    check_channel_name(&request.channel).or_else(invalid)
}

/// The frames of one event. Items that do not fit into one frame of the client are split.
fn frames(event: SubscriptionEvent, most: usize) -> Vec<SubscriptionFrame> {
    let one = |frame| vec![SubscriptionFrame { frame: Some(frame) }];
    let items = match event {
        SubscriptionEvent::Position(position) => return one(Frame::Position(position)),
        SubscriptionEvent::Lost(lost) => return one(Frame::Lost(lost)),
        SubscriptionEvent::Problem(problem) => return one(Frame::Problem(problem)),
        SubscriptionEvent::Items(items, _) => items,
    };
    // Headers of the frame and of its items.
    let fits = |bytes: usize| bytes + 16 <= most;
    let mut frames = Vec::new();
    let mut page = ChannelItems::default();
    let mut bytes = 0;
    for item in &items.items {
        let size = item.encoded_len() + 8;
        if !page.items.is_empty() && !fits(bytes + size) {
            frames.extend(one(Frame::Items(std::mem::take(&mut page))));
            bytes = 0;
        }
        if !fits(size) {
            let text = format!(
                "an item of {} bytes exceeds the client's limit of {most} (`max_frame`)",
                item.data.len()
            );
            frames.extend(one(Frame::Problem(problem(codes::REPLY_TOO_LARGE, text))));
            return frames;
        }
        bytes += size;
        page.items.push(item.clone());
    }
    frames.extend(one(Frame::Items(page)));
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ChannelItem;

    #[test]
    fn items_are_split_into_frames_that_the_client_accepts() {
        let item =
            |size: usize| ChannelItem { data: vec![7; size].into(), ..ChannelItem::default() };
        let items = [100, 200, 300, 10, 10, 10].map(item).to_vec();
        let all = Arc::new(ChannelItems { items: items.clone() });
        for most in [400, 700, 5_000] {
            let frames = frames(SubscriptionEvent::Items(all.clone(), Charge::unmetered()), most);
            let mut got = Vec::new();
            for frame in &frames {
                assert!(frame.encoded_len() <= most);
                let Some(Frame::Items(page)) = &frame.frame else { panic!("{frame:?}") };
                got.extend(page.items.clone());
            }
            assert_eq!(got, items);
        }
        let frames = frames(SubscriptionEvent::Items(all, Charge::unmetered()), 250);
        let last = frames.last().and_then(|frame| frame.frame.clone());
        let Some(Frame::Problem(problem)) = last else { panic!("{last:?}") };
        assert_eq!((frames.len(), &*problem.code), (3, &*codes::REPLY_TOO_LARGE));
    }
}
