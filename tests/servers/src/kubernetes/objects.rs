//! The objects of a test API server and their history, with the rules for changing them.
//!
//! Each rule names the public document that it comes from. Where a document leaves something open, the behaviour is
//! that of kube-apiserver 1.20.2 on etcd 3.4, compared request by request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

/// "Annotations" of the API reference: 256 KiB for all keys and values of an object.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// "Labels and Selectors", section "Syntax and character set".
const MAX_LABEL: usize = 63;
/// "Object Names and IDs", section "DNS Subdomain Names".
const MAX_NAME: usize = 253;

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    /// `leases` or `pods`.
    pub(super) resource: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) id: Id,
    pub(super) before: Option<Arc<Value>>,
    pub(super) after: Option<Arc<Value>>,
}

/// Why a request failed: the fields of a `Status` object.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
}

/// All objects of an API server.
#[derive(Clone, Debug)]
pub struct Objects {
    /// The version of the last change. "Kubernetes API Concepts", section "Resource versions": one counter for all
    /// objects, since they are in one etcd.
    version: u64,
    /// Changes up to this version are forgotten ("Efficient detection of changes": about 5 minutes are kept).
    compacted: u64,
    objects: BTreeMap<Id, Arc<Value>>,
    history: VecDeque<Change>,
    namespaces: BTreeSet<String>,
    uids: u64,
}

impl Failure {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: json!({}) }
    }

    /// The `Status` object of "API conventions", section "Response Status Kind".
    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "details": self.details, "code": self.code,
        })
    }

    fn about(mut self, id: &Id) -> Self {
        self.details = json!({ "name": id.name, "group": group(id.resource), "kind": id.resource });
        self
    }
}

/// The name of a resource in messages.
fn qualified(resource: &str) -> String {
    match group(resource) {
        "" => resource.into(),
        group => format!("{resource}.{group}"),
    }
}

pub(super) fn group(resource: &str) -> &'static str {
    if resource == "leases" { "coordination.k8s.io" } else { "" }
}

/// The kind of a resource's objects, with its group and version.
pub(super) fn kind(resource: &str) -> (&'static str, &'static str) {
    if resource == "leases" { ("Lease", "coordination.k8s.io/v1") } else { ("Pod", "v1") }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            // An etcd that was just started has written other things before.
            version: 100,
            compacted: 0,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            namespaces: ["default".to_owned()].into(),
            uids: 0,
        }
    }
}

impl Objects {
    /// The version of the last change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Adds a namespace.
    pub fn add_namespace(&mut self, name: &str) {
        self.namespaces.insert(name.into());
    }

