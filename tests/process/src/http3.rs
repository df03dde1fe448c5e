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

/// A caller with a token.
pub struct Http3Caller {
    /// `https://` and the host.
    origin: String,
    authorization: HeaderValue,
    connection: SendRequest<h3_quinn::OpenStreams, Bytes>,
    /// Closed with the caller.
    _endpoint: Endpoint,
}

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
        let connection = h3_quinn::Connection::new(endpoint.connect(address, host)?.await?);
        let (mut driver, connection) = h3::client::new(connection).await?;
        // It ends with its connection; requests report why.
        tokio::spawn(async move { poll_fn(|context| driver.poll_close(context)).await });
        let authorization = format!("Bearer {token}").parse()?;
        Ok(Self {
            origin: format!("https://{host}"),
            authorization,
            connection,
            _endpoint: endpoint,
        })
    }
}

impl CallsEntities for Http3Caller {
    async fn call(
        &mut self,
        call: (&str, &str, &str),
        body: String,
        key: Option<&str>,
    ) -> Result<HttpReply> {
        let request = post(&self.origin, call, &self.authorization, key);
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
