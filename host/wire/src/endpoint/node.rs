//! A node's endpoint: what it accepts, how it tells clients that it was restarted, and how it dials other nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig, VarInt};

use super::{bind_as, client_config, transport};
use crate::error::Error;
use crate::identity::{Identity, IdentityError};
use crate::limits::Limits;

/// Maximum number of queued handshakes.
const MAX_INCOMING: usize = 512;
/// Maximum number of bytes buffered for each queued handshake.
const INCOMING_BYTES: u64 = 64 << 10;
/// Maximum number of bytes buffered for all queued handshakes.
const INCOMING_BYTES_TOTAL: u64 = 4 << 20;
/// How much a connection may send before its hello is accepted, in bytes. More than the largest hello; so little that
/// those who prove nothing about themselves cannot fill the node's memory.
const RECEIVE_WINDOW_BEFORE_HELLO: u32 = 128 << 10;
/// Length of a connection id in bytes.
const CONNECTION_ID: usize = 8;

/// [`bind`](super::bind) for a node. After a crash, the node's next incarnation at the same address immediately tells
/// the clients of the former one that their connections are gone (by a stateless reset). Otherwise, they would wait for
/// their `idle_timeout`.
///
/// # Errors
///
/// As [`bind`](super::bind).
pub fn bind_node(
    address: SocketAddr,
    setting: &'static str,
    limits: &Limits,
    server: quinn::ServerConfig,
    identity: &Identity,
) -> Result<quinn::Endpoint, Error> {
    // The reset key must be secret and the same in each incarnation, so it is derived from the node's key.
    const PURPOSE: &str = "ostraca 2026-11 stateless reset";
    let reset = ResetKey(blake3::derive_key(PURPOSE, identity.key_der.secret_der()));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(|| Box::new(RandomIds));
    bind_as(address, setting, limits, config, Some(server))
}

/// Random connection ids. Quinn marks its own ids with a key that differs in each process, so it would drop packets
/// with ids of the former incarnation instead of answering with a stateless reset.
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&rand::random::<[u8; CONNECTION_ID]>())
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Signs the tokens of stateless resets.
struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(blake3::keyed_hash(&self.0, data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let signature = signature.try_into().map_err(|_| CryptoError)?;
        // Comparing `blake3::Hash` takes constant time.
        let same = blake3::keyed_hash(&self.0, data) == blake3::Hash::from_bytes(signature);
        if same { Ok(()) } else { Err(CryptoError) }
    }
}

/// The QUIC side of a node's TLS configuration.
///
/// # Errors
///
/// [`IdentityError::Certificate`] if TLS and QUIC have no cipher in common.
pub fn server_config(
    tls: rustls::ServerConfig,
    limits: &Limits,
) -> Result<quinn::ServerConfig, IdentityError> {
    let crypto =
        QuicServerConfig::try_from(tls).map_err(|e| IdentityError::Certificate(e.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = transport(limits, limits.max_streams);
    // Raised to the limit when the hello is accepted.
    let window = RECEIVE_WINDOW_BEFORE_HELLO.min(limits.connection_receive_window);
    transport.receive_window(VarInt::from_u32(window));
    config.transport_config(Arc::new(transport));
    config.max_incoming(MAX_INCOMING);
    config.incoming_buffer_size(INCOMING_BYTES);
    config.incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    Ok(config)
}

/// [`client_config`] for a node that dials another one. The idle timeout of a connection is the shorter of the two
/// sides' timeouts, and keep-alives are acknowledged, so the dialling side sets both values for both sides.
///
/// # Errors
///
/// As [`client_config`].
pub fn peer_config(
    tls: rustls::ClientConfig,
    limits: &Limits,
) -> Result<quinn::ClientConfig, IdentityError> {
    let (keep_alive, idle_timeout) = (limits.peers.keep_alive_interval, limits.peers.idle_timeout);
    client_config(tls, &Limits { keep_alive_interval: keep_alive, idle_timeout, ..limits.clone() })
}
