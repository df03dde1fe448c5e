//! The kustomize base for Kubernetes and its overlay: rendered by kubectl, checked against the schemas of Kubernetes, and against what
//! Ostraca needs.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::OnceLock;

use ostraca_deploy_tests::yaml::{documents, items, keys, string, strings};
use ostraca_deploy_tests::{VERSION, longest_stop, root, seconds, text, tools};
use serde_json::{Value, json};

use crate::configurations;

const BASE: &str = "deploy/kubernetes/base";
/// The overlay with the cluster's rows in Kubernetes.
const LEASES: &str = "deploy/kubernetes/leases";
/// The oldest and the newest version whose schemas the objects must meet.
const VERSIONS: [&str; 2] = ["1.29", "1.37"];
/// Objects that README.md has the reader create.
const SECRETS: [&str; 2] = ["ostraca-identities", "ostraca-postgres"];

fn rendered() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| render(BASE))
}

fn render(dir: &str) -> String {
    tools::succeed(Command::new(tools::kubectl()).arg("kustomize").arg(root().join(dir)))
}

fn objects() -> Vec<Value> {
    documents(rendered())
}

/// The only object of a kind in the base.
fn only(kind: &str) -> Value {
    only_of(objects(), kind)
}

fn only_of(objects: Vec<Value>, kind: &str) -> Value {
    let mut found: Vec<_> = objects.into_iter().filter(|it| it["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "objects of kind {kind}");
    found.swap_remove(0)
}

fn name(object: &Value) -> &str {
    string(&object["metadata"]["name"])
}

fn pod() -> Value {
    only("StatefulSet")["spec"]["template"]["spec"].clone()
}

fn containers(pod: &Value) -> Vec<&Value> {
    let all: Vec<_> =
        items(&pod["containers"]).iter().chain(items(&pod["initContainers"])).collect();
    assert!(!all.is_empty());
    all
}

/// The names of the pods.
fn pods() -> Vec<String> {
    let set = only("StatefulSet");
    let replicas = set["spec"]["replicas"].as_u64().expect("a number");
    (0..replicas).map(|ordinal| format!("{}-{ordinal}", name(&set))).collect()
}

/// The files in a pod's container, as far as volumes name them: path in the container, and key in the volume's source.
fn files(pod_name: &str) -> Vec<(String, String)> {
    let pod = pod();
    let mut found = Vec::new();
    for mount in items(&containers(&pod)[0]["volumeMounts"]) {
        let volume = items(&pod["volumes"]).iter().find(|it| it["name"] == mount["name"]);
        let Some(volume) = volume else { continue };
        let listed =
            items(&volume["configMap"]["items"]).iter().chain(items(&volume["secret"]["items"]));
        let below = mount["subPathExpr"].as_str().map(|path| path.replace("$(POD_NAME)", pod_name));
        for item in listed {
            let path = string(&item["path"]);
            let path = match &below {
                Some(below) => path.strip_prefix(&format!("{below}/")),
                None => Some(path),
            };
            if let Some(path) = path {
                let path = format!("{}/{path}", string(&mount["mountPath"]));
                found.push((path, string(&item["key"]).to_owned()));
            }
        }
    }
    found
}

#[test]
fn objects_meet_the_schemas_of_kubernetes() {
    let file = tools::scratch().join("kubernetes.yaml");
    for text in [rendered(), &render(LEASES)] {
        std::fs::write(&file, text).expect("written");
        for version in VERSIONS {
            let mut command = Command::new(tools::kubernetes_validate());
            command.args(["--strict", "--kubernetes-version", version]).arg(&file);
            let output = command.output().expect("kubernetes-validate");
            let said = tools::said(&output);
            assert!(output.status.success(), "Kubernetes {version}:\n{said}");
            let passed = said.matches(" passed for resource ").count();
            assert_eq!(passed, documents(text).len(), "{said}");
        }
    }
}

#[test]
fn everything_that_objects_refer_to_exists() {
    let (set, pod) = (only("StatefulSet"), pod());
    let exists = |kind: &str, wanted: &Value| {
        let found =
            objects().iter().any(|it| it["kind"] == kind && it["metadata"]["name"] == *wanted);
        assert!(found, "no {kind} {wanted}");
    };
    exists("Service", &set["spec"]["serviceName"]);
    exists("ServiceAccount", &pod["serviceAccountName"]);
    let guide = text("deploy/kubernetes/README.md");
    let mut secrets = BTreeSet::new();
    for volume in items(&pod["volumes"]) {
        if let Some(config) = volume.get("configMap") {
            exists("ConfigMap", &config["name"]);
            let data = only("ConfigMap")["data"].clone();
            for item in items(&config["items"]) {
                assert!(
                    data.get(string(&item["key"])).is_some(),
                    "no {} in the ConfigMap",
                    item["key"]
                );
            }
        } else {
            let secret = string(&volume["secret"]["secretName"]);
            assert!(guide.contains(&format!("create secret generic {secret} ")), "{secret}");
            secrets.insert(secret.to_owned());
        }
    }
    assert_eq!(secrets, SECRETS.map(str::to_owned).into());
    let volumes = |list: &Value, at: &str| -> BTreeSet<String> {
        items(list).iter().map(|it| string(it.pointer(at).expect("a name")).to_owned()).collect()
    };
    let mut declared = volumes(&pod["volumes"], "/name");
    declared.extend(volumes(&set["spec"]["volumeClaimTemplates"], "/metadata/name"));
    for container in containers(&pod) {
        assert_eq!(volumes(&container["volumeMounts"], "/name"), declared);
    }
    let port = &items(&only("Service")["spec"]["ports"])[0]["targetPort"].clone();
    assert_eq!(&items(&pod["containers"][0]["ports"])[0]["name"], port);
}

#[test]
fn each_pod_has_its_own_configuration_and_identity() {
    let pods = pods();
    let paths: Vec<_> = pods.iter().map(|pod| format!("{BASE}/nodes/{pod}.toml")).collect();
    let configs = configurations::of_nodes(&paths);
    let container = pod()["containers"][0].clone();
    let port = items(&container["ports"])[0]["containerPort"].clone();
    let service = string(&only("StatefulSet")["spec"]["serviceName"]).to_owned();
    let data = only("ConfigMap")["data"].clone();
    let env = &items(&container["env"])[0];
    assert_eq!(env["name"], "POD_NAME");
    assert_eq!(env["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
    for ((pod, config), path) in pods.iter().zip(&configs).zip(&paths) {
        assert_eq!(config["node"].as_str(), Some(pod.as_str()));
        assert_eq!(configurations::address(config), format!("{pod}.{service}:{port}"));
        assert_eq!(string(&data[format!("{pod}.toml")]), text(path));
        let files = files(pod);
        let has = |path: &str, key: &str| {
            assert!(
                files.contains(&(path.into(), key.into())),
                "{pod}: no {path} from {key}: {files:?}"
            );
        };
        let identity = config["identity"].as_table().expect("a table");
        let set = |key: &str| identity[key].as_str().expect("a path");
        has(set("ca"), "ca.pem");
        has(set("certificate"), &format!("{pod}.pem"));
        has(set("key"), &format!("{pod}.key"));
        has(set("secret-keys"), "secret.key");
        let arguments = strings(&container["args"]);
        assert_eq!(arguments[..2], ["run", "--config"]);
        has(arguments[2], &format!("{pod}.toml"));
        let own = |key: &str| key.ends_with(".key") && key != "secret.key";
        let others = files.iter().filter(|(_, key)| own(key)).count();
        assert_eq!(others, 1, "{pod} sees another node's key: {files:?}");
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            has(strings(&container[probe]["exec"]["command"])[3], "probe.toml");
        }
        let postgres = config["postgres"].as_table().expect("a table");
        for (setting, file) in [("password-file", "password"), ("ca-file", "ca.pem")] {
            assert_eq!(postgres[setting].as_str(), Some(&*format!("/etc/ostraca/postgres/{file}")));
            let guide = text("deploy/kubernetes/README.md");
            assert!(guide.contains(&format!("--from-file={file}=")), "{file}");
        }
        assert_eq!(postgres["tls"].as_str(), Some("verify"));
    }
    let mounts = items(&container["volumeMounts"]).to_vec();
    let is_mounted = |path: &str| mounts.iter().any(|mount| mount["mountPath"] == path);
    assert!(is_mounted("/var/lib/ostraca") && is_mounted("/etc/ostraca/postgres"));
    for mount in mounts.iter().filter(|mount| mount["mountPath"] != "/var/lib/ostraca") {
        assert_eq!(mount["readOnly"], true, "{mount}");
    }
}

#[test]
fn containers_run_without_rights() {
    let pod = pod();
    let context = &pod["securityContext"];
    assert_eq!(context["runAsNonRoot"], true);
    assert_eq!((&context["runAsUser"], &context["fsGroup"]), (&json!(10001), &json!(10001)));
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    for container in containers(&pod) {
        let context = &container["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{context}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{context}");
        assert_eq!(context["capabilities"], json!({ "drop": ["ALL"] }));
        for forbidden in ["privileged", "runAsUser", "runAsNonRoot"] {
            assert!(context.get(forbidden).is_none(), "{context}");
        }
        assert!(container["resources"]["limits"]["memory"].is_string(), "no limit of memory");
    }
    for forbidden in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod.get(forbidden).is_none(), "{forbidden}");
    }
    assert!(items(&pod["volumes"]).iter().all(|it| it.get("hostPath").is_none()));
}

#[test]
fn the_base_gives_the_account_no_rights() {
    for kind in ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"] {
        assert!(objects().iter().all(|it| it["kind"] != kind), "{kind}");
    }
    assert_eq!(pod()["automountServiceAccountToken"], false);
    assert_eq!(only("ServiceAccount")["automountServiceAccountToken"], false);
}