    /// Forgets the changes up to now, as etcd's compaction does.
    pub fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
    }

    /// Raises the version, as a change of another kind of objects does.
    pub fn change_others(&mut self) {
        self.version += 1;
    }

    /// The names of the leases in a namespace.
    #[must_use]
    pub fn leases(&self, namespace: &str) -> Vec<String> {
        let ids = self.objects.keys();
        let ids = ids.filter(|id| id.resource == "leases" && id.namespace == namespace);
        ids.map(|id| id.name.clone()).collect()
    }

    /// An object.
    #[must_use]
    pub fn object(&self, resource: &'static str, namespace: &str, name: &str) -> Option<Value> {
        let id = Id { resource, namespace: namespace.into(), name: name.into() };
        self.objects.get(&id).map(|object| Value::clone(object))
    }

    /// Deletes an object and creates it again with the same content, as a restore from a backup of objects does.
    pub fn recreate(&mut self, resource: &'static str, namespace: &str, name: &str) {
        let mut object = self.object(resource, namespace, name).expect("the object");
        self.remove(resource, namespace, name);
        object["metadata"].as_object_mut().expect("metadata").remove("uid");
        self.put(resource, namespace, object);
    }

    /// Writes an object past all rules, with its uid if it has one.
    pub fn put(&mut self, resource: &'static str, namespace: &str, mut object: Value) {
        let id = Id {
            resource,
            namespace: namespace.into(),
            name: text(&object, "/metadata/name").into(),
        };
        if text(&object, "/metadata/uid").is_empty() {
            object["metadata"]["uid"] = self.uid().into();
        }
        self.write(id, Some(object));
    }

    /// Deletes an object past all rules.
    pub fn remove(&mut self, resource: &'static str, namespace: &str, name: &str) {
        let id = Id { resource, namespace: namespace.into(), name: name.into() };
        self.write(id, None);
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("7b1e1d3c-0000-4000-8000-{:012x}", self.uids)
    }

    fn write(&mut self, id: Id, after: Option<Value>) -> Arc<Value> {
        self.version += 1;
        let version = self.version;
        let after = after.map(|mut object| {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            Arc::new(object)
        });
        let before = match &after {
            Some(object) => self.objects.insert(id.clone(), object.clone()),
            None => self.objects.remove(&id),
        };
        let changed = after.clone().or(before.clone()).unwrap_or_default();
        self.history.push_back(Change { version, id, before, after });
        changed
    }

    pub(super) fn read(&self, id: &Id) -> Result<Arc<Value>, Failure> {
        let found = self.objects.get(id).cloned();
        found.ok_or_else(|| {
            let message = format!("{} {:?} not found", qualified(id.resource), id.name);
            Failure::new(404, "NotFound", message).about(id)
        })
    }

    /// POST: "API conventions", section "Verbs on Resources"; 409 AlreadyExists: section "HTTP Status codes".
    pub(super) fn create(&mut self, id: Id, mut object: Value) -> Result<Arc<Value>, Failure> {
        if !self.namespaces.contains(&id.namespace) {
            let message = format!("namespaces {:?} not found", id.namespace);
            let mut failure = Failure::new(404, "NotFound", message);
            failure.details = json!({ "name": id.namespace, "kind": "namespaces" });
            return Err(failure);
        }
        check(&id, &object)?;
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Failure::new(500, "", message));
        }
        if self.objects.contains_key(&id) {
            let message = format!("{} {:?} already exists", qualified(id.resource), id.name);
            return Err(Failure::new(409, "AlreadyExists", message).about(&id));
        }
        object["metadata"]["uid"] = self.uid().into();
        object["metadata"]["namespace"] = id.namespace.clone().into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        Ok(self.write(id, Some(object)))
    }

    /// PUT: "API conventions", section "Concurrency Control and Consistency". Leases are created if they are missing
    /// and the request names no uid.
    pub(super) fn replace(
        &mut self,
        id: Id,
        mut object: Value,
    ) -> Result<(u16, Arc<Value>), Failure> {
        if text(&object, "/metadata/name") != id.name {
            let message = format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                text(&object, "/metadata/name"),
                id.name
            );
            return Err(Failure::new(400, "BadRequest", message));
        }
        let conflict = |message: &str| {
            let what = qualified(id.resource);
            let message =
                format!("Operation cannot be fulfilled on {what} {:?}: {message}", id.name);
            Failure::new(409, "Conflict", message).about(&id)
        };
        let (version, uid) =
            (text(&object, "/metadata/resourceVersion"), text(&object, "/metadata/uid"));
        if !version.is_empty() && version.parse::<u64>().is_err() {
            let message = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            return Err(Failure::new(500, "", message));
        }
        let Some(found) = self.objects.get(&id).cloned() else {
            if !uid.is_empty() {
                return Err(conflict(
                    "Precondition failed: UID in precondition differs, UID in object meta: ",
                ));
            }
            object["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
            return self.create(id, object).map(|object| (201, object));
        };
        if !uid.is_empty() && uid != text(&found, "/metadata/uid") {
            return Err(conflict("Precondition failed: UID in precondition differs"));
        }
        if version.is_empty() || version == "0" {
            let message =
                "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
            return Err(Failure::new(422, "Invalid", message).about(&id));
        }
        if version != text(&found, "/metadata/resourceVersion") {
            return Err(conflict(
                "the object has been modified; please apply your changes to the latest version and try again",
            ));
        }
        check(&id, &object)?;
        for field in ["uid", "namespace", "creationTimestamp"] {
            object["metadata"][field] = found["metadata"][field].clone();
        }
        // An update that changes nothing writes nothing.
        if object == *found {
            return Ok((200, found));
        }
        Ok((200, self.write(id, Some(object))))
    }

    /// DELETE with preconditions: the API reference of `DeleteOptions` and `Preconditions`.
    pub(super) fn delete(&mut self, id: Id, options: &Value) -> Result<Value, Failure> {
        let found = self.read(&id)?;
        for (name, title) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let wanted = text(options, &format!("/preconditions/{name}"));
            let has = text(&found, &format!("/metadata/{name}"));
            if !wanted.is_empty() && wanted != has {
                let message = format!(
                    "Operation cannot be fulfilled on {} {:?}: the {title} in the precondition ({wanted}) does not match \
                     the {title} in record ({has}). The object might have been deleted and then recreated",
                    qualified(id.resource),
                    id.name
                );
                return Err(Failure::new(409, "Conflict", message).about(&id));
            }
        }
        let details = json!({
            "name": id.name, "group": group(id.resource), "kind": id.resource, "uid": found["metadata"]["uid"],
        });
        self.write(id, None);
        Ok(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        }))
    }

    /// The objects of a collection as they were at this version, ordered by name.
    pub(super) fn at(
        &self,
        resource: &'static str,
        namespace: &str,
        version: u64,
    ) -> Result<Vec<Arc<Value>>, Failure> {
        if version < self.compacted {
            // "Retrieving large results sets in chunks": 410 Gone when the token has expired.
            return Err(expired());
        }
        let mut objects: BTreeMap<_, _> = self.objects.clone();
        for change in self.history.iter().rev().take_while(|change| change.version > version) {
            match &change.before {
                Some(before) => drop(objects.insert(change.id.clone(), before.clone())),
                None => drop(objects.remove(&change.id)),
            }
        }
        let of = |id: &Id| id.resource == resource && id.namespace == namespace;
        Ok(objects.into_iter().filter(|(id, _)| of(id)).map(|(_, object)| object).collect())
    }

    /// The changes after a version.
    pub(super) fn after(&self, version: u64) -> Result<Vec<Change>, Failure> {
        if version < self.compacted {
            let message = format!("too old resource version: {version} ({})", self.compacted + 1);
            return Err(Failure::new(410, "Expired", message));
        }
        let from = self.history.partition_point(|change| change.version <= version);
        Ok(self.history.range(from..).cloned().collect())
    }
}

