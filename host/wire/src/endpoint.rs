//! The UDP socket and its QUIC endpoint. Sets every limit of QUIC, since its defaults leave some unbounded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{
    ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, TokioRuntime,
    TransportConfig, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;
use crate::identity::{Identity, IdentityError};
use crate::limits::Limits;

/// Handshakes that may be queued.
const MAX_INCOMING: usize = 512;
/// Bytes that may be buffered for each of them.
const INCOMING_BYTES: u64 = 64 << 10;
/// Bytes that may be buffered for all of them.
const INCOMING_BYTES_TOTAL: u64 = 4 << 20;
/// Length of a connection id in bytes.
const CONNECTION_ID: usize = 8;

/// Binds `address` and creates a QUIC endpoint on it. Errors name `setting`. Must be called within a tokio
/// runtime.
///
/// # Errors
///
/// [`Error::AddressInUse`], [`Error::Bind`].
pub fn bind(
    address: SocketAddr,
    setting: &'static str,
    limits: &Limits,
    server: Option<quinn::ServerConfig>,
) -> Result<quinn::Endpoint, Error> {
    bind_as(address, setting, limits, EndpointConfig::default(), server)
}

/// The same for a node. After a crash, its next incarnation at the same address tells the clients of the former
/// one at once that their connections are gone (by a stateless reset). Otherwise they would wait for their
/// `idle_timeout`.
///
/// # Errors
///
/// As [`bind`].
pub fn bind_node(
    address: SocketAddr,
    setting: &'static str,
    limits: &Limits,
    server: quinn::ServerConfig,
    identity: &Identity,
) -> Result<quinn::Endpoint, Error> {
    // The reset key must be secret and the same in each incarnation, so it derives from the node's key.
    const PURPOSE: &str = "ostraca 2026-11 stateless reset";
    let reset = ResetKey(blake3::derive_key(PURPOSE, identity.key_der.secret_der()));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(|| Box::new(RandomIds));
    bind_as(address, setting, limits, config, Some(server))
}

fn bind_as(
    address: SocketAddr,
    setting: &'static str,
    limits: &Limits,
    config: EndpointConfig,
    server: Option<quinn::ServerConfig>,
) -> Result<quinn::Endpoint, Error> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            Error::AddressInUse { address, port: address.port(), setting }
        }
        _ => Error::Bind { address, setting, source },
    };
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(failed)?;
    if address.is_ipv6() {
        socket.set_only_v6(false).map_err(failed)?;
    }
    // The kernel caps them by its own limits: a smaller buffer is slower, not wrong.
    let _ = socket.set_recv_buffer_size(limits.socket_buffer);
    let _ = socket.set_send_buffer_size(limits.socket_buffer);
    socket.bind(&address.into()).map_err(failed)?;
    quinn::Endpoint::new(config, server, socket.into(), Arc::new(TokioRuntime)).map_err(failed)
}

/// Random connection ids. Quinn's own ids are marked with a key for each process, so it would drop packets with
/// ids of the former incarnation where a stateless reset is due.
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
        // Hashes compare in constant time.
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
    config.transport_config(Arc::new(transport(limits, limits.max_streams)));
    config.max_incoming(MAX_INCOMING);
    config.incoming_buffer_size(INCOMING_BYTES);
    config.incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    Ok(config)
}

/// The QUIC side of a client's TLS configuration.
///
/// # Errors
///
/// [`IdentityError::Certificate`] if TLS and QUIC have no cipher in common.
pub fn client_config(
    tls: rustls::ClientConfig,
    limits: &Limits,
) -> Result<quinn::ClientConfig, IdentityError> {
    let crypto =
        QuicClientConfig::try_from(tls).map_err(|e| IdentityError::Certificate(e.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    // A node opens no streams to its clients.
    config.transport_config(Arc::new(transport(limits, 0)));
    Ok(config)
}

/// The same for a node that dials another one. The idle timeout of a connection is the shorter one of both
/// sides', and keep-alives are acknowledged, so the dialling side sets both for both sides.
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

fn transport(limits: &Limits, streams: u32) -> TransportConfig {
    // Only a mistake puts it out of QUIC's range (millions of years): then use QUIC's maximum.
    let idle = IdleTimeout::try_from(limits.idle_timeout).unwrap_or(IdleTimeout::from(VarInt::MAX));
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(limits.stream_receive_window))
        .receive_window(VarInt::from_u32(limits.connection_receive_window))
        .send_window(limits.send_window)
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(limits.keep_alive_interval))
        .max_idle_timeout(Some(idle));
    config
}
