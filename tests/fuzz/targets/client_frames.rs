//! Fuzzes the bytes that a client may send on its streams: split into arbitrary chunks, then decoded as each message
//! type.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_wire::frame::{FrameBuffer, put_frame};
use ostraca_wire::proto::{AdminRequest, Envelope, Hello, Reply, SessionOpen};
use ostraca_wire::{Limits, fuzz};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    // The first byte determines how the stream is split.
    let Some((&cut, stream)) = data.split_first() else { return };
    let mut frames = FrameBuffer::new(64 << 10);
    for chunk in stream.chunks(usize::from(cut).max(1)) {
        frames.push(chunk);
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => read(&frame),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});

fn read(frame: &bytes::Bytes) {
    let session = [7; 16];
    if let Some(envelope) = fuzz::client_message(frame, &session, &Limits::default()) {
        // An accepted message names an entity, a method and a kind, within their limits.
        assert!(
            envelope.sequence > 0 && envelope.principal.is_empty() && envelope.sender.is_none()
        );
        assert!((1..=255).contains(&envelope.method.len()));
        assert!((1..=512).contains(&envelope.id.len()));
        let mut again = bytes::BytesMut::new();
        put_frame(&mut again, &envelope);
        let mut frames = FrameBuffer::new(u32::MAX);
        frames.push(&again);
        let whole = frames.next_frame().expect("a frame").expect("whole");
        assert_eq!(Envelope::decode(whole).expect("an envelope"), envelope);
    }
    let _ = Hello::decode(frame.clone());
    let _ = SessionOpen::decode(frame.clone());
    let _ = AdminRequest::decode(frame.clone());
    let _ = Reply::decode(frame.clone());
}