#[test]
fn e4_the_overlay_lets_the_account_use_leases_and_see_pods() {
    let objects = || documents(&render(LEASES));
    let verbs = ["list", "watch", "create", "update", "delete"];
    let rule =
        json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs });
    let pods = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] });
    let (role, binding) = (only_of(objects(), "Role"), only_of(objects(), "RoleBinding"));
    assert_eq!(role["rules"], json!([rule, pods]));
    assert_eq!(
        (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]),
        (&json!("Role"), &role["metadata"]["name"])
    );
    let account = only_of(objects(), "ServiceAccount")["metadata"]["name"].clone();
    assert_eq!(binding["subjects"], json!([{ "kind": "ServiceAccount", "name": account }]));
    let set = only_of(objects(), "StatefulSet");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["serviceAccountName"], &pod["automountServiceAccountToken"]),
        (&account, &json!(true))
    );
    let policy = only_of(objects(), "NetworkPolicy")["spec"].clone();
    let ports: Vec<_> =
        items(&policy["egress"]).iter().flat_map(|rule| items(&rule["ports"])).collect();
    for port in [5432, 443, 6443] {
        assert!(ports.contains(&&json!({ "protocol": "TCP", "port": port })), "{port}: {ports:?}");
    }
    assert_eq!(policy["ingress"], only("NetworkPolicy")["spec"]["ingress"]);
}