pub(super) fn expired() -> Failure {
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a new \
                   list without the continue parameter, or use the continue token in this response to retrieve the \
                   remainder of the results.";
    Failure::new(410, "Expired", message)
}

/// What Kubernetes accepts as names, labels and annotations.
fn check(id: &Id, object: &Value) -> Result<(), Failure> {
    let invalid = |message: String| {
        let message = format!("{} {:?} is invalid: {message}", kind(id.resource).0, id.name);
        Err(Failure::new(422, "Invalid", message).about(id))
    };
    let inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
    let part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if id.name.len() > MAX_NAME || !id.name.split('.').all(part) {
        return invalid(format!(
            "metadata.name: Invalid value: {:?}: a DNS-1123 subdomain must consist of …",
            id.name
        ));
    }
    let none = serde_json::Map::new();
    let map = |pointer| object.pointer(pointer).and_then(Value::as_object).unwrap_or(&none);
    for (name, value) in map("/metadata/labels") {
        let value = value.as_str().unwrap_or_default();
        let inner = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_' | b'.');
        let end = |it: Option<u8>| it.is_none_or(|it| it.is_ascii_alphanumeric());
        let is_valid = value.len() <= MAX_LABEL
            && value.bytes().all(inner)
            && end(value.bytes().next())
            && end(value.bytes().last());
        if !is_valid {
            return invalid(format!("metadata.labels: Invalid value: {value:?} of {name}"));
        }
    }
    let annotations = map("/metadata/annotations").iter();
    let bytes: usize =
        annotations.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > MAX_ANNOTATIONS {
        return invalid(format!(
            "metadata.annotations: Too long: must have at most {MAX_ANNOTATIONS} bytes"
        ));
    }
    Ok(())
}
