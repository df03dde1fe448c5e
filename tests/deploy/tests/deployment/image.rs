//! The image that `deploy/image/build.sh` builds from the real program: its settings, its files, and a node that runs
//! from them with a read-only root.
//!
//! The layer is unpacked and entered with `unshare` and `chroot`, which need neither a container runtime nor, where the
//! kernel lets every user make namespaces, root.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ostraca_deploy_tests::{VERSION, longest_stop, root, tools};
use serde_json::{Value, json};
use tempfile::TempDir;

const IMAGE: &str = "localhost/ostraca:test";
/// The user and group of the node.
const USER: &str = "10001/10001";

/// The built image: its configuration and its only layer.
struct Image {
    config: Value,
    layer: PathBuf,
}

/// Builds the image once, in a storage of its own. What an earlier run has left there is removed.
fn image() -> &'static Image {
    static BUILT: OnceLock<Image> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = tools::scratch().join("image");
        if dir.exists() {
            std::fs::remove_dir_all(&dir).expect("removed");
        }
        std::fs::create_dir(&dir).expect("a directory");
        let storage = dir.join("storage.conf");
        let at = dir.display();
        // The driver `vfs` copies files, so it needs nothing from the kernel.
        let text = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{at}/storage\"\nrunroot = \"{at}/run\"\n"
        );
        std::fs::write(&storage, text).expect("written");
        let buildah = tools::buildah();
        let mut build = Command::new(root().join("deploy/image/build.sh"));
        build.env("CONTAINERS_STORAGE_CONF", &storage).env("IMAGE", IMAGE);
        let said = tools::succeed(build.env("BINARY", tools::ostraca()));
        assert!(said.starts_with(&format!("image: {IMAGE}, ")), "no size is printed: {said}");
        let exported = dir.join("exported");
        let mut export = Command::new(&buildah);
        export.env("CONTAINERS_STORAGE_CONF", &storage).args(["push", "--quiet", IMAGE]);
        tools::succeed(export.arg(format!("dir:{}", exported.display())));
        // Containers and layers are not needed any more.
        tools::succeed(
            Command::new(&buildah)
                .env("CONTAINERS_STORAGE_CONF", &storage)
                .args(["rmi", "--all", "--force"]),
        );
        let blob = |digest: &Value| {
            let digest = digest.as_str().expect("a digest");
            exported.join(digest.strip_prefix("sha256:").expect("a digest"))
        };
        let read = |path: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
        };
        let manifest = read(&exported.join("manifest.json"));
        assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
        let layers = manifest["layers"].as_array().expect("layers");
        assert_eq!(layers.len(), 1, "{manifest}");
        let config = read(&blob(&manifest["config"]["digest"]));
        Image { config, layer: blob(&layers[0]["digest"]) }
    })
}

/// An entry of the image: its mode and owner as `tar` shows them, and its size.
struct Entry {
    mode: String,
    owner: String,
    size: u64,
}

/// The entries of the image's layer by absolute path, without a slash at the end.
fn entries() -> BTreeMap<String, Entry> {
    let mut list = Command::new("tar");
    let list = tools::succeed(
        list.args(["--list", "--verbose", "--numeric-owner", "--file"]).arg(&image().layer),
    );
    let entry = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let path = format!("/{}", fields[5].trim_start_matches("./").trim_end_matches('/'));
        let size = fields[2].parse().expect("a size");
        (path, Entry { mode: fields[0].into(), owner: fields[1].into(), size })
    };
    list.lines().map(entry).collect()
}

/// The shared libraries of the program and its loader, as the system's loader finds them.
fn libraries() -> Vec<String> {
    let listed = tools::succeed(Command::new("ldd").arg(tools::ostraca()));
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(str::to_owned).collect()
}

#[test]
fn the_image_names_user_program_and_release() {
    let config = &image().config["config"];
    assert_eq!(config["User"], "10001:10001");
    assert_eq!(config["Entrypoint"], json!(["/usr/bin/ostraca"]));
    assert_eq!(config["Cmd"], json!(["run", "--config", "/var/lib/ostraca"]));
    assert_eq!(config["WorkingDir"], "/var/lib/ostraca");
    assert_eq!(config["ExposedPorts"], json!({ "7411/udp": {} }));
    assert_eq!(config["StopSignal"], "SIGTERM");
    for (label, value) in [("title", "Ostraca"), ("licenses", "Apache-2.0"), ("version", VERSION)] {
        assert_eq!(config["Labels"][format!("org.opencontainers.image.{label}")], value);
    }
    for label in ["description", "revision"] {
        assert!(
            config["Labels"][format!("org.opencontainers.image.{label}")].is_string(),
            "{label}"
        );
    }
}

