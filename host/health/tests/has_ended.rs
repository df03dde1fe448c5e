//! `deploy/health-check/has-ended` says that a process has ended only if it knows that (S7).

use std::process::{Child, Command, Stdio};

use ostraca_health::describe_this_process;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/health-check/has-ended");

/// Runs the script about a process of this machine. Variables without a value are missing.
fn asked(pid: u32, start_ticks: &str, other: &[(&str, Option<&str>)]) -> Option<i32> {
    let this = describe_this_process().expect("a description");
    let mut command = Command::new("/bin/sh");
    command
        .arg(SCRIPT)
        .env("OSTRACA_PID", pid.to_string())
        .env("OSTRACA_START_TICKS", start_ticks)
        .env("OSTRACA_BOOT_ID", this.boot_id)
        .env("OSTRACA_PID_NAMESPACE", this.pid_namespace.to_string());
    for (name, value) in other {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.status().expect("a shell").code()
}

fn start_ticks(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, from_third) = stat.rsplit_once(')').expect("a name");
    from_third.split_whitespace().nth(19).expect("a start").into()
}

fn sleeping() -> (Child, String) {
    let child = Command::new("sleep").arg("600").spawn().expect("a process");
    let start = start_ticks(child.id());
    (child, start)
}

#[test]
fn s7_the_script_knows_a_process_that_has_ended() {
    let (mut child, start) = sleeping();
    let living = asked(child.id(), &start, &[]);
    let other = asked(child.id(), "1", &[]);
    child.kill().expect("killed");
    child.wait().expect("waited for");
    assert_eq!(living, Some(1));
    assert_eq!(other, Some(0), "another process has its id");
    assert_eq!(asked(child.id(), &start, &[]), Some(0), "it has ended");
}

#[test]
fn s7_the_script_knows_nothing_without_all_facts() {
    let pid = std::process::id();
    for name in ["OSTRACA_PID", "OSTRACA_START_TICKS", "OSTRACA_BOOT_ID", "OSTRACA_PID_NAMESPACE"] {
        for value in [None, Some("")] {
            assert_eq!(asked(pid, "1", &[(name, value)]), Some(1), "{name} is {value:?}");
        }
    }
    for (name, value) in [
        ("OSTRACA_BOOT_ID", "00000000-0000-0000-0000-000000000000"),
        ("OSTRACA_PID_NAMESPACE", "1"),
        ("OSTRACA_PID", "0"),
        ("OSTRACA_PID", "x"),
        ("OSTRACA_PID", "*"),
        ("OSTRACA_PID", "../nothing"),
        ("OSTRACA_PID", "0999999999"),
    ] {
        assert_eq!(asked(pid, "1", &[(name, Some(value))]), Some(1), "{name} is {value:?}");
    }
}

/// `/proc` shows the processes of the namespace that it was mounted in, whoever reads it.
#[test]
fn s7_the_proc_of_another_pid_namespace_proves_nothing() {
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "/bin/sh", "-c", script]);
        command.stderr(Stdio::null()).status().ok()?.code()
    };
    if unshared("exit 0") != Some(0) {
        eprintln!("not tested: this user may make no namespaces");
        return;
    }
    // The shell asks about itself, in its own namespace, where its id is 1.
    let script = format!(
        "ns=$(readlink /proc/self/ns/pid); ns=${{ns#pid:[}}; export OSTRACA_PID_NAMESPACE=${{ns%]}}
        export OSTRACA_PID=$$ OSTRACA_START_TICKS=1
        export OSTRACA_BOOT_ID=$(cat /proc/sys/kernel/random/boot_id)
        /bin/sh '{SCRIPT}'; exit $?"
    );
    assert_eq!(unshared(&script), Some(1), "it lives");
}