#[test]
fn the_overlay_changes_nothing_else() {
    let mut objects = documents(&render(LEASES));
    let nodes = only_of(objects.clone(), "ConfigMap");
    let own: BTreeSet<_> = pods().iter().map(|pod| format!("{pod}.toml")).collect();
    assert_eq!(keys(&nodes["data"]).into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), own);
    for file in &own {
        assert_eq!(string(&nodes["data"][file]), text(&format!("{LEASES}/nodes/{file}")));
    }
    objects.retain(|it| !["Role", "RoleBinding"].contains(&string(&it["kind"])));
    // The name of the ConfigMap has a hash of what it contains.
    let (mut names, mut used) = (Vec::new(), Vec::new());
    let mut without_changes = |objects: Vec<Value>| -> Vec<Value> {
        let changed = |mut object: Value| {
            match string(&object["kind"]).to_owned().as_str() {
                "NetworkPolicy" => object["spec"]["egress"] = Value::Null,
                "ConfigMap" => {
                    names.push(object["metadata"]["name"].clone());
                    object = Value::Null;
                }
                "StatefulSet" => {
                    let pod = &mut object["spec"]["template"]["spec"];
                    pod["automountServiceAccountToken"] = Value::Null;
                    let volumes = pod["volumes"].as_array_mut().expect("volumes");
                    let nodes = volumes.iter_mut().find(|it| it["name"] == "nodes");
                    used.push(nodes.expect("the configurations")["configMap"]["name"].take());
                }
                _ => {}
            }
            object
        };
        objects.into_iter().map(changed).collect()
    };
    assert_eq!(without_changes(objects), without_changes(self::objects()));
    assert_eq!(used, names);
    assert!(used[0] != used[1] && used[0].is_string(), "{used:?}");
    let paths =
        |dir: &str| pods().iter().map(|pod| format!("{dir}/nodes/{pod}.toml")).collect::<Vec<_>>();
    for (own, base) in paths(LEASES).iter().zip(&paths(BASE)) {
        // Only comments differ, and the sections.
        let (mut own, base): (toml::Table, toml::Table) =
            (text(own).parse().expect("TOML"), text(base).parse().expect("TOML"));
        let section = own.remove("kubernetes").expect("the section");
        assert_eq!(section["url"].as_str(), Some("in-cluster"));
        let section = own.remove("health-check").expect("the section");
        assert_eq!(section["kind"].as_str(), Some("kubernetes"));
        assert_eq!(own, base);
    }
    configurations::of_nodes(&paths(LEASES));
}