#[test]
fn the_image_has_the_program_and_its_libraries_only() {
    let entries = entries();
    let mut expected: Vec<String> = libraries();
    expected.extend(
        ["/usr/bin/ostraca", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"].map(str::to_owned),
    );
    expected.sort();
    let files: Vec<_> = entries
        .iter()
        .filter(|(_, it)| !it.mode.starts_with('d'))
        .map(|(path, _)| path.clone())
        .collect();
    assert_eq!(files, expected);
    let length = |path: &str| std::fs::metadata(path).expect("a file").len();
    let most = length(&tools::ostraca().display().to_string())
        + libraries().iter().map(|path| length(path)).sum::<u64>()
        + 4096;
    let size: u64 = entries.values().map(|it| it.size).sum();
    assert!(size <= most, "{size} bytes, at most {most} are needed");
}

#[test]
fn only_the_data_directory_belongs_to_the_node() {
    for (path, entry) in entries() {
        let is_data = path == "/var/lib/ostraca";
        assert_eq!(entry.owner, if is_data { USER } else { "0/0" }, "{path}");
        let kind = entry.mode.chars().next();
        let mode = match (kind, path.as_str()) {
            (Some('d'), "/var/lib/ostraca") => "drwx------",
            (Some('d'), _) => "drwxr-xr-x",
            (_, it) if it.starts_with("/etc/") => "-rw-r--r--",
            _ => "-rwxr-xr-x",
        };
        assert_eq!(entry.mode, mode, "{path}");
    }
    assert!(entries().contains_key("/var/lib/ostraca"));
}

/// The unpacked image with a data directory beside it.
struct Container {
    dir: TempDir,
}

impl Container {
    fn unpack() -> Self {
        let dir = tempfile::tempdir_in(tools::scratch()).expect("a directory");
        for name in ["root", "data"] {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("a directory");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod");
        }
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--file"]).arg(&image().layer).arg("--directory");
        tools::succeed(unpack.arg(dir.path().join("root")));
        if nix::unistd::geteuid().is_root() {
            let (user, group) =
                (nix::unistd::Uid::from_raw(10001), nix::unistd::Gid::from_raw(10001));
            nix::unistd::chown(&dir.path().join("data"), Some(user), Some(group)).expect("chown");
        }
        Self { dir }
    }

    /// A command in the image: the root is read-only, the data directory is at its place, and the user is that of the
    /// image. Without root, it is the user who runs the test.
    fn command(&self, arguments: &[&str]) -> Command {
        let is_root = nix::unistd::geteuid().is_root();
        let script = "set -e; root=$1; data=$2; change=$3; shift 3
            mount --bind \"$root\" \"$root\"
            mount --bind \"$data\" \"$root/var/lib/ostraca\"
            for system in proc dev; do mount --rbind \"/$system\" \"$root/$system\"; done
            mount -o remount,bind,ro \"$root\"
            exec chroot $change \"$root\" /usr/bin/ostraca \"$@\"";
        let mut command = Command::new("unshare");
        command.args(if is_root { &["--mount"][..] } else { &["--map-root-user", "--mount"] });
        command.args(["sh", "-c", script, "sh"]);
        command.arg(self.dir.path().join("root")).arg(self.dir.path().join("data"));
        // The shell drops an empty option.
        command.arg(if is_root { "--userspec=10001:10001" } else { "" }).args(arguments);
        command
    }
}

/// Waits for a process to end.
fn wait(process: &mut Child, limit: Duration) -> std::process::ExitStatus {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = process.try_wait().expect("waited") {
            return status;
        }
        if Instant::now() > until {
            process.kill().expect("killed");
            panic!("the node does not stop");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_runs_on_a_read_only_root() {
    let container = Container::unpack();
    assert_eq!(
        tools::succeed(&mut container.command(&["--version"])),
        format!("ostraca {VERSION}\n")
    );
    // Outside of the data directory nothing can be written.
    let refused = container.command(&["init", "/etc/ostraca/node"]).output().expect("run");
    assert!(!refused.status.success());
    let init = ["init", "/var/lib/ostraca/node", "--listen", "127.0.0.1:0", "--shards", "8"];
    tools::succeed(&mut container.command(&init));
    let mut run = container.command(&["run", "--config", "/var/lib/ostraca/node"]);
    let log = container.dir.path().join("log");
    run.stdout(Stdio::piped()).stderr(std::fs::File::create(&log).expect("a log"));
    let mut node = run.spawn().expect("unshare");
    let mut line = String::new();
    let output = node.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let log = || std::fs::read_to_string(&log).expect("the log");
    assert!(line.starts_with("ready: node node-1 "), "{line:?}, log: {}", log());
    let id = node.id();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("its status");
    if nix::unistd::geteuid().is_root() {
        assert!(status.contains("\nUid:\t10001\t10001\t10001\t10001\n"), "{status}");
    }
    let kill = ["-TERM".to_owned(), id.to_string()];
    tools::succeed(Command::new("kill").args(kill));
    assert!(wait(&mut node, Duration::from_secs(longest_stop())).success(), "{}", log());
}
