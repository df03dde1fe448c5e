//! Receives a component in fragments before it is deployed.

use bytes::{Bytes, BytesMut};
use ostraca_codes::codes;
use prost::Message;
use tokio::time::{Instant, timeout_at};

use super::ID;
use crate::budget::Permit;
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message, problem};
use crate::framed::FrameReader;
use crate::limits::Limits;
use crate::proto::{self, ComponentFragment, DryRun, Problem};

/// Maximum number of entities that a dry run tries.
const MAX_DRY_RUN: usize = 100;

/// A complete upload, whose digest has been checked.
#[derive(Debug)]
pub struct Upload {
    /// The manifest's text.
    pub manifest: String,
    /// The component.
    pub component: Bytes,
    /// The component's BLAKE3 digest.
    pub digest: [u8; 32],
    /// The revision that must be current: 0 if none may exist yet, `None` if any may be current.
    pub expected_revision: Option<u64>,
    /// Whether to store the deployment without activating it.
    pub inactive: bool,
    /// Only tries the deployment, on copies of these entities.
    pub dry_run: Option<DryRun>,
    /// The permit of this upload. Drop it together with the component, before waiting for anything else.
    pub permit: UploadPermit,
}

/// One slot of the upload limits of the node and of the principal, held until it is dropped.
#[derive(Debug)]
pub struct UploadPermit(#[expect(dead_code, reason = "held until dropped")] Option<Permit>);

impl UploadPermit {
    pub(super) fn taken(place: Permit) -> Self {
        Self(Some(place))
    }

    /// A permit that counts against no limit, for components that do not come from a client.
    #[must_use]
    pub fn unmetered() -> Self {
        Self(None)
    }
}

/// Receives the component. Checks the announced size, and allocates memory only for what has arrived. Ends an upload
/// that stalls, since others may wait for its permit.
pub(super) async fn receive(
    limits: &Limits,
    deploy: proto::DeployRequest,
    place: UploadPermit,
    reader: &mut FrameReader,
) -> Result<Result<Upload, Problem>, Error> {
    let (size, most) = (deploy.component_size, limits.max_component);
    if size > most {
        let text = format!(
            "component of {size} bytes exceeds the limit of {most} (`network.max-component`)"
        );
        let mut large = problem(codes::COMPONENT_TOO_LARGE, text);
        large.details.insert("setting".into(), "network.max-component".into());
        large.details.insert("limit".into(), most.to_string());
        return Ok(Err(large));
    }
    let Ok(digest) = <[u8; 32]>::try_from(&deploy.digest[..]) else {
        let text = format!("digest is {} bytes, expected 32 (BLAKE3)", deploy.digest.len());
        return Ok(Err(problem(codes::INVALID_DIGEST, text)));
    };
    if let Some(problem) = deploy.dry_run.as_ref().and_then(excess) {
        return Ok(Err(problem));
    }
    let mut component = BytesMut::new();
    let end = Instant::now() + limits.upload_timeout;
    while (component.len() as u64) < size {
        let Some(frame) = next(limits, end, reader).await? else {
            return Err(Error::violation(
                CloseCode::TruncatedFrame,
                "stream ended before the component was complete",
            ));
        };
        let chunk = ComponentFragment::decode(frame)
            .map_err(|e| Error::violation(CloseCode::InvalidFrame, decode_error_message(&e)))?;
        if chunk.data.is_empty() || (component.len() + chunk.data.len()) as u64 > size {
            return Err(Error::violation(
                CloseCode::UnexpectedFrame,
                "fragment is empty or exceeds the announced size",
            ));
        }
        component.extend_from_slice(&chunk.data);
    }
    let component = component.freeze();
    if blake3::hash(&component) != blake3::Hash::from_bytes(digest) {
        return Ok(Err(problem(
            codes::INVALID_DIGEST,
            "component does not match the announced digest",
        )));
    }
    let (manifest, expected_revision) = (deploy.manifest, deploy.expected_revision);
    let (inactive, dry_run, permit) = (deploy.inactive, deploy.dry_run, place);
    Ok(Ok(Upload { manifest, component, digest, expected_revision, inactive, dry_run, permit }))
}

/// Refuses a dry run of too many entities, or of an invalid id.
fn excess(wanted: &DryRun) -> Option<Problem> {
    let count = wanted.ids.len().max(wanted.sample as usize);
    if count > MAX_DRY_RUN {
        let text = format!("dry run of {count} entities, limit is {MAX_DRY_RUN}");
        return Some(problem(codes::INVALID_REQUEST, text));
    }
    let invalid = wanted.ids.iter().find(|id| !(1..=ID).contains(&id.len()))?;
    let text = format!("an id is {} bytes, must be 1 to {ID}", invalid.len());
    Some(problem(codes::INVALID_REQUEST, text))
}

/// Waits for the next fragment, with a timeout.
async fn next(
    limits: &Limits,
    end: Instant,
    reader: &mut FrameReader,
) -> Result<Option<Bytes>, Error> {
    let next_fragment = Instant::now() + limits.upload_fragment_timeout;
    timeout_at(next_fragment.min(end), reader.next()).await.map_err(|_| {
        let text = match next_fragment < end {
            true => {
                format!(
                    "no fragment received for {:?} (`network.upload-fragment-timeout`)",
                    limits.upload_fragment_timeout
                )
            }
            false => {
                format!(
                    "upload not complete after {:?} (`network.upload-timeout`)",
                    limits.upload_timeout
                )
            }
        };
        Error::violation(CloseCode::UploadTimeout, text)
    })?
}
