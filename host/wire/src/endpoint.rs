//! The UDP socket and its QUIC endpoint. Sets every limit of QUIC, since the defaults leave some unbounded.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;
use crate::identity::IdentityError;
use crate::limits::Limits;

#[cfg(feature = "server")]
mod node;

#[cfg(feature = "server")]
pub use node::{bind_node, peer_config, server_config};

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
    // The kernel caps the sizes at its own limits: a smaller buffer is slower, but not wrong.
    let _ = socket.set_recv_buffer_size(limits.socket_buffer);
    let _ = socket.set_send_buffer_size(limits.socket_buffer);
    socket.bind(&address.into()).map_err(failed)?;
    quinn::Endpoint::new(config, server, socket.into(), Arc::new(TokioRuntime)).map_err(failed)
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

fn transport(limits: &Limits, streams: u32) -> TransportConfig {
    // Only a mistake puts the timeout outside QUIC's range (millions of years): then use QUIC's maximum.
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
