//! The hello: the identity of each side, and whether the two are compatible.

use std::ops::RangeInclusive;

use ostraca_core::ids::{ClusterId, Incarnation, NodeId};

use crate::close_code::CloseCode;
use crate::limits::Limits;
use crate::proto;

/// The lowest version of the client protocol that this build supports.
pub const CLIENT_PROTOCOL_MIN: u32 = 1;
/// The highest version of the client protocol that this build supports.
pub const CLIENT_PROTOCOL_MAX: u32 = 1;
/// The versions of the client protocol that this build supports.
pub const CLIENT_PROTOCOL_VERSIONS: RangeInclusive<u32> = CLIENT_PROTOCOL_MIN..=CLIENT_PROTOCOL_MAX;
/// Features that this build supports beyond the protocol version.
pub const FEATURES: &[&str] = &[];
/// Name and version of this build's software.
pub const SOFTWARE: &str = concat!("ostraca ", env!("CARGO_PKG_VERSION"));

/// What a node announces about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDescriptor {
    /// The node's cluster.
    pub cluster: ClusterId,
    /// The identity of its `EntityStore` (R5).
    pub store_id: u128,
    /// The node's name.
    pub node: NodeId,
    /// Its incarnation (R7).
    pub incarnation: Incarnation,
}

impl NodeDescriptor {
    /// A node's hello.
    #[must_use]
    pub fn hello(&self, limits: &Limits) -> proto::Hello {
        proto::Hello {
            cluster_id: self.cluster.0.to_be_bytes().to_vec().into(),
            store_id: self.store_id.to_be_bytes().to_vec().into(),
            node: self.node.0.to_string(),
            incarnation: Some(self.incarnation.into()),
            ..client_hello(None, limits)
        }
    }
}

/// A client's hello. If it names a cluster, a node of another cluster refuses it.
#[must_use]
pub fn client_hello(cluster: Option<ClusterId>, limits: &Limits) -> proto::Hello {
    proto::Hello {
        cluster_id: cluster.map(|c| c.0.to_be_bytes().to_vec()).unwrap_or_default().into(),
        protocol_min: CLIENT_PROTOCOL_MIN,
        protocol_max: CLIENT_PROTOCOL_MAX,
        features: FEATURES.iter().map(ToString::to_string).collect(),
        limits: Some(limits.announced()),
        software: SOFTWARE.into(),
        ..proto::Hello::default()
    }
}

/// Returns the highest protocol version that both sides support, or the code and reason with which to close the
/// connection.
///
/// # Errors
///
/// The first mismatch: protocol version, required feature, cluster.
pub fn negotiate(
    versions: RangeInclusive<u32>,
    own: Option<ClusterId>,
    theirs: &proto::Hello,
) -> Result<u32, (CloseCode, String)> {
    let (min, max) = versions.into_inner();
    let version = max.min(theirs.protocol_max);
    if version < min.max(theirs.protocol_min) {
        let text = format!(
            "this side supports protocol versions {min} to {max}, the peer {} to {}",
            theirs.protocol_min, theirs.protocol_max
        );
        return Err((CloseCode::UnsupportedProtocol, text));
    }
    if let Some(feature) =
        theirs.required_features.iter().find(|name| !FEATURES.contains(&name.as_str()))
    {
        // The reason must fit in one packet, so cut a long name.
        let name: String = feature.chars().take(100).collect();
        return Err((CloseCode::UnknownFeature, format!("required feature {name:?} is unknown")));
    }
    let cluster = match theirs.cluster_id.len() {
        0 => None,
        16 => {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&theirs.cluster_id);
            Some(ClusterId(u128::from_be_bytes(bytes)))
        }
        other => return Err((CloseCode::InvalidHello, format!("cluster id is {other} bytes"))),
    };
    match (own, cluster) {
        (Some(own), Some(cluster)) if own != cluster => Err((
            CloseCode::ClusterMismatch,
            format!("this side belongs to cluster {own}, the peer to cluster {cluster}"),
        )),
        _ => Ok(version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_required_features_are_refused() {
        let mut hello = client_hello(Some(ClusterId(1)), &Limits::default());
        hello.features.push("time-travel".into());
        assert_eq!(negotiate(CLIENT_PROTOCOL_VERSIONS, Some(ClusterId(1)), &hello), Ok(1));
        hello.required_features.push("time-travel".into());
        let (code, reason) =
            negotiate(CLIENT_PROTOCOL_VERSIONS, Some(ClusterId(1)), &hello).expect_err("refused");
        assert_eq!(code, CloseCode::UnknownFeature);
        assert!(reason.contains("time-travel"), "{reason}");
    }

    #[test]
    fn versions_must_overlap_and_the_highest_common_one_is_used() {
        let mut hello = client_hello(None, &Limits::default());
        hello.protocol_max = 9;
        assert_eq!(negotiate(CLIENT_PROTOCOL_VERSIONS, None, &hello), Ok(1));
        hello.protocol_min = 2;
        assert_eq!(
            negotiate(CLIENT_PROTOCOL_VERSIONS, None, &hello).expect_err("refused").0,
            CloseCode::UnsupportedProtocol
        );
        assert_eq!(
            negotiate(CLIENT_PROTOCOL_VERSIONS, None, &proto::Hello::default())
                .expect_err("refused")
                .0,
            CloseCode::UnsupportedProtocol
        );
    }

    #[test]
    fn another_cluster_is_refused() {
        let hello = client_hello(Some(ClusterId(2)), &Limits::default());
        assert_eq!(
            negotiate(CLIENT_PROTOCOL_VERSIONS, Some(ClusterId(1)), &hello).expect_err("refused").0,
            CloseCode::ClusterMismatch
        );
    }
}
