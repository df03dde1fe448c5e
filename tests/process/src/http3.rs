//! A caller over HTTP/3, with one connection.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use bytes::{Buf, Bytes, BytesMut};
use h3::client::SendRequest;
use http::HeaderValue;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::http::{CallsEntities, HttpReply, post};

/// Calls after which a caller opens another connection: the gateway closes one after 10,000 requests.
const CALLS: u32 = 9_000;

/// A caller with a token.
pub struct Http3Caller {
    address: SocketAddr,
    host: String,
    authorization: HeaderValue,
    /// Closed with the caller.
    endpoint: Endpoint,
    connection: Connection,
    /// How many calls the connection may still carry.
    left: u32,
}

type Connection = SendRequest<h3_quinn::OpenStreams, Bytes>;

impl Http3Caller {
    /// Connects to the gateway at this address, which has this certificate for this name.
    ///
    /// # Errors
    /// If it cannot be reached, or has another certificate.
    pub async fn connect(
        address: SocketAddr,
        (host, certificate): (&str, &CertificateDer<'static>),
        token: &str,
    ) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let mut tls =
            rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into())?;
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(
            QuicClientConfig::try_from(tls)?,
        )));
        Ok(Self {
            address,
            host: host.to_owned(),
            authorization: format!("Bearer {token}").parse()?,
            connection: open(&endpoint, address, host).await?,
            endpoint,
            left: CALLS,
        })
    }
}

async fn open(endpoint: &Endpoint, address: SocketAddr, host: &str) -> Result<Connection> {
    let connection = h3_quinn::Connection::new(endpoint.connect(address, host)?.await?);
    let (mut driver, connection) = h3::client::new(connection).await?;
    // It ends with its connection; requests report why.
    tokio::spawn(async move { poll_fn(|context| driver.poll_close(context)).await });
    Ok(connection)
}

impl CallsEntities for Http3Caller {
    async fn call(
        &mut self,
        call: (&str, &str, &str),
        body: String,
        key: Option<&str>,
    ) -> Result<HttpReply> {
        if self.left == 0 {
            self.connection = open(&self.endpoint, self.address, &self.host).await?;
            self.left = CALLS;
        }
        self.left -= 1;
        let request = post(&format!("https://{}", self.host), call, &self.authorization, key);
        let mut stream = self.connection.send_request(request.body(())?).await?;
        stream.send_data(Bytes::from(body)).await?;
        stream.finish().await?;
        let (head, ()) = stream.recv_response().await?.into_parts();
        let mut body = BytesMut::new();
        while let Some(mut data) = stream.recv_data().await? {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        Ok(HttpReply { status: head.status, headers: head.headers, body: body.freeze() })
    }
}
