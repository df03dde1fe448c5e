//! Fuzzes the bytes that another node may send: forwarded messages, store calls and their responses, and control
//! messages.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca_core::node::ControlMessage;
use ostraca_store_peer::protocol::{Request, Response, decode, decode_request, encode};
use ostraca_wire::fuzz;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, body)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            let frame = bytes::Bytes::copy_from_slice(body);
            if let Some((tag, envelope)) = fuzz::peer_message(&frame, 1 << 20) {
                assert!(tag > 0 && envelope.sequence > 0);
            }
        }
        1 => {
            if let Ok(request) = decode_request(body, 4 << 20) {
                // A decoded request can be encoded again, and decodes to the same value.
                let bytes = encode(&request).expect("encoded");
                let again: Request = decode(&bytes).expect("read again");
                assert_eq!(format!("{again:?}"), format!("{request:?}"));
            }
        }
        2 => {
            let _ = decode::<Response>(body);
        }
        _ => {
            let _ = postcard::from_bytes::<ControlMessage>(body);
        }
    }
});