#[test]
fn a_slow_store_never_restarts_a_pod() {
    let container = pod()["containers"][0].clone();
    for (probe, command) in
        [("startupProbe", "nodes"), ("readinessProbe", "cluster"), ("livenessProbe", "nodes")]
    {
        let arguments = strings(&container[probe]["exec"]["command"]);
        // `ostraca nodes` answers from memory; `ostraca cluster` and `ostraca status` depend on the stores.
        assert_eq!(arguments[..3], ["/usr/bin/ostraca", command, "--profile"], "{probe}");
        assert!(container[probe]["timeoutSeconds"].as_u64() >= Some(5), "{probe}");
    }
    let probe = &container["startupProbe"];
    let number = |key: &str| probe[key].as_u64().expect("a number");
    let wait = seconds("host/node/src/node/store_access.rs", "CONNECT_TIMEOUT");
    assert!(number("periodSeconds") * number("failureThreshold") > wait, "must outlast {wait} s");
    let service = only("Service");
    assert_eq!(
        service["spec"]["publishNotReadyAddresses"], true,
        "nodes need each other to be ready"
    );
}

#[test]
fn a_pod_has_more_time_than_a_stop_takes() {
    let pod = pod();
    let given = pod["terminationGracePeriodSeconds"].as_u64().expect("a number");
    assert!(given > longest_stop(), "{given} s, a stop takes up to {} s", longest_stop());
    // `ostraca drain` outlasts a restart: a hook that runs it would leave each restarted node without shards.
    assert!(containers(&pod).iter().all(|it| it.get("lifecycle").is_none()), "a hook");
}

#[test]
fn service_budget_and_policy_select_the_pods() {
    let labels = only("StatefulSet")["spec"]["template"]["metadata"]["labels"].clone();
    let selects = |selector: &Value| {
        let all = keys(selector);
        assert!(
            !all.is_empty() && all.iter().all(|key| labels[*key] == selector[*key]),
            "{selector}"
        );
    };
    selects(&only("StatefulSet")["spec"]["selector"]["matchLabels"]);
    selects(&only("Service")["spec"]["selector"]);
    assert_eq!(only("Service")["spec"]["clusterIP"], "None");
    let budget = only("PodDisruptionBudget");
    selects(&budget["spec"]["selector"]["matchLabels"]);
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    let policy = only("NetworkPolicy")["spec"].clone();
    selects(&policy["podSelector"]["matchLabels"]);
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    let port = json!([{ "protocol": "UDP", "port": 7411 }]);
    let incoming = items(&policy["ingress"]);
    assert!(incoming.len() == 2 && incoming[0]["ports"] == port, "{incoming:?}");
    let metrics = json!([{ "protocol": "TCP", "port": 7481 }]);
    assert_eq!(incoming[1]["ports"], metrics, "{incoming:?}");
    for rule in [&incoming[0]["from"], &policy["egress"][0]["to"]] {
        selects(&items(rule)[0]["podSelector"]["matchLabels"]);
    }
    assert_eq!(policy["egress"][0]["ports"], port);
    for spread in items(&pod()["topologySpreadConstraints"]) {
        selects(&spread["labelSelector"]["matchLabels"]);
    }
}

#[test]
fn every_file_names_the_same_image() {
    let image = format!("localhost/ostraca:{VERSION}");
    assert_eq!(pod()["containers"][0]["image"], *image);
    let compose = text("deploy/compose/compose.yaml");
    assert!(compose.contains(&format!("${{OSTRACA_IMAGE:-{image}}}")), "compose.yaml");
    assert!(text("deploy/compose/.env.example").contains(&format!("OSTRACA_IMAGE={image}\n")));
    assert!(text("deploy/image/build.sh").contains("${IMAGE:-localhost/ostraca:$version}"));
}
